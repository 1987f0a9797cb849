//! A watch: the kernel's clock, carried on for a moment by the processor's count.
//!
//! A watch remembers one moment on both, and how long a tick takes. A look at it reads the count and adds what has
//! passed; after a millisecond it is set anew by the kernel's clock. So a look costs a third of the kernel's clock (13
//! ns instead of 33 on a machine where that was measured), and is wrong by no more than the clock's own corrections in
//! a millisecond: some nanoseconds.
//!
//! How long a tick takes is measured, not asked for: between the moment that the watch began with and a later one.
//! Until there is a millisecond between them, and whenever a measurement contradicts the one before (the machine slept,
//! or was moved to another one), the kernel's clock is looked at instead.
//!
//! **Invariant:** the times of one watch never go backwards. Each thread has its own, so nothing is shared; two threads
//! may differ by what a watch is wrong by.

use std::cell::Cell;

use crate::tick;

/// How long a setting is good for.
const GOOD_FOR_NS: u64 = 1_000_000;

/// From this length on a measurement of the tick is as good as it gets: a look at both clocks is right to some ten
/// nanoseconds, which is one part in ten millions of this.
const MEASURED_WELL_NS: u64 = 500_000_000;

/// A look at the kernel's clock that takes so many ticks was interrupted: it takes a hundred, and this is one to four
/// microseconds.
const INTERRUPTED_TICKS: u64 = 4096;

/// A tick's length is told in nanoseconds times two to the power of this.
const RATE_BITS: u32 = 32;

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    tick: u64,
    time_ns: u64,
}

/// See the module's text. It is looked at in place, field by field: taking it out and putting it back would cost as
/// much as the look.
#[derive(Debug)]
pub(crate) struct Watch {
    set: Cell<Moment>,
    /// Ticks since then up to which a look need not ask the kernel. None at first.
    good_for: Cell<u64>,
    /// The length of a tick, or zero while it is not known.
    rate: Cell<u64>,
    /// What the last look said.
    last_ns: Cell<u64>,
    /// Where the measurement of the tick began; no moment at all before the first look.
    began: Cell<Option<Moment>>,
    /// Whether the rate comes from a measurement of full length.
    settled: Cell<bool>,
}

impl Watch {
    /// A watch that is not set.
    pub(crate) const fn new() -> Watch {
        Watch {
            set: Cell::new(Moment { tick: 0, time_ns: 0 }),
            good_for: Cell::new(0),
            rate: Cell::new(0),
            last_ns: Cell::new(0),
            began: Cell::new(None),
            settled: Cell::new(false),
        }
    }

    /// The time; `kernel` is the clock that sets the watch.
    #[inline]
    pub(crate) fn look(&self, kernel: impl Fn() -> u64) -> u64 {
        let Moment { tick, time_ns } = self.set.get();
        let passed = tick::read().wrapping_sub(tick);
        let time_ns =
            if passed < self.good_for.get() { time_ns + length_ns(passed, self.rate.get()) } else { self.set(kernel) };
        let time_ns = time_ns.max(self.last_ns.get());
        self.last_ns.set(time_ns);
        time_ns
    }

    /// Sets the watch.
    #[cold]
    #[inline(never)]
    fn set(&self, kernel: impl Fn() -> u64) -> u64 {
        if !tick::is_trusted() {
            return kernel();
        }
        let before = tick::read();
        let time_ns = kernel();
        let between = tick::read().wrapping_sub(before);
        let now = Moment { tick: before.wrapping_add(between / 2), time_ns };
        self.good_for.set(0);
        // Whoever was interrupted between the two looks does not know which moment it was; the next look will.
        if between < INTERRUPTED_TICKS {
            self.measure(now);
        }
        time_ns
    }

    /// Learns from a moment.
    fn measure(&self, now: Moment) {
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        let span_ns = now.time_ns.saturating_sub(began.time_ns);
        if span_ns >= if self.settled.get() { MEASURED_WELL_NS } else { GOOD_FOR_NS } {
            let ticks = now.tick.wrapping_sub(began.tick);
            let rate = (u128::from(span_ns) << RATE_BITS) / u128::from(ticks.max(1));
            let rate = u64::try_from(rate).unwrap_or(0);
            // Clocks are corrected by far less than this.
            if rate == 0 || self.settled.get() && rate.abs_diff(self.rate.get()) > self.rate.get() / 1000 {
                return self.begin_anew(now);
            }
            self.rate.set(rate);
            if span_ns >= MEASURED_WELL_NS {
                self.began.set(Some(now));
                self.settled.set(true);
            }
        }
        if self.rate.get() > 0 {
            self.set.set(now);
            let good_for = (u128::from(GOOD_FOR_NS) << RATE_BITS) / u128::from(self.rate.get());
            self.good_for.set(u64::try_from(good_for).unwrap_or(0));
        }
    }

    /// Nothing that was measured holds any more.
    fn begin_anew(&self, now: Moment) {
        self.good_for.set(0);
        self.rate.set(0);
        self.settled.set(false);
        self.began.set(Some(now));
    }
}

fn length_ns(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> RATE_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch_after(span_ns: u64, ticks: u64) -> Watch {
        let watch = Watch::new();
        watch.measure(Moment { tick: 1000, time_ns: 50 });
        assert_eq!(watch.good_for.get(), 0, "one moment says nothing about the length of a tick");
        watch.measure(Moment { tick: 1000 + ticks, time_ns: 50 + span_ns });
        watch
    }

    #[test]
    fn the_length_of_a_tick_is_measured() {
        let watch = watch_after(2_000_000, 5_000_000);
        assert_eq!(length_ns(1_000_000, watch.rate.get()), 399_999, "0.4 ns, rounded down");
        assert_eq!(watch.good_for.get(), 2_500_000, "a millisecond");
        assert!(!watch.settled.get());
        assert_eq!(watch_after(999_999, 2_500_000).rate.get(), 0, "too soon");
    }

    #[test]
    fn a_tick_whose_length_changes_is_measured_anew() {
        let watch = watch_after(MEASURED_WELL_NS, 1_250_000_000);
        assert!(watch.settled.get());
        let Moment { tick, time_ns } = watch.set.get();
        // The machine slept: the count went on, the clock did not.
        watch.measure(Moment { tick: tick + 90_000_000_000, time_ns: time_ns + MEASURED_WELL_NS });
        assert_eq!((watch.rate.get(), watch.good_for.get(), watch.settled.get()), (0, 0, false));
        let watch = watch_after(MEASURED_WELL_NS, 1_250_000_000);
        watch.measure(Moment { tick: tick + 1_250_001_000, time_ns: time_ns + MEASURED_WELL_NS });
        assert!(watch.settled.get(), "small corrections are what clocks do");
    }

    #[test]
    fn a_count_that_stands_still_is_of_no_use() {
        assert_eq!(watch_after(u64::MAX / 2, 0).good_for.get(), 0);
    }

    #[test]
    fn a_look_never_goes_back() {
        let watch = Watch::new();
        assert_eq!(watch.look(|| 700), 700);
        assert_eq!(watch.look(|| 600), 700);
    }
}
