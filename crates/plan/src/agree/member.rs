//! One rank's side of the agreement.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, Operation, Refusal, RequestId, Settings, Violation};
use crate::message::Message;
use crate::request::{Rank, Request};
use crate::stall;

/// One rank of one group; see the module's text.
#[derive(Debug)]
pub struct Member {
    me: Rank,
    size: usize,
    settings: Settings,
}

impl Member {
    /// The member of rank `me` in a group of `size` ranks.
    pub fn new(me: Rank, size: usize, settings: Settings) -> Member {
        Member { me, size, settings }
    }

    /// Asks for a collective. The id stays valid until the request has been run ([`Member::finished`]) or was named in an
    /// action that says its id is free again.
    ///
    /// # Errors
    /// A name that is still in flight, a request after this rank's join, or a closed group.
    pub fn submit(&mut self, _request: Request, _now: Duration) -> Result<RequestId, Refusal> {
        unimplemented!("{:?} {:?} {:?}", self.me, self.size, self.settings)
    }

    /// Takes in a message of another rank.
    ///
    /// # Errors
    /// The message makes no sense; the driver should [`abort`](Member::abort).
    pub fn receive(&mut self, _from: Rank, _message: Message, _now: Duration) -> Result<(), Violation> {
        unimplemented!()
    }

    /// The next message to send; never to this rank itself. Call until `None`, before waiting.
    pub fn poll_send(&mut self) -> Option<(Rank, Message)> {
        unimplemented!()
    }

    /// The next thing to do. Call until `None`, before waiting and after each [`Member::finished`].
    pub fn poll_action(&mut self, _now: Duration) -> Option<Action> {
        unimplemented!()
    }

    /// The outstanding bucket has run. Call it before the callers learn of it.
    pub fn finished(&mut self, _operation: Operation, _now: Duration) {
        unimplemented!()
    }

    /// When [`Member::handle_timeout`] must be called at the latest.
    pub fn next_timeout(&self) -> Option<Duration> {
        unimplemented!()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, _now: Duration) {
        unimplemented!()
    }

    /// Closes the group on all ranks: what is already agreed still runs, everything else is refused.
    pub fn close(&mut self, _now: Duration) {
        unimplemented!()
    }

    /// Gives up at once, for the given cause: the outstanding run is abandoned, everything is refused with this cause, and
    /// the other ranks are told. The first cause wins.
    pub fn abort(&mut self, _cause: Arc<str>, _now: Duration) {
        unimplemented!()
    }

    /// Which requests wait for which ranks (known on rank 0 of the group only).
    pub fn stalled(&self, _limits: &stall::Limits, _now: Duration) -> Option<stall::Report> {
        unimplemented!()
    }
}
