//! The driver's end of a promise: [`Owed`]. However the driver loses it, the ticket gets an answer.
//!
//! A request passes through many hands on its way (intake, table, bucket). If one of them panics, unwinding drops
//! whatever it held, and with it the only means of telling the caller. So dropping an [`Owed`] that was not fulfilled
//! does not lose it:
//!
//! - *unwinding*: why the driver panics is known only to whoever catches the panic, further out on this thread. The
//!   promise is put aside, and [`take_orphans`] gives it to that one, who fulfils it with the text of the panic.
//! - *dropped with the driver*: nobody will work on the request any more. The promise is fulfilled with
//!   [`Error::ShutDown`].
//!
//! What is deliberately not here: the memory of the request. What unwinding drops is freed.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::Error;
use crate::submission::{Outcome, Returned};
use crate::ticket::Promise;

thread_local! {
    /// Promises that unwinding of this thread has dropped, until whoever catches the panic takes them.
    static ORPHANS: RefCell<Vec<Arc<Promise>>> = const { RefCell::new(Vec::new()) };
}

/// A promise that has to be kept.
#[derive(Debug)]
pub(crate) struct Owed(Option<Arc<Promise>>);

impl Owed {
    pub(crate) fn new(promise: Arc<Promise>) -> Owed {
        Owed(Some(promise))
    }

    /// Keeps the promise.
    pub(crate) fn fulfil(mut self, result: Result<Outcome, Box<Returned>>) {
        if let Some(promise) = self.0.take() {
            promise.fulfil(result);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(promise) = self.0.take() else { return };
        if std::thread::panicking() {
            // A thread that ends has nobody left who could take it.
            let _ = ORPHANS.try_with(|orphans| orphans.borrow_mut().push(promise));
        } else {
            promise.fulfil(Err(Returned::without_memory(Error::ShutDown)));
        }
    }
}

/// The promises that a panic on this thread has dropped.
pub(crate) fn take_orphans() -> Vec<Arc<Promise>> {
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
        let owed = Owed::new(Arc::clone(&promise));
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = owed;
            panic!("for the test");
        }));
        assert!(panicked.is_err() && !promise.is_fulfilled());
        let orphans = take_orphans();
        assert!(orphans.len() == 1 && Arc::ptr_eq(&orphans[0], &promise));
        assert!(take_orphans().is_empty());
    }

    #[test]
    fn a_promise_that_nobody_works_on_any_more_is_answered() {
        let promise: Arc<Promise> = Arc::new(Slot::new());
        drop(Owed::new(Arc::clone(&promise)));
        assert!(matches!(promise.take(), Some(Err(returned)) if matches!(returned.error, Error::ShutDown)));
    }
}
