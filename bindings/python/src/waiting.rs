//! How Python waits: without the interpreter's lock, and with an ear for Ctrl-C.
//!
//! A thread that waits for tickets releases the interpreter's lock and drives the engine; every [`LOOK_AFTER`] it comes
//! back to see whether Python has a signal to deal with, so a wait that lasts shorter pays nothing for it. Interrupted
//! or not, the requests go on and their tickets stay good.
//!
//! Threads that wait are counted, so that the interpreter does not end under them: one that came back to an interpreter
//! that is gone would take the process down.
//!
//! What is deliberately not here: taking results (`handle`, `gradient_batch`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farandole::{EngineError, Ticket};
use pyo3::prelude::*;

use crate::errors;

/// How often a waiting thread looks for signals: soon enough for whoever presses Ctrl-C, and too rare to be measured.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Threads that wait without the interpreter's lock. Counted by those threads; read by the thread that ends the
/// interpreter.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Waits until the first `count` tickets are done, and looks for signals in between.
pub(crate) fn wait_until_done<'a, F>(py: Python<'_>, ticket_at: F, count: usize) -> PyResult<()>
where
    F: Fn(usize) -> &'a Ticket + Sync,
{
    let mut left = skip_done(&ticket_at, count);
    let mut since = None;
    while left > 0 {
        let waited = py.detach(|| {
            let _waiting = Waiting::begin();
            wait_a_while(&ticket_at, left, &mut since)
        });
        left = waited.map_err(errors::of_engine)?;
        if left > 0 {
            py.check_signals()?;
        }
    }
    Ok(())
}

/// Waits until it is time to look for signals, and returns how many tickets it has not seen done. The last comes first:
/// it is most likely the last to be done, so that this thread drives without interruption. `since` is when the wait for
/// that one has begun; it is recorded when it is over, however many looks lay in between.
fn wait_a_while<'a>(
    ticket_at: &impl Fn(usize) -> &'a Ticket,
    count: usize,
    since: &mut Option<Instant>,
) -> Result<usize, EngineError> {
    let begun = Instant::now();
    let mut left = count;
    while left > 0 {
        let ticket = ticket_at(left - 1);
        let waits_since = *since.get_or_insert_with(Instant::now);
        if !ticket.is_done_within(LOOK_AFTER.saturating_sub(begun.elapsed()))? {
            break;
        }
        ticket.note_waited(waits_since);
        *since = None;
        left = skip_done(ticket_at, left - 1);
    }
    Ok(left)
}

/// How many tickets are left without those at the end that are done.
fn skip_done<'a>(ticket_at: &impl Fn(usize) -> &'a Ticket, count: usize) -> usize {
    (0..count).rev().find(|&index| !ticket_at(index).is_done()).map_or(0, |index| index + 1)
}

/// Lets threads that wait come back, for at most so long.
pub(crate) fn let_waiting_threads_return(at_most: Duration) {
    let deadline = Instant::now() + at_most;
    while WAITING.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One thread that waits.
pub(crate) struct Waiting;

impl Waiting {
    pub(crate) fn begin() -> Waiting {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}
