//! The promise that a submission returns: [`Ticket`].
//!
//! A ticket is one end of a [`Slot`]; the driver holds the other. It can be asked ([`Ticket::is_done`]), waited for
//! with or without a deadline, and waited for together with others ([`wait_all`]). A waiting thread drives the engine
//! if nobody else does (`driver_lock`). Dropping a ticket gives the result up, not the request: other ranks count on
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::GroupId;
use farandole_trace::Event;
use farandole_trace::clock::now_ns;
use farandole_trace::event::NameId;

use crate::command_queue::After;
use crate::completion::Slot;
use crate::driver_lock::{Awaited, Note};
use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::submission::{Outcome, Returned};

/// The slot through which an outcome reaches its ticket.
pub(crate) type OutcomeSlot = Slot<std::result::Result<Outcome, Box<Returned>>>;

/// The promise of an outcome.
#[must_use = "a ticket that is dropped gives its result up"]
pub struct Ticket {
    pub(crate) group: GroupId,
    pub(crate) name: Arc<str>,
    /// The name's number in the recorder.
    pub(crate) name_id: NameId,
    pub(crate) slot: Arc<OutcomeSlot>,
    pub(crate) shared: Arc<Shared>,
}

impl Ticket {
    /// The request's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the outcome, good or bad, is there.
    pub fn is_done(&self) -> bool {
        self.slot.is_fulfilled()
    }

    /// The outcome, if it is there. Costs next to nothing; does not drive.
    pub fn poll(&self) -> Option<Result<Outcome>> {
        self.is_done().then(|| Ok(self.take()?))
    }

    /// Waits for the outcome.
    pub fn wait(self) -> Result<Outcome> {
        self.wait_after(After::Nothing)
    }

    /// Waits for the outcome until the time is up; then the request is still under way and the ticket still good.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the time was up, otherwise what went wrong with the request.
    pub fn wait_for(&self, at_most: Duration) -> Result<Outcome> {
        self.shared.check_fork()?;
        let begun = Instant::now();
        let deadline = begun.checked_add(at_most);
        if self.wait_recorded(deadline, After::Nothing) {
            return Ok(self.take()?);
        }
        Err(Error::TimedOut { name: Arc::clone(&self.name), waited: begun.elapsed() })
    }

    /// Waits until the outcome is there or the time is up, and says which; the outcome stays for whoever takes it. For
    /// callers that look at something else between two waits, and say with [`Ticket::note_waited`] how long they did so
    /// in all.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, where nobody works on the request.
    pub fn is_done_within(&self, at_most: Duration) -> Result<bool> {
        self.shared.check_fork()?;
        let deadline = Instant::now().checked_add(at_most);
        Ok(self.shared.driver_lock.wait(self, deadline, After::Nothing, None))
    }

    /// Records that the calling thread has waited for this outcome since then. One record for all pieces of a wait:
    /// before the request has found its operation, nobody could say what a piece was spent on.
    pub fn note_waited(&self, begun: Instant) {
        let recorder = &self.shared.recorder;
        if recorder.is_on() {
            let waited_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            recorder.mark(Event::Waited { name: self.name_id, since_ns: now_ns().saturating_sub(waited_ns) });
        }
    }

    /// Waits for the outcome; if there is none, the memory that came with the request is given back beside the error,
    /// so that nobody loses a tensor with a failed rank. See [`Returned`] for what is in it.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn wait_returning(self) -> std::result::Result<Outcome, Box<Returned>> {
        self.shared.check_fork().map_err(Returned::without_memory)?;
        self.wait_recorded(None, After::Nothing);
        self.take()
    }

    /// Waits after a push that did not ring.
    pub(crate) fn wait_after(self, after: After) -> Result<Outcome> {
        self.shared.check_fork()?;
        self.wait_recorded(None, after);
        Ok(self.take()?)
    }

    /// Waits as the driver lock does, and leaves a record of it if there was something to wait for.
    fn wait_recorded(&self, deadline: Option<Instant>, after: After) -> bool {
        let recorder = &*self.shared.recorder;
        let note = recorder.is_on().then_some(Note { name: self.name_id, recorder });
        self.shared.driver_lock.wait(self, deadline, after, note)
    }

    fn take(&self) -> std::result::Result<Outcome, Box<Returned>> {
        self.slot.take().unwrap_or_else(|| Err(Returned::without_memory(Error::Taken)))
    }
}

/// Requests that were handed in without waking anybody ([`Engine::submit_quietly`](crate::Engine::submit_quietly)),
/// because the caller is about to wait for them.
#[must_use = "nobody works on these requests until they are waited for"]
#[derive(Debug)]
pub struct QuietTickets {
    tickets: Vec<std::result::Result<Ticket, Box<Returned>>>,
    after: After,
}

impl QuietTickets {
    pub(crate) fn new(tickets: Vec<std::result::Result<Ticket, Box<Returned>>>, after: After) -> QuietTickets {
        QuietTickets { tickets, after }
    }

    /// Waits for all of them; what came of each, in the order of the submissions. The memory of none is in use any more
    /// then.
    pub fn wait_returning(self) -> Vec<std::result::Result<Outcome, Box<Returned>>> {
        let QuietTickets { tickets, mut after } = self;
        // The last first, as in `wait_all`; and it makes up for the bell that nobody has rung.
        for ticket in tickets.iter().rev().flatten() {
            if ticket.shared.check_fork().is_ok() {
                ticket.wait_recorded(None, std::mem::replace(&mut after, After::Nothing));
            }
        }
        tickets.into_iter().map(|ticket| ticket?.wait_returning()).collect()
    }
}

impl Awaited for Ticket {
    fn is_fulfilled(&self) -> bool {
        self.slot.is_fulfilled()
    }

    fn sleep(&self, deadline: Option<Instant>) -> bool {
        self.slot.sleep(deadline)
    }

    fn request(&self) -> Option<(GroupId, &Arc<str>)> {
        Some((self.group, &self.name))
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("name", &self.name).field("done", &self.is_done()).finish_non_exhaustive()
    }
}

/// Waits for all tickets; the outcomes come in the order of the tickets. Cheaper than waiting for one after the other,
/// because this thread goes on driving until the last is done.
pub fn wait_all(tickets: impl IntoIterator<Item = Ticket>) -> Vec<Result<Outcome>> {
    let tickets: Vec<Ticket> = tickets.into_iter().collect();
    let mut outcomes = Vec::with_capacity(tickets.len());
    // The last ticket first: it is most likely the last to be done, so the drive is rarely interrupted.
    if let Some(last) = tickets.last()
        && last.shared.check_fork().is_ok()
    {
        last.wait_recorded(None, After::Nothing);
    }
    outcomes.extend(tickets.into_iter().map(Ticket::wait));
    outcomes
}
