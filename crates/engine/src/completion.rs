//! The promise behind a ticket: one value, put in once by the driver, taken out once by the caller.
//!
//! Everything is protected by the one mutex of the slot; there is no atomic beside it to reason about. A thread that
//! wants to sleep until the value is there counts itself in `sleepers` under the lock and waits on the condition
//! variable, and [`Slot::fulfil`] signals only if somebody is counted. That is what makes a thousand completions
//! cheap: a condition variable that is signalled makes a system call whether or not anybody sleeps.
//!
//! The scenarios, by name:
//!
//! - *poll*: the caller looks, finds nothing, goes away. It was not counted, so fulfilling makes no system call.
//! - *late wait*: the value is there before the caller waits. It is taken under the lock; nobody sleeps.
//! - *early wait*: the caller counts itself and sleeps; `fulfil` finds it counted and signals. Between counting and
//!   sleeping the lock is not released except by the condition variable itself, so the signal cannot fall into a gap.
//! - *deadline*: the sleeper's time runs out while `fulfil` signals. The sleeper looks once more under the lock before
//!   it reports a time-out, so a value that made it is never reported as late.
//! - *walk away*: the caller drops its end; the driver's end keeps the slot alive and `fulfil` puts a value in that is
//!   dropped with the slot.
//!
//! What is deliberately not here: who drives while a caller waits. That is the driver lock's business (`driver_lock`).

use crate::sync::{Condvar, Mutex, lock};

/// One value on its way from the driver to a caller.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    phase: Mutex<Phase<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Phase<T> {
    /// The value, between being put in and being taken out.
    value: Option<T>,
    /// Whether it has ever been put in.
    fulfilled: bool,
    /// Threads that sleep, or are about to, on `arrived`.
    sleepers: u32,
}

impl<T> Slot<T> {
    /// An open promise.
    pub(crate) fn new() -> Slot<T> {
        Slot { phase: Mutex::new(Phase { value: None, fulfilled: false, sleepers: 0 }), arrived: Condvar::new() }
    }

    /// Keeps the promise. The first value counts; a later one is dropped, so that a failure which reaches all tickets
    /// at once need not ask which of them were already done.
    pub(crate) fn fulfil(&self, value: T) {
        let mut phase = lock(&self.phase);
        if phase.fulfilled {
            return;
        }
        phase.fulfilled = true;
        phase.value = Some(value);
        let asleep = phase.sleepers > 0;
        drop(phase);
        if asleep {
            self.arrived.notify_all();
        }
    }

    /// Whether the value has been put in, taken out since or not.
    pub(crate) fn is_fulfilled(&self) -> bool {
        lock(&self.phase).fulfilled
    }

    /// Takes the value out, if it is there.
    pub(crate) fn take(&self) -> Option<T> {
        lock(&self.phase).value.take()
    }

    /// Sleeps until the value has been put in. Models know no time, so the deadline never passes there.
    #[cfg(loom)]
    pub(crate) fn sleep(&self, _deadline: Option<std::time::Instant>) -> bool {
        let mut phase = lock(&self.phase);
        phase.sleepers += 1;
        while !phase.fulfilled {
            phase = self.arrived.wait(phase).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        phase.sleepers -= 1;
        phase.fulfilled
    }

    /// Sleeps until the value has been put in or the deadline has passed. Says whether the value is there.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, deadline: Option<std::time::Instant>) -> bool {
        let mut phase = lock(&self.phase);
        phase.sleepers += 1;
        while !phase.fulfilled {
            let Some(deadline) = deadline else {
                phase = self.arrived.wait(phase).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                break;
            }
            phase = self.arrived.wait_timeout(phase, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        phase.sleepers -= 1;
        phase.fulfilled
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_first_value_counts() {
        let slot = Slot::new();
        slot.fulfil(1);
        slot.fulfil(2);
        assert_eq!(slot.take(), Some(1));
        assert_eq!(slot.take(), None);
        assert!(slot.is_fulfilled());
    }

    #[test]
    fn a_sleeper_wakes_when_the_value_comes() {
        let slot = Arc::new(Slot::new());
        let other = Arc::clone(&slot);
        let sleeper = farandole_testing::Sleeper::spawn(move || other.sleep(None));
        slot.fulfil(7);
        assert!(sleeper.join().unwrap());
        assert_eq!(slot.take(), Some(7));
    }

    #[test]
    fn the_deadline_ends_a_wait() {
        let slot = Slot::<u32>::new();
        let time = Duration::from_millis(5);
        farandole_testing::at_least(time, || assert!(!slot.sleep(Some(Instant::now() + time))));
    }
}
