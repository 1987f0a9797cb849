//! One rank, seen from its agent: a process group, two pipes, and how it ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::launch::message::{AgentReport, HowEnded, OutputStream, RankSlot};
use crate::launch::output::Lines;

/// How much is read from a pipe at once: what a pipe holds by default.
const READ_BYTES: usize = 64 << 10;

/// A rank that has been started.
#[derive(Debug)]
pub(super) struct RankProcess {
    pub(super) slot: RankSlot,
    pub(super) pid: Pid,
    pub(super) stopped: bool,
    pub(super) ended: Option<HowEnded>,
    /// Whether it has left the job in order.
    pub(super) left: bool,
    /// When it is killed, if it was asked to end alone.
    pub(super) kill_at: Option<Instant>,
    /// What it has made of its task.
    pub(super) result: Option<File>,
    /// Where it records its votes, in an elastic job.
    pub(super) votes: Option<File>,
    started: Instant,
    pipes: Vec<Pipe>,
}

/// One of a rank's output streams.
#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    stream: OutputStream,
    lines: Lines,
}

impl RankProcess {
    /// Starts a rank in a process group of its own.
    pub(super) fn start(slot: RankSlot, mut command: Command) -> io::Result<RankProcess> {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32).expect("invariant: a child has a process id");
        let pipe = |fd: OwnedFd, stream| {
            rustix::io::ioctl_fionbio(&fd, true)?;
            Ok::<Pipe, io::Error>(Pipe { fd, stream, lines: Lines::default() })
        };
        let mut pipes = Vec::with_capacity(2);
        if let Some(stdout) = child.stdout.take() {
            pipes.push(pipe(stdout.into(), OutputStream::Stdout)?);
        }
        if let Some(stderr) = child.stderr.take() {
            pipes.push(pipe(stderr.into(), OutputStream::Stderr)?);
        }
        // Dropping the handle does not wait: the agent has one place that reaps, for orphans too.
        let started = Instant::now();
        Ok(RankProcess {
            slot,
            pid,
            stopped: false,
            ended: None,
            left: false,
            kill_at: None,
            result: None,
            votes: None,
            started,
            pipes,
        })
    }

    /// What to poll for reading.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|pipe| pipe.fd.as_fd())
    }

    /// Reads what is there, at most one buffer from each pipe so that no rank starves the others, and says what is
    /// complete.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>, reports: &mut Vec<AgentReport>) -> Read {
        buffer.resize(READ_BYTES, 0);
        let rank = self.slot.rank;
        let mut read = Read::Nothing;
        self.pipes.retain_mut(|pipe| {
            let stream = pipe.stream;
            let mut report = |bytes: Option<Vec<u8>>| {
                reports.extend(bytes.map(|bytes| AgentReport::Output { rank, stream, bytes }));
            };
            match rustix::io::read(&pipe.fd, buffer.as_mut_slice()) {
                Ok(0) => {
                    report(pipe.lines.finish());
                    false
                }
                Ok(count) => {
                    report(pipe.lines.push(&buffer[..count]));
                    read = Read::Some;
                    true
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
                Err(_) => {
                    report(pipe.lines.finish());
                    false
                }
            }
        });
        read
    }

    /// The process has ended. What it wrote is read to the end of what is there; children of its own may still hold the
    /// pipes.
    pub(super) fn end(&mut self, how: HowEnded, buffer: &mut Vec<u8>, reports: &mut Vec<AgentReport>) {
        while self.read(buffer, reports) == Read::Some {}
        let rank = self.slot.rank;
        for pipe in &mut self.pipes {
            let rest = pipe.lines.finish();
            reports.extend(rest.map(|bytes| AgentReport::Output { rank, stream: pipe.stream, bytes }));
        }
        self.ended = Some(how);
        self.stopped = false;
        let after_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        reports.push(AgentReport::Ended { rank, how, after_us });
    }

    /// Sends a signal to a rank that has not been waited for, and whatever it has started in its group.
    pub(super) fn signal(&self, signal: Signal) {
        debug_assert!(self.ended.is_none(), "invariant: the number of a rank that was waited for is not its own");
        let _ = kill_process_group(self.pid, signal);
    }
}

/// Whether a pipe had something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// There may be more.
    Some,
    /// There is nothing now.
    Nothing,
}
