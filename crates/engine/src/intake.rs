//! The way from submitting threads to the driver.
//!
//! Any thread may push; whoever drives takes everything at once. A push costs one uncontended lock. A push must also make
//! sure that somebody will come and take the item, and ringing the driver's bell costs a system call, so it rings only
//! if the driver has said that it is *asleep*: that it will not look again unless it is woken.
//!
//! No wake-up is lost, because the queue and the word `asleep` live under the same lock. There are only two orders:
//!
//! - *push first*: the item is in the queue when the driver wants to fall asleep; [`Intake::fall_asleep`] finds it and refuses.
//! - *sleep first*: the driver has set `asleep` under the lock; the push takes the lock later, sees it, and rings. The bell
//!   remembers a ring that comes before the wait, so it does not matter how far the driver has got.
//!
//! The pusher that rings also clears `asleep`, so that of a thousand pushes to a sleeping driver one rings.
//!
//! Beside the lock there is `filled`, a hint for a driver that spins: it lets the driver look without taking the
//! lock away from pushers. A stale `false` delays the item until the next look; before it sleeps the driver always
//! looks under the lock.

use crate::sync::{Mutex, lock};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue with many pushers and one driver at a time.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    inner: Mutex<Inner<T>>,
    /// A hint: the queue may hold something. Written under the lock, read without.
    filled: AtomicBool,
}

#[derive(Debug)]
struct Inner<T> {
    items: Vec<T>,
    asleep: bool,
}

/// What a pusher has to do after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum After {
    /// Somebody drives and will look.
    Nothing,
    /// The driver was asleep: ring its bell (or drive).
    Ring,
}

impl<T> Intake<T> {
    /// An empty queue whose driver is asleep.
    pub(crate) fn new() -> Intake<T> {
        Intake { inner: Mutex::new(Inner { items: Vec::new(), asleep: true }), filled: AtomicBool::new(false) }
    }

    /// Hands an item over.
    pub(crate) fn push(&self, item: T) -> After {
        let mut inner = lock(&self.inner);
        if inner.items.is_empty() {
            self.filled.store(true, Ordering::Relaxed);
        }
        inner.items.push(item);
        match std::mem::take(&mut inner.asleep) {
            true => After::Ring,
            false => After::Nothing,
        }
    }

    /// Takes all items, in the order of their pushes. `into` must be empty; its memory becomes the queue's next memory, so
    /// that a steady state allocates nothing.
    pub(crate) fn take_all(&self, into: &mut Vec<T>) {
        if !self.may_hold_something() {
            return;
        }
        debug_assert!(into.is_empty(), "invariant: the driver has worked off what it took before");
        let mut inner = lock(&self.inner);
        self.filled.store(false, Ordering::Relaxed);
        std::mem::swap(&mut inner.items, into);
    }

    /// Whether the queue may hold something; a hint, which costs no lock.
    pub(crate) fn may_hold_something(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Says that the driver looks by itself from now on: pushes do not ring.
    pub(crate) fn wake_up(&self) {
        lock(&self.inner).asleep = false;
    }

    /// Says that the driver will not look unless it is woken. Refuses (`false`) if something has come in meanwhile.
    #[must_use]
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut inner = lock(&self.inner);
        inner.asleep = inner.items.is_empty();
        inner.asleep
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_push_to_a_sleeping_driver_rings() {
        let intake = Intake::new();
        assert_eq!(intake.push(1), After::Ring);
        assert_eq!(intake.push(2), After::Nothing);
        assert!(!intake.fall_asleep());
        let mut taken = Vec::new();
        intake.take_all(&mut taken);
        assert_eq!(taken, [1, 2]);
        assert!(intake.fall_asleep());
        assert_eq!(intake.push(3), After::Ring);
    }

    #[test]
    fn an_awake_driver_is_not_rung_for() {
        let intake = Intake::new();
        intake.wake_up();
        assert_eq!(intake.push(1), After::Nothing);
    }
}
