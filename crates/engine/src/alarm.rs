//! The alarm: anybody in this process can end all collectives of this rank, with a cause.
//!
//! Sockets tell of a peer that has died. Of one that has been stopped, or whose host is cut off, they tell nothing;
//! whoever hears of it another way (a thread that listens to the launcher) rings the [`Alarm`] of the engine and of
//! each communicator. Every pending ticket and the call that blocks then fail with this cause, the peers are told, and
//! so does whatever is asked later.
//!
//! **Which cause is the first.** A rank that dies is often reported twice, by the end of its connection and by an
//! alarm, in either order and within microseconds. What has been written down as the failure stays. Until then an alarm
//! that has rung goes before whatever a connection says: the end of a connection is an effect, the alarm knows the
//! cause. Of several alarms the first counts.
//!
//! **How the driver hears it.** The verdict is stored, then the driver's bell is rung. A driver that is awake looks for
//! a verdict in every turn, which is one load of a word that nobody writes; a driver that falls asleep between the two
//! finds the bell rung, because a bell remembers. So there is no order of the two in which it is missed.
//!
//! What is deliberately not here: who decides that a rank is lost. An alarm is believed.

use std::sync::{Arc, OnceLock};

use farandole_plan::Rank;
use farandole_transport::Bell;

/// Ends all collectives of an [`crate::Engine`] or a [`crate::Communicator`], from any thread. Cheap to clone; ringing
/// one that has outlived its engine does nothing.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<State>);

#[derive(Debug)]
struct State {
    /// Written once, by whichever thread rings first; read by the driver.
    verdict: OnceLock<Verdict>,
    bell: Bell,
}

/// What an alarm says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The world rank that is to blame, if one can be named.
    pub(crate) peer: Option<Rank>,
    pub(crate) cause: String,
}

impl Alarm {
    /// An alarm for the driver behind this bell.
    pub(crate) fn new(bell: Bell) -> Alarm {
        Alarm(Arc::new(State { verdict: OnceLock::new(), bell }))
    }

    /// Ends all collectives: they fail with this cause, and blame this rank of the world if one is named. Returns at
    /// once; the first ring counts, and none counts after another failure.
    pub fn ring(&self, peer: Option<Rank>, cause: String) {
        if self.0.verdict.set(Verdict { peer, cause }).is_ok() {
            self.0.bell.ring();
        }
    }

    /// What the first ring said, if there was one.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.0.verdict.get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farandole_transport::Waiter;

    use super::*;

    #[test]
    fn the_first_ring_counts_and_wakes_whoever_waits() {
        let waiter = Waiter::new().unwrap();
        let alarm = Alarm::new(waiter.bell());
        assert_eq!(alarm.verdict(), None);
        alarm.clone().ring(Some(Rank(3)), "it was stopped".to_owned());
        alarm.ring(None, "something else".to_owned());
        assert_eq!(alarm.verdict(), Some(&Verdict { peer: Some(Rank(3)), cause: "it was stopped".to_owned() }));
        assert!(waiter.wait(Duration::from_secs(5)).unwrap());
    }
}
