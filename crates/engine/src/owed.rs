//! The driver's end of a promise: [`Owed`]. However the driver loses it, the ticket or queue gets an answer.
//!
//! A request passes through many hands on its way (command queue, table, bucket). If one of them panics, unwinding
//! drops whatever it held, and with it the only means of telling the caller. So dropping an [`Owed`] that was not
//! fulfilled does not lose it:
//!
//! - *unwinding*: why the driver panics is known only to whoever catches the panic, further out on this thread. The
//!   promise is put aside, and [`take_orphans`] gives it to that one, who fulfils it with the text of the panic.
//! - *dropped with the driver*: nobody will work on the request any more. The promise is fulfilled with
//!   [`Error::ShutDown`].
//!
//! What is deliberately not here: the memory of the request. What unwinding drops is freed.

use std::cell::RefCell;
use std::sync::Arc;

use crate::completion_queue::{Completion, Queue};
use crate::error::Error;
use crate::submission::{Outcome, Returned};
use crate::ticket::Promise;

thread_local! {
    /// Promises that unwinding of this thread has dropped, until whoever catches the panic takes them.
    static ORPHANS: RefCell<Vec<Recipient>> = const { RefCell::new(Vec::new()) };
}

/// Who is waiting for the answer.
#[derive(Debug)]
pub(crate) enum Recipient {
    /// A ticket.
    Ticket(Arc<Promise>),
    /// A queue, under this key.
    Queue(Arc<Queue>, u64),
}

impl Recipient {
    pub(crate) fn answer(self, result: Result<Outcome, Box<Returned>>) {
        match self {
            Recipient::Ticket(promise) => promise.fulfil(result),
            Recipient::Queue(queue, key) => queue.put(Completion { key, result }),
        }
    }
}

/// A promise that has to be kept.
#[derive(Debug)]
pub(crate) struct Owed(Option<Recipient>);

impl Owed {
    pub(crate) fn new(recipient: Recipient) -> Owed {
        Owed(Some(recipient))
    }

    /// Keeps the promise.
    pub(crate) fn fulfil(mut self, result: Result<Outcome, Box<Returned>>) {
        if let Some(recipient) = self.0.take() {
            recipient.answer(result);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(recipient) = self.0.take() else { return };
        if std::thread::panicking() {
            // A thread that ends has nobody left who could take it.
            let _ = ORPHANS.try_with(|orphans| orphans.borrow_mut().push(recipient));
        } else {
            recipient.answer(Err(Returned::without_memory(Error::ShutDown)));
        }
    }
}

/// The promises that a panic on this thread has dropped.
pub(crate) fn take_orphans() -> Vec<Recipient> {
    ORPHANS.take()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::completion::Slot;

    #[test]
    fn a_promise_that_unwinding_drops_can_still_be_kept() {
        let promise: Arc<Promise> = Arc::new(Slot::new());
        let owed = Owed::new(Recipient::Ticket(Arc::clone(&promise)));
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = owed;
            panic!("for the test");
        }));
        assert!(panicked.is_err() && !promise.is_fulfilled());
        let orphans = take_orphans();
        assert!(matches!(&orphans[..], [Recipient::Ticket(orphan)] if Arc::ptr_eq(orphan, &promise)));
        assert!(take_orphans().is_empty());
    }

    #[test]
    fn a_promise_that_nobody_works_on_any_more_is_answered() {
        let promise: Arc<Promise> = Arc::new(Slot::new());
        drop(Owed::new(Recipient::Ticket(Arc::clone(&promise))));
        assert!(matches!(promise.take(), Some(Err(returned)) if matches!(returned.error, Error::ShutDown)));
    }
}
