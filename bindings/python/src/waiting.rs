//! How Python threads wait for requests: without the interpreter's lock, and interruptible by Ctrl-C.
//!
//! A thread that waits for tickets releases the interpreter's lock and drives the engine. Every
//! [`SIGNAL_CHECK_INTERVAL`] it comes back to see whether Python has a signal to handle, so a shorter wait pays nothing
//! for it. If it is interrupted, the requests go on and their tickets stay valid.
//!
//! Threads that wait are counted, so that the interpreter does not end under them: a thread that returns to an
//! interpreter which has ended would take the process down.
//!
//! Not here: taking results (`handle`, `gradient_batch`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farandole::{EngineError, Ticket};
use pyo3::prelude::*;

use crate::errors;

/// How often a waiting thread checks for signals: soon enough for a user who presses Ctrl-C, too rare to be measured.
pub(crate) const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Threads that wait without the interpreter's lock. Counted by those threads; read by the thread that ends the
/// interpreter.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Waits until the first `count` tickets are done, and checks for signals in between.
pub(crate) fn wait_until_done<'a, F>(py: Python<'_>, ticket_at: F, count: usize) -> PyResult<()>
where
    F: Fn(usize) -> &'a Ticket + Sync,
{
    let mut left = skip_done(&ticket_at, count);
    let mut since = None;
    while left > 0 {
        let waited = py.detach(|| {
            let _waiting = Waiting::begin();
            wait_until_signal_check(&ticket_at, left, &mut since)
        });
        left = waited.map_err(errors::of_engine)?;
        if left > 0 {
            py.check_signals()?;
        }
    }
    Ok(())
}

/// Waits until a ticket is done or the time is up, and says whether it is done.
pub(crate) fn wait_within(py: Python<'_>, ticket: &Ticket, limit: Duration) -> PyResult<bool> {
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let done = py.detach(|| {
            let _waiting = Waiting::begin();
            ticket.is_done_within(left.min(SIGNAL_CHECK_INTERVAL))
        });
        if done.map_err(errors::of_engine)? {
            ticket.note_waited(begun);
            return Ok(true);
        }
        if left.is_zero() {
            return Ok(false);
        }
        py.check_signals()?;
    }
}

/// Waits until it is time to check for signals, and returns how many tickets it has not seen done. The last comes
/// first: it is most likely the last to be done, so that this thread drives without interruption. `since` is when the
/// wait for that one began; it is recorded once, when it is over, however many checks were in between.
fn wait_until_signal_check<'a>(
    ticket_at: &impl Fn(usize) -> &'a Ticket,
    count: usize,
    since: &mut Option<Instant>,
) -> Result<usize, EngineError> {
    let begun = Instant::now();
    let mut left = count;
    while left > 0 {
        let ticket = ticket_at(left - 1);
        let waits_since = *since.get_or_insert_with(Instant::now);
        if !ticket.is_done_within(SIGNAL_CHECK_INTERVAL.saturating_sub(begun.elapsed()))? {
            break;
        }
        ticket.note_waited(waits_since);
        *since = None;
        left = skip_done(ticket_at, left - 1);
    }
    Ok(left)
}

/// How many tickets are left when those at the end that are done are not counted.
fn skip_done<'a>(ticket_at: &impl Fn(usize) -> &'a Ticket, count: usize) -> usize {
    (0..count).rev().find(|&index| !ticket_at(index).is_done()).map_or(0, |index| index + 1)
}

/// Waits until no thread waits any more, for at most so long.
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
