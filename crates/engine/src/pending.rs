//! Requests that were submitted and are not done: their memory, and the answer that is owed to their callers.
//!
//! A [`Pending`] request passes through many hands on its way (command queue, table, bucket). If one of them panics,
//! unwinding drops whatever it held, and with it the only means of telling the caller. So dropping a [`Promise`] that
//! was not fulfilled does not lose it:
//!
//! - *unwinding*: why the driver panics is known only to whoever catches the panic, further out on this thread. The
//!   recipient is put aside, and [`take_orphans`] gives it to that one, who answers with the text of the panic.
//! - *dropped with the driver*: nobody will work on the request any more. The answer is [`Error::ShutDown`].
//!
//! The memory of a request that unwinding drops is freed.

use std::cell::RefCell;
use std::sync::Arc;

use farandole_device::Event;
use farandole_plan::agree::RequestId;
use farandole_tensor::Region;

use crate::completion_queue::{Completion, Queue};
use crate::error::Error;
use crate::record::group::Mark;
use crate::submission::{Outcome, Returned};
use crate::ticket::OutcomeSlot;

thread_local! {
    /// Recipients of promises that unwinding of this thread has dropped, until whoever catches the panic takes them.
    static ORPHANS: RefCell<Vec<Recipient>> = const { RefCell::new(Vec::new()) };
}

/// A request that has been submitted and is not done.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) name: Arc<str>,
    pub(crate) mark: Mark,
    pub(crate) promise: Promise,
    pub(crate) input: Option<Region>,
    pub(crate) output: Option<Region>,
    /// When memory on a device holds its data.
    pub(crate) ready: Option<Event>,
    /// Whether it may be answered when its work is queued.
    pub(crate) runs_ahead: bool,
}

impl Pending {
    /// Tells the ticket that the request is not carried out, and hands its memory back.
    pub(crate) fn fail(self, error: Error) {
        let Pending { promise, input, output, .. } = self;
        promise.fulfil(Err(Box::new(Returned { error, input, output })));
    }

    /// The same, without the memory, which is never freed: a device may store to it at any time.
    pub(crate) fn fail_without_memory(self, error: Error) {
        let Pending { promise, input, output, .. } = self;
        std::mem::forget((input, output));
        promise.fulfil(Err(Returned::without_memory(error)));
    }

    /// Whether its memory is on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.input.iter().chain(&self.output).any(|region| region.device().is_some())
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.input.as_ref().expect("invariant: a collective on tensors has an input").as_bytes()
    }

    /// Where an in-place collective works: the output if there is one, else the input.
    pub(crate) fn target(&mut self) -> &mut [u8] {
        let region = self.output.as_mut().or(self.input.as_mut());
        region.expect("invariant: a collective on tensors has an input").as_bytes_mut()
    }

    /// The target, and the input where that is other memory.
    pub(crate) fn apart(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        let input = self.input.as_mut().expect("invariant: a collective on tensors has an input");
        match &mut self.output {
            Some(output) => (Some(input.as_bytes()), output.as_bytes_mut()),
            None => (None, input.as_bytes_mut()),
        }
    }
}

/// Who is waiting for the answer.
#[derive(Debug)]
pub(crate) enum Recipient {
    /// A ticket.
    Ticket(Arc<OutcomeSlot>),
    /// A queue, under this key.
    Queue(Arc<Queue>, u64),
}

impl Recipient {
    pub(crate) fn answer(self, result: Result<Outcome, Box<Returned>>) {
        match self {
            Recipient::Ticket(slot) => slot.fulfil(result),
            Recipient::Queue(queue, key) => queue.put(Completion { key, result }),
        }
    }
}

/// The driver's end of a ticket or of a place in a queue. However the driver loses it, there is an answer.
#[derive(Debug)]
pub(crate) struct Promise {
    recipient: Option<Recipient>,
}

impl Promise {
    /// An answer that is owed to somebody.
    pub(crate) fn new(recipient: Recipient) -> Promise {
        Promise { recipient: Some(recipient) }
    }

    /// Gives the answer.
    pub(crate) fn fulfil(mut self, result: Result<Outcome, Box<Returned>>) {
        if let Some(recipient) = self.recipient.take() {
            recipient.answer(result);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(recipient) = self.recipient.take() else { return };
        if std::thread::panicking() {
            // A thread that ends has nobody left who could take it.
            let _ = ORPHANS.try_with(|orphans| orphans.borrow_mut().push(recipient));
        } else {
            recipient.answer(Err(Returned::without_memory(Error::ShutDown)));
        }
    }
}

/// The recipients of promises that a panic on this thread has dropped.
pub(crate) fn take_orphans() -> Vec<Recipient> {
    ORPHANS.take()
}

/// The requests of a group, by their ids.
#[derive(Debug, Default)]
pub(crate) struct PendingTable {
    places: Vec<Option<Pending>>,
    taken: usize,
}

impl PendingTable {
    /// Enters a request.
    pub(crate) fn put(&mut self, id: RequestId, pending: Pending) {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        let here = &mut self.places[id.index()];
        assert!(here.is_none(), "invariant: an id belongs to one request at a time");
        *here = Some(pending);
        self.taken += 1;
    }

    /// Whether no request is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// How many requests are under way.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// The names of requests under way, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.places.iter().flatten().map(|pending| &pending.name)
    }

    /// Takes a request out.
    pub(crate) fn take(&mut self, id: RequestId) -> Pending {
        self.taken -= 1;
        self.places[id.index()].take().expect("invariant: an agreed id is in the table")
    }

    /// Takes all requests out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Pending> + '_ {
        self.taken = 0;
        self.places.drain(..).flatten()
    }

    /// The input of a request.
    pub(crate) fn input(&self, id: RequestId) -> &[u8] {
        self.get(id).input()
    }

    /// A request.
    pub(crate) fn get(&self, id: RequestId) -> &Pending {
        self.places[id.index()].as_ref().expect("invariant: an agreed id is in the table")
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> &mut Pending {
        self.places[id.index()].as_mut().expect("invariant: an agreed id is in the table")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::completion::Slot;

    #[test]
    fn a_promise_that_unwinding_drops_can_still_be_kept() {
        let slot: Arc<OutcomeSlot> = Arc::new(Slot::new());
        let promise = Promise::new(Recipient::Ticket(Arc::clone(&slot)));
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = promise;
            panic!("for the test");
        }));
        assert!(panicked.is_err() && !slot.is_fulfilled());
        let orphans = take_orphans();
        assert!(matches!(&orphans[..], [Recipient::Ticket(orphan)] if Arc::ptr_eq(orphan, &slot)));
        assert!(take_orphans().is_empty());
    }

    #[test]
    fn a_promise_that_nobody_works_on_any_more_is_answered() {
        let slot: Arc<OutcomeSlot> = Arc::new(Slot::new());
        drop(Promise::new(Recipient::Ticket(Arc::clone(&slot))));
        assert!(matches!(slot.take(), Some(Err(returned)) if matches!(returned.error, Error::ShutDown)));
    }
}
