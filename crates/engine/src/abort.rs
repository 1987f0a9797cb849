//! [`AbortHandle`]: any thread of this process can end all collectives of this rank, with a cause.
//!
//! Sockets tell of a peer that has died. Of one that is stopped, or whose host is cut off, they tell nothing; a thread
//! that learns of it otherwise (from the launcher) calls [`AbortHandle::abort`] on the engine and on each communicator.
//! Every pending ticket and the call that blocks then fail with this cause, the peers are told, and later calls fail
//! too.
//!
//! **Which cause is the first.** A rank that dies is often reported twice, by the end of its connection and by an
//! abort, in either order and within microseconds. A failure that has been stored stays. Until then an abort takes
//! precedence over what a connection says: the end of a connection is an effect, the abort knows the cause. Of several
//! aborts the first counts.
//!
//! **How the driver learns of it.** The cause is stored, then the driver's bell is rung. A driver that is awake looks
//! for a cause in every turn, which is one load of a word that nobody writes; a driver that falls asleep between the
//! two finds the bell rung, because a bell remembers. So no order of the two is missed.
//!
//! Not here: who decides that a rank is lost. An abort is believed.

use std::sync::{Arc, OnceLock};

use farandole_plan::{ErrorClass, Rank};
use farandole_transport::Bell;

/// Ends all collectives of an [`crate::Engine`] or a [`crate::Communicator`], from any thread. Cheap to clone; aborting
/// through one that has outlived its engine does nothing.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<State>);

#[derive(Debug)]
struct State {
    /// Written once, by whichever thread aborts first; read by the driver.
    cause: OnceLock<AbortCause>,
    bell: Bell,
}

/// Why collectives were aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbortCause {
    /// The world rank that is to blame, if one can be named.
    pub(crate) peer: Option<Rank>,
    pub(crate) class: ErrorClass,
    pub(crate) cause: String,
    /// Whether it says everything, and nothing is added about what was under way.
    pub(crate) is_complete: bool,
}

impl AbortHandle {
    /// A handle for the driver behind this bell.
    pub(crate) fn new(bell: Bell) -> AbortHandle {
        AbortHandle(Arc::new(State { cause: OnceLock::new(), bell }))
    }

    /// Ends all collectives: they fail with this cause and class, and blame this rank of the world if one is named.
    /// Returns at once; the first call counts, and none counts after another failure.
    pub fn abort(&self, peer: Option<Rank>, class: ErrorClass, cause: String) {
        self.abort_for(AbortCause { peer, class, cause, is_complete: false });
    }

    /// The same in words that say everything: what was under way here is not added to them.
    pub fn abort_in_words(&self, peer: Option<Rank>, class: ErrorClass, words: String) {
        self.abort_for(AbortCause { peer, class, cause: words, is_complete: true });
    }

    fn abort_for(&self, cause: AbortCause) {
        if self.0.cause.set(cause).is_ok() {
            self.0.bell.ring();
        }
    }

    /// The cause of the first abort, if there was one.
    #[inline]
    pub(crate) fn aborted(&self) -> Option<&AbortCause> {
        self.0.cause.get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farandole_transport::Waiter;

    use super::*;

    #[test]
    fn the_first_abort_counts_and_wakes_whoever_waits() {
        let waiter = Waiter::new().unwrap();
        let abort = AbortHandle::new(waiter.bell());
        assert_eq!(abort.aborted(), None);
        abort.clone().abort(Some(Rank(3)), ErrorClass::RankLost, "it was stopped".to_owned());
        abort.abort(None, ErrorClass::Other, "something else".to_owned());
        let (peer, class, cause) = (Some(Rank(3)), ErrorClass::RankLost, "it was stopped".to_owned());
        let first = AbortCause { peer, class, cause, is_complete: false };
        assert_eq!(abort.aborted(), Some(&first));
        assert!(waiter.wait(Duration::from_secs(5)).unwrap());
    }
}
