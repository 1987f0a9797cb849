//! A task on its way to the ranks of this host, and their results on the way back.
//!
//! The task comes in pieces and is gathered in a file in memory, which every rank inherits; ranks are started when it
//! is complete. Each rank also inherits an empty file in memory for its result, and nobody else's. When the rank has
//! ended its result is queued and goes to the launcher piece by piece, as the channel takes it; that the
//! rank has ended is told behind it. So whoever hears of a rank's end has its result. Ranks that failed go first: their
//! word is short, and somebody waits for it.
//!
//! Nothing here looks into these bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use super::{Agent, MOST_QUEUED_BYTES};
use crate::launch::message::{AgentReport, StartRanks};
use crate::launch::results::PIECE_BYTES;

/// The variable that names the descriptor with the task.
pub(super) const TASK_FD: &str = "FARANDOLE_TASK_FD";
/// The variable that names the descriptor for the result.
pub(super) const RESULT_FD: &str = "FARANDOLE_RESULT_FD";

/// An order to start whose task is on the way.
#[derive(Debug)]
pub(super) struct PendingStart {
    start: Box<StartRanks>,
    task: File,
    awaited_bytes: u64,
}

/// A file in memory, which only processes of this user can reach and which children inherit until they are told not to.
pub(super) fn inherited_file(name: &str) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

/// Keeps what one child has inherited from the next.
pub(super) fn keep_from_others(file: &File) -> io::Result<()> {
    Ok(fcntl_setfd(file, FdFlags::CLOEXEC)?)
}

/// Results that wait for the channel.
#[derive(Debug, Default)]
pub(super) struct ResultQueue {
    queue: VecDeque<QueuedResult>,
}

#[derive(Debug)]
struct QueuedResult {
    rank: u32,
    result: File,
    at: u64,
    bytes: u64,
    /// What is told behind it.
    ended: AgentReport,
}

impl ResultQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Agent {
    /// Starts the ranks, at once or when their task has come.
    pub(super) fn await_task(&mut self, start: Box<StartRanks>) {
        let Some(awaited_bytes) = start.task_bytes else { return self.start(&start, None) };
        match inherited_file("farandole-task") {
            Ok(task) => self.awaited = Some(PendingStart { start, task, awaited_bytes }),
            Err(error) => return self.tell_lost_task(&error),
        }
        self.take_task(&[]);
    }

    /// The next piece of the task.
    pub(super) fn take_task(&mut self, piece: &[u8]) {
        let Some(mut incoming) = self.awaited.take() else { return };
        if let Err(error) = incoming.task.write_all(piece) {
            return self.tell_lost_task(&error);
        }
        incoming.awaited_bytes = incoming.awaited_bytes.saturating_sub(piece.len() as u64);
        if incoming.awaited_bytes > 0 {
            self.awaited = Some(incoming);
        } else {
            self.start(&incoming.start, Some(&incoming.task));
        }
    }

    fn tell_lost_task(&mut self, error: &io::Error) {
        let why = format!("no memory for their task: {error}");
        self.tell(&AgentReport::NotStarted { rank: None, why });
    }

    /// Tells the launcher; of a rank's end, behind its result.
    pub(super) fn pass_on(&mut self, report: AgentReport) {
        if let AgentReport::Ended { rank, how, .. } = report
            && let Some(result) = self.children.take_result(rank)
            && let Ok(bytes) = result.metadata().map(|about| about.len())
            && bytes > 0
        {
            let queued = QueuedResult { rank, result, at: 0, bytes, ended: report };
            if how.is_success() {
                self.results.queue.push_back(queued);
            } else {
                self.results.queue.push_front(queued);
            }
            return;
        }
        self.tell(&report);
    }

    /// Sends of the results what the channel takes.
    pub(super) fn send_results(&mut self) {
        while self.channel.queued_bytes() < MOST_QUEUED_BYTES
            && let Some(queued) = self.results.queue.front_mut()
        {
            let left = usize::try_from(queued.bytes - queued.at).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(PIECE_BYTES)];
            // The rank is gone, but a child of it could still cut the file off: then it is as long as it is.
            let count = queued.result.read_at(&mut bytes, queued.at).unwrap_or(0);
            bytes.truncate(count);
            queued.at += count as u64;
            let rank = queued.rank;
            if count > 0 {
                self.tell(&AgentReport::Result { rank, bytes });
            } else if let Some(queued) = self.results.queue.pop_front() {
                self.tell(&queued.ended);
            }
        }
    }
}
