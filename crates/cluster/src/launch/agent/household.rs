//! All processes of a host's ranks, from first to last, with whatever they have started themselves.
//!
//! The agent is the *subreaper* of everything below it: a process whose parent dies becomes its child, wherever it has put
//! itself. So the household is empty exactly when this process has no children left, and clearing it means killing children until
//! there are none. A rank that leaves a process behind, in its group or not, leaves nothing behind.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions};

use super::rank::RankProcess;
use crate::launch::kin::children;
use crate::launch::message::{HowEnded, Report, Seat};

/// While a household is being cleared, orphans appear as their parents die; it is looked at this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The ranks of a host, and their kin.
#[derive(Debug, Default)]
pub(super) struct Household {
    pub(super) ranks: Vec<RankProcess>,
    leaving: Option<Leaving>,
    buffer: Vec<u8>,
}

/// The household has been told to leave.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// From here on it is not asked any more.
    kill_from: Instant,
    look_at: Instant,
}

/// Whether processes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    /// Some are.
    SomeLeft,
    /// None.
    NoneLeft,
}

impl Household {
    /// Adds a rank, with the file that its result goes into.
    pub(super) fn start(&mut self, seat: Seat, command: Command, result: Option<File>) -> std::io::Result<u32> {
        let mut rank = RankProcess::start(seat, command)?;
        rank.result = result;
        let pid = rank.pid.as_raw_nonzero().get() as u32;
        self.ranks.push(rank);
        Ok(pid)
    }

    /// Takes the file with a rank's result.
    pub(super) fn take_result(&mut self, rank: u32) -> Option<File> {
        self.ranks.iter_mut().find(|process| process.seat.rank == rank)?.result.take()
    }

    /// Reads what ranks have written.
    pub(super) fn read(&mut self, reports: &mut Vec<Report>) {
        for rank in &mut self.ranks {
            rank.read(&mut self.buffer, reports);
        }
    }

    /// Takes note of every process that has ended, stopped or gone on.
    pub(super) fn reap(&mut self, reports: &mut Vec<Report>) -> Reaped {
        loop {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
            let (pid, status) = match rustix::process::wait(options) {
                Ok(Some(news)) => news,
                Ok(None) => return Reaped::SomeLeft,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Reaped::NoneLeft,
            };
            let Some(rank) = self.ranks.iter_mut().find(|rank| rank.pid == pid && rank.ended.is_none()) else {
                continue; // Somebody's orphan.
            };
            let number = rank.seat.rank;
            if let Some(code) = status.exit_status() {
                rank.end(HowEnded::Exited(code), &mut self.buffer, reports);
            } else if let Some(signal) = status.terminating_signal() {
                rank.end(HowEnded::Signalled(signal), &mut self.buffer, reports);
            } else if let Some(signal) = status.stopping_signal() {
                rank.stopped = true;
                reports.push(Report::Stopped { rank: number, signal });
            } else if status.continued() {
                rank.stopped = false;
                reports.push(Report::Continued { rank: number });
            }
        }
    }

    /// Passes a signal on to all ranks.
    pub(super) fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ended.is_none()) {
            rank.signal(signal);
        }
    }

    /// Asks everybody to end, and kills whoever has not after the grace period.
    pub(super) fn clear(&mut self, grace: Duration, now: Instant) {
        for rank in &self.ranks {
            rank.signal(Signal::TERM);
            // Who is stopped hears nothing before it goes on.
            rank.signal(Signal::CONT);
        }
        for orphan in children() {
            let _ = rustix::process::kill_process(orphan, Signal::TERM);
        }
        let kill_from = now + grace;
        let kill_from = self.leaving.map_or(kill_from, |leaving| leaving.kill_from.min(kill_from));
        self.leaving = Some(Leaving { kill_from, look_at: kill_from });
    }

    /// Kills what is left, if its time has come. Returns when to come back.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Instant> {
        let leaving = self.leaving.as_mut()?;
        if now >= leaving.look_at {
            for rank in &self.ranks {
                rank.signal(Signal::KILL);
            }
            for orphan in children() {
                let _ = rustix::process::kill_process(orphan, Signal::KILL);
            }
            leaving.look_at = now + LOOK_AGAIN;
        }
        Some(leaving.look_at)
    }
}
