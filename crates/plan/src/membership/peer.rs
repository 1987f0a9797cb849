//! Another process as one member sees it: when it was heard, and what is known of its loss.
//!
//! Nothing is decided here. That a process is silent can be taken back; that it has ended cannot.

use std::sync::Arc;
use std::time::Duration;

use super::Introduction;

/// Somebody else, as this member sees it.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) heard: Duration,
    /// When it is suspected, if it is not heard before, because somebody had trouble with it.
    pub(super) doubted: Option<Duration>,
    pub(super) loss: Option<(Grade, Arc<str>)>,
    /// Set if it is a candidate.
    pub(super) candidate: Option<Introduction>,
}

/// How much is known of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    /// It may come back.
    Silent,
    /// Its process has ended, or has left.
    Dead,
    /// Its process has ended, and all that it sent on its last connections was received.
    Ended,
}

impl Peer {
    pub(super) fn new(now: Duration, candidate: Option<Introduction>) -> Peer {
        Peer { heard: now, doubted: None, loss: None, candidate }
    }

    /// Whether it is lost in this member's view.
    pub(super) fn is_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Whether messages can still reach it.
    pub(super) fn is_dead(&self) -> bool {
        self.loss.as_ref().is_some_and(|(grade, _)| *grade > Grade::Silent)
    }

    /// Whether the streams of its last connections were read to the end of its process.
    pub(super) fn was_read_to_its_end(&self) -> bool {
        self.loss.as_ref().is_some_and(|(grade, _)| *grade == Grade::Ended)
    }

    /// Whether it was heard not longer ago than this.
    pub(super) fn was_heard_within(&self, time: Duration, now: Duration) -> bool {
        !self.is_lost() && now.saturating_sub(self.heard) <= time
    }

    pub(super) fn cause(&self) -> Option<Arc<str>> {
        self.loss.as_ref().map(|(_, cause)| Arc::clone(cause))
    }

    /// It was heard, so it is not silent. Says whether it was suspected.
    pub(super) fn hear(&mut self, now: Duration) -> bool {
        self.heard = now;
        self.doubted = None;
        !self.is_dead() && self.loss.take().is_some()
    }
}
