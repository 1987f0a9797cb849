//! Whether others want this rank's cores, found out by yielding.
//!
//! A thread that waits for a peer first looks again at once, then yields between looks, then sleeps. Yielding is right
//! where the core is idle, or where the peer itself waits for this core. Where somebody computes on the core (a
//! framework's threads, another job), it is wrong: the kernel gives him the core for milliseconds, while a thread that
//! sleeps gets it back soon after it is woken, because it has used little of its share. Two ranks on two cores with two
//! busy neighbours: a hand-over took 12 ms with yields and 11 to 38 us asleep.
//!
//! So yields are timed. After [`LONG_YIELDS`] in a row that took [`LONG`] the [`Crowd`] is known, and the next waits go
//! to sleep without yielding: at first [`FIRST_WAITS`] of them, twice as many each time that trying again finds the
//! crowd still there.
//!
//! It is a hint for one process: nothing depends on it but time, and ranks need not agree on it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A yield that takes this long has let somebody compute. To an idle core it takes less than a microsecond, and a peer
/// that shares the core yields itself as soon as it waits; the kernel's slices are some milliseconds.
const LONG: Duration = Duration::from_micros(500);

/// So many long yields in a row make a crowd. One may be an accident: a kernel thread, the launcher, a hypervisor that
/// took the core away. With 16 ranks on 16 cores such accidents are frequent; when each counted, so many ranks slept
/// that others ran into long yields, too, and an allreduce of 16 KB stayed at 1 ms instead of 14 us.
const LONG_YIELDS: u32 = 3;

/// Waits without a yield after the first long ones: asleep they take about as long together as one long yield. One long
/// yield may be an accident (a kernel thread, the launcher), so it must not count for longer; a crowd that stays
/// doubles it.
const FIRST_WAITS: u32 = 64;

/// Waits without a yield at most: with many more, a crowd that has gone would be remembered for seconds.
const MOST_WAITS: u32 = 1024 * FIRST_WAITS;

/// What is known about others on this rank's cores. Shared by the threads that wait in turn; only ever a hint, so
/// nothing is ordered by it.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Waits that are still to be made without yielding.
    left: AtomicU32,
    /// How many that were when the crowd was last found; zero after a yield that found none.
    last: AtomicU32,
    /// Long yields since the last short one.
    long: AtomicU32,
}

impl Crowd {
    /// Whether yielding is not worth it now.
    pub(crate) fn is_there(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// A wait begins. Answers whether it should go to sleep without yielding.
    pub(crate) fn begin_wait(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Lets others run, and learns from how long they do. Says when it began and ended.
    pub(crate) fn yield_now(&self) -> (Instant, Instant) {
        let began = Instant::now();
        thread::yield_now();
        let ended = Instant::now();
        self.learn(ended - began);
        (began, ended)
    }

    /// As if yields had taken long.
    #[cfg(test)]
    pub(crate) fn find_for_tests(&self) {
        (0..LONG_YIELDS).for_each(|_| self.learn(LONG));
    }

    fn learn(&self, yielded: Duration) {
        if yielded < LONG {
            if self.long.load(Ordering::Relaxed) > 0 {
                self.long.store(0, Ordering::Relaxed);
                self.last.store(0, Ordering::Relaxed);
            }
            return;
        }
        let (last, long) = (self.last.load(Ordering::Relaxed), self.long.load(Ordering::Relaxed) + 1);
        self.long.store(long, Ordering::Relaxed);
        if last == 0 && long < LONG_YIELDS {
            return;
        }
        let waits = (2 * last).clamp(FIRST_WAITS, MOST_WAITS);
        self.last.store(waits, Ordering::Relaxed);
        self.left.store(waits, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_without_yielding(crowd: &Crowd) -> u32 {
        (0..).take_while(|_| crowd.begin_wait()).count() as u32
    }

    #[test]
    fn long_yields_are_remembered_longer_each_time_and_forgotten_when_the_core_is_free() {
        let crowd = Crowd::default();
        crowd.learn(Duration::from_micros(3));
        assert!(!crowd.is_there() && !crowd.begin_wait());
        crowd.find_for_tests();
        assert_eq!(waits_without_yielding(&crowd), FIRST_WAITS);
        for times in [2, 4] {
            crowd.learn(Duration::from_millis(3));
            assert!(crowd.is_there());
            assert_eq!(waits_without_yielding(&crowd), times * FIRST_WAITS);
        }
        crowd.learn(Duration::from_micros(3));
        crowd.learn(LONG);
        assert!(!crowd.is_there(), "one long yield is an accident");
        crowd.find_for_tests();
        assert!(crowd.is_there());
    }

    #[test]
    fn accidents_between_short_yields_make_no_crowd() {
        let crowd = Crowd::default();
        for _ in 0..100 {
            (1..LONG_YIELDS).for_each(|_| crowd.learn(Duration::from_millis(4)));
            crowd.learn(Duration::from_nanos(400));
        }
        assert!(!crowd.is_there());
    }

    #[test]
    fn a_crowd_is_never_remembered_for_long() {
        let crowd = Crowd::default();
        for _ in 0..40 {
            crowd.learn(LONG);
        }
        assert_eq!(waits_without_yielding(&crowd), MOST_WAITS);
    }
}
