//! The way from submitting threads to the driver.
//!
//! Any thread may push; whoever drives takes everything at once. A push costs one uncontended lock. A push must also
//! make sure that somebody will come and take the item, and ringing the driver's bell costs a system call, so it rings
//! only if the driver has said that it is *asleep*: that it will not look again unless it is woken.
//!
//! No wake-up is lost, because the queue and the word `asleep` live under the same lock. There are only two orders:
//!
//! - *push first*: the item is in the queue when the driver wants to fall asleep; [`CommandQueue::fall_asleep`] finds
//!   it and refuses.
//! - *sleep first*: the driver has set `asleep` under the lock; the push takes the lock later, sees it, and rings. The
//!   bell remembers a ring that comes before the wait, so it does not matter how far the driver has got.
//!
//! The pusher that rings also clears `asleep`, so that of a thousand pushes to a sleeping driver one rings.
//!
//! Beside the lock there is `filled`, a hint for a driver that spins: it lets the driver look without taking the
//! lock away from pushers. A stale `false` delays the item until the next look; before it sleeps the driver always
//! looks under the lock.
//!
//! Items may carry the time of their push. A thousand pushes in a row would spend a noticeable part of their time on
//! looking at a clock, so pushes that follow each other closely, before the driver has come by, share looks
//! ([`Stamps`]).

use crate::sync::{Mutex, lock};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue with many pushers and one driver at a time.
#[derive(Debug)]
pub(crate) struct CommandQueue<T> {
    inner: Mutex<Inner<T>>,
    /// A hint: the queue may hold something. Written under the lock, read without.
    filled: AtomicBool,
}

#[derive(Debug)]
struct Inner<T> {
    items: Vec<T>,
    asleep: bool,
    stamps: Stamps,
}

/// Pushes in a row that do with one look at the clock: so it costs a push two nanoseconds instead of thirteen.
const SHARING: u64 = 8;

/// Pushes share looks if they follow each other within this time, in nanoseconds: faster than any program that does
/// something in between.
const CLOSE_NS: u64 = 1000;

/// When pushes happened.
///
/// While pushes come closer than [`CLOSE_NS`], one of [`SHARING`] looks at the clock and the others are taken to come
/// at the same distances. The first push after the driver has emptied the queue always looks. So the time of a push is
/// wrong only if the row ends within seven pushes of a look and the program goes on before the driver comes by; and
/// then by no more than the time until it does.
#[derive(Debug, Default)]
struct Stamps {
    looked_ns: u64,
    /// From push to push, as of the last look.
    apart_ns: u64,
    /// Pushes since the last look.
    since: u64,
}

impl Stamps {
    /// The time of a push.
    fn next(&mut self, queue_was_empty: bool, clock: impl FnOnce() -> u64) -> u64 {
        self.since += 1;
        if !queue_was_empty && self.since < SHARING && self.apart_ns < CLOSE_NS {
            return self.looked_ns + self.since * self.apart_ns;
        }
        let now_ns = clock();
        // Before the first look there is no distance; nor is the one to the last row of any use.
        self.apart_ns = if queue_was_empty { CLOSE_NS } else { now_ns.saturating_sub(self.looked_ns) / self.since };
        (self.looked_ns, self.since) = (now_ns, 0);
        now_ns
    }
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

impl<T> CommandQueue<T> {
    /// An empty queue whose driver is asleep.
    pub(crate) fn new() -> CommandQueue<T> {
        CommandQueue {
            inner: Mutex::new(Inner { items: Vec::new(), asleep: true, stamps: Stamps::default() }),
            filled: AtomicBool::new(false),
        }
    }

    /// Hands an item over.
    pub(crate) fn push(&self, item: T) -> After {
        self.add(&mut lock(&self.inner), item)
    }

    /// Hands an item over that is told the time of its push.
    pub(crate) fn push_stamped(&self, clock: impl FnOnce() -> u64, item: impl FnOnce(u64) -> T) -> After {
        let mut inner = lock(&self.inner);
        let queue_was_empty = inner.items.is_empty();
        let time_ns = inner.stamps.next(queue_was_empty, clock);
        self.add(&mut inner, item(time_ns))
    }

    fn add(&self, inner: &mut Inner<T>, item: T) -> After {
        if inner.items.is_empty() {
            self.filled.store(true, Ordering::Relaxed);
        }
        inner.items.push(item);
        match std::mem::take(&mut inner.asleep) {
            true => After::Ring,
            false => After::Nothing,
        }
    }

    /// Takes all items, in the order of their pushes. `into` must be empty; its memory becomes the queue's next memory,
    /// so that a steady state allocates nothing.
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
    use std::cell::Cell;

    use super::*;

    #[test]
    fn pushes_in_a_row_share_looks_at_the_clock() {
        let (looks, time_ns) = (Cell::new(0), Cell::new(5_000_000));
        let clock = || {
            looks.set(looks.get() + 1);
            time_ns.get()
        };
        let commands = CommandQueue::new();
        for _ in 0..1000 {
            time_ns.set(time_ns.get() + 600);
            let _ = commands.push_stamped(clock, |stamp| stamp);
        }
        assert_eq!(looks.get(), 2 + 998 / SHARING, "the first two, and one of eight");
        let mut stamps = Vec::new();
        commands.take_all(&mut stamps);
        let even: Vec<u64> = (1..=1000).map(|push| 5_000_000 + 600 * push).collect();
        assert_eq!(stamps, even, "what comes at equal distances is told exactly");
    }

    #[test]
    fn pushes_that_the_driver_comes_between_or_that_take_their_time_all_look() {
        let time_ns = Cell::new(0);
        let commands = CommandQueue::new();
        for close_ns in [600, CLOSE_NS] {
            for push in 0..20 {
                time_ns.set(time_ns.get() + close_ns);
                let _ = commands.push_stamped(|| time_ns.get(), |stamp| assert_eq!(stamp, time_ns.get()));
                if close_ns < CLOSE_NS || push == 0 {
                    commands.take_all(&mut Vec::new());
                }
            }
        }
    }

    #[test]
    fn only_the_first_push_to_a_sleeping_driver_rings() {
        let commands = CommandQueue::new();
        assert_eq!(commands.push(1), After::Ring);
        assert_eq!(commands.push(2), After::Nothing);
        assert!(!commands.fall_asleep());
        let mut taken = Vec::new();
        commands.take_all(&mut taken);
        assert_eq!(taken, [1, 2]);
        assert!(commands.fall_asleep());
        assert_eq!(commands.push(3), After::Ring);
    }

    #[test]
    fn an_awake_driver_is_not_rung_for() {
        let commands = CommandQueue::new();
        commands.wake_up();
        assert_eq!(commands.push(1), After::Nothing);
    }
}
