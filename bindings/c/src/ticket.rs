//! Tickets of named requests and messages, by number.
//!
//! Numbers count up and are never used again, so one that was freed, or was never given out, is found. The outcome is
//! taken out of the engine's ticket once and stays here until the ticket is freed: waiting twice gives the same answer,
//! and results that lie in memory of the engine's can be read until then.
//!
//! **Memory.** The engine may use the caller's memory until the request is done. So `farandole_ticket_free` waits for
//! that; it never gives memory back that is still in use. In a forked child, where nobody works on the request, it
//! forgets the ticket.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::{Outcome, Rank, Ticket};

use crate::job::{self, Job};
use crate::lifecycle::int;
use crate::pointer::{Place, array, put, put_list};
use crate::status::{Fault, Status};

/// `FARANDOLE_NO_TICKET`.
pub(crate) const NONE: u64 = 0;

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

#[derive(Default)]
struct Table {
    last: u64,
    entries: HashMap<u64, Arc<Entry>>,
}

struct Entry {
    ticket: Ticket,
    job: Weak<Job>,
    /// The process set, to turn its ranks into those of the world.
    members: Arc<[Rank]>,
    outcome: OnceLock<Result<Outcome, Fault>>,
}

impl Entry {
    /// Waits until the request is done.
    fn wait(&self, limit: Duration) -> Result<(), Fault> {
        if self.ticket.is_done() {
            return Ok(());
        }
        let begun = Instant::now();
        if !self.ticket.is_done_within(limit)? {
            let text = format!(
                "\"{}\" is not done after {:.3} s; it is still under way",
                self.ticket.name(),
                limit.as_secs_f64()
            );
            return Err(Fault::new(Status::TimedOut, text));
        }
        self.ticket.note_waited(begun);
        Ok(())
    }

    /// What has come of the request.
    fn outcome(&self) -> Result<&Outcome, Fault> {
        if !self.ticket.is_done() {
            let text = format!("\"{}\" is still under way; wait for it first", self.ticket.name());
            return Err(Fault::new(Status::NotDone, text));
        }
        let outcome = self.outcome.get_or_init(|| {
            let polled = self.ticket.poll().expect("invariant: the request is done");
            polled.map_err(|error| match self.job.upgrade() {
                Some(job) => job.world.report(error).into(),
                None => error.into(),
            })
        });
        outcome.as_ref().map_err(Fault::clone)
    }

    /// The rank of the world with this number in the process set; -1 for none.
    fn world_rank(&self, rank: Option<Rank>) -> Result<i32, Fault> {
        rank.and_then(|rank| self.members.get(rank.index())).map_or(Ok(-1), |rank| int(rank.index()))
    }
}

/// Gives a ticket its number.
pub(crate) fn enter(ticket: Ticket, job: &Arc<Job>, members: Arc<[Rank]>) -> u64 {
    let entry = Arc::new(Entry { ticket, job: Arc::downgrade(job), members, outcome: OnceLock::new() });
    let mut table = lock();
    let table = table.get_or_insert_default();
    table.last += 1;
    table.entries.insert(table.last, entry);
    table.last
}

fn find(number: u64) -> Result<Arc<Entry>, Fault> {
    check_fork()?;
    let found = lock().as_ref().and_then(|table| table.entries.get(&number).cloned());
    found.ok_or_else(|| unknown(number))
}

fn unknown(number: u64) -> Fault {
    Fault::new(Status::UnknownTicket, format!("there is no ticket {number}: it was freed, or never given out"))
}

/// In a child the table's lock may be in the hands of a thread that the child did not inherit.
fn check_fork() -> Result<(), Fault> {
    match job::peek() {
        Some(job) if job.world.engine().is_forked() => Err(Fault::forked()),
        _ => Ok(()),
    }
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    // Valid between any two statements, also if a holder panicked.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A limit in seconds; below zero there is none.
fn read_limit(seconds: f64) -> Result<Duration, Fault> {
    if seconds.is_nan() {
        return Err(Fault::argument("timeout_seconds is not a number"));
    }
    if seconds < 0.0 {
        return Ok(Duration::MAX);
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

exported! {
    /// Whether a request is done.
    fn farandole_test(ticket: u64, done: Place<'_, c_int>) {
        put(done, "done", c_int::from(find(ticket)?.ticket.is_done()))
    }
}

exported! {
    /// Waits for a request.
    fn farandole_wait(ticket: u64, timeout_seconds: f64) {
        let (entry, limit) = (find(ticket)?, read_limit(timeout_seconds)?);
        entry.wait(limit)?;
        entry.outcome().map(drop)
    }
}

exported! {
    /// Waits for several requests. The first error counts.
    fn farandole_wait_all(tickets: *const u64, count: usize, timeout_seconds: f64) {
        let limit = read_limit(timeout_seconds)?;
        // SAFETY: promised by the caller.
        let tickets = unsafe { array(tickets, count, "tickets") }?;
        let entries: Vec<Arc<Entry>> = tickets.iter().map(|&ticket| find(ticket)).collect::<Result<_, Fault>>()?;
        let begun = Instant::now();
        // The last first: it is most likely the last to be done, so that this thread drives without interruption.
        for entry in entries.iter().rev() {
            entry.wait(limit.saturating_sub(begun.elapsed()))?;
        }
        entries.iter().try_for_each(|entry| entry.outcome().map(drop))
    }
}

exported! {
    /// The text of a request's error.
    fn farandole_ticket_error(ticket: u64) -> *const c_char, otherwise c"".as_ptr(); {
        let entry = find(ticket)?;
        let _ = entry.outcome();
        // The text lies in the entry, which lives until the ticket is freed.
        Ok(match entry.outcome.get() {
            Some(Err(fault)) => fault.text.as_ptr(),
            _ => c"".as_ptr(),
        })
    }
}

exported! {
    /// Where the result lies, and how large it is.
    fn farandole_ticket_result(ticket: u64, data: Place<'_, *const c_void>, bytes: Place<'_, usize>) {
        let entry = find(ticket)?;
        let outcome = entry.outcome()?;
        let memory = outcome.output.as_ref().or(outcome.input.as_ref()).map_or(&[][..], |memory| memory.as_bytes());
        put(data, "data", memory.as_ptr().cast())?;
        put(bytes, "bytes", memory.len())
    }
}

exported! {
    /// The dimensions of the result.
    fn farandole_ticket_shape(ticket: u64, shape: *mut u64, capacity: usize, dimensions: Place<'_, usize>) {
        let entry = find(ticket)?;
        // SAFETY: promised by the caller.
        unsafe { put_list(&entry.outcome()?.shape, shape, capacity, dimensions) }
    }
}

exported! {
    /// How many rows came from each rank of the process set.
    fn farandole_ticket_received_splits(ticket: u64, splits: *mut u64, capacity: usize, count: Place<'_, usize>) {
        let entry = find(ticket)?;
        // SAFETY: promised by the caller.
        unsafe { put_list(&entry.outcome()?.received_splits, splits, capacity, count) }
    }
}

exported! {
    /// The last rank to join.
    fn farandole_ticket_last_joined(ticket: u64, rank: Place<'_, i32>) {
        let entry = find(ticket)?;
        put(rank, "rank", entry.world_rank(entry.outcome()?.last_joined)?)
    }
}

exported! {
    /// The other side of a message.
    fn farandole_ticket_source(ticket: u64, rank: Place<'_, i32>) {
        let entry = find(ticket)?;
        put(rank, "rank", entry.world_rank(entry.outcome()?.source)?)
    }
}

exported! {
    /// Gives a ticket up.
    fn farandole_ticket_free(ticket: u64) {
        if ticket == NONE {
            return Ok(());
        }
        let entry = find(ticket)?;
        entry.wait(Duration::MAX)?;
        // The result of a request that nobody waited for may be how this rank learns that the job has failed.
        let _ = entry.outcome();
        // Another thread may have freed it meanwhile.
        let removed = lock().as_mut().and_then(|table| table.entries.remove(&ticket));
        removed.map(drop).ok_or_else(|| unknown(ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_that_nobody_was_given_are_unknown() {
        // SAFETY: no pointers but null.
        unsafe {
            assert_eq!(farandole_wait(12, 0.0), Status::UnknownTicket as i32);
            assert_eq!(farandole_ticket_free(12), Status::UnknownTicket as i32);
            assert_eq!(farandole_ticket_free(NONE), 0);
            assert_eq!(farandole_test(12, None), Status::UnknownTicket as i32);
        }
    }

    #[test]
    fn limits_are_seconds_or_none() {
        assert_eq!(read_limit(0.25).expect("a limit"), Duration::from_millis(250));
        assert_eq!(read_limit(-1.0).expect("none"), Duration::MAX);
        assert_eq!(read_limit(f64::INFINITY).expect("none"), Duration::MAX);
        assert!(read_limit(f64::NAN).is_err());
    }
}
