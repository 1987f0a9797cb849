//! A clock that extrapolates from the time stamp counter between two readings of the kernel's clock.
//!
//! The clock keeps one point in time on both and the measured length of a tick. A reading takes the counter and adds
//! what has passed; after a millisecond the clock is synchronised with the kernel's again. A reading costs a third of
//! the kernel's clock (13 ns instead of 33 on a machine where that was measured), and its error is at most what the
//! kernel's clock is corrected by in a millisecond: some nanoseconds.
//!
//! The length of a tick is measured between a first synchronisation and a later one. Until there is a millisecond
//! between them, and whenever a measurement contradicts the one before (the machine slept, or was migrated), the
//! kernel's clock is read instead.
//!
//! **Invariant:** the times of one clock never go backwards. Each thread has its own, so nothing is shared; the clocks
//! of two threads differ by at most their errors.

use std::cell::Cell;

use crate::tsc;

/// How long a synchronisation is valid.
const RESYNC_AFTER_NS: u64 = 1_000_000;

/// A longer calibration is not more precise: reading both clocks has an error of some ten nanoseconds, which is less
/// than one part in ten millions of this.
const CALIBRATION_NS: u64 = 500_000_000;

/// A reading of the kernel's clock that takes so many ticks was interrupted: it takes a hundred, and this is one to
/// four microseconds.
const INTERRUPTED_TICKS: u64 = 4096;

/// The length of a tick is in nanoseconds times two to the power of this.
const RATE_BITS: u32 = 32;

/// The same moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct SyncPoint {
    tick: u64,
    time_ns: u64,
}

/// See the module's text. The fields are read in place: taking the whole out and putting it back would cost as much as
/// the reading.
#[derive(Debug)]
pub(crate) struct TscClock {
    synced: Cell<SyncPoint>,
    /// Ticks after the last synchronisation for which a reading need not ask the kernel. Zero at first.
    valid_ticks: Cell<u64>,
    /// The length of a tick, or zero while it is not known.
    rate: Cell<u64>,
    /// The last reading.
    last_ns: Cell<u64>,
    /// Where the calibration began; `None` before the first reading.
    calibration_start: Cell<Option<SyncPoint>>,
    /// Whether the rate comes from a calibration of full length.
    calibrated: Cell<bool>,
}

impl TscClock {
    /// A clock that was never synchronised.
    pub(crate) const fn new() -> TscClock {
        TscClock {
            synced: Cell::new(SyncPoint { tick: 0, time_ns: 0 }),
            valid_ticks: Cell::new(0),
            rate: Cell::new(0),
            last_ns: Cell::new(0),
            calibration_start: Cell::new(None),
            calibrated: Cell::new(false),
        }
    }

    /// The time; `kernel` reads the clock to synchronise with.
    #[inline]
    pub(crate) fn now_ns(&self, kernel: impl Fn() -> u64) -> u64 {
        let SyncPoint { tick, time_ns } = self.synced.get();
        let passed = tsc::read().wrapping_sub(tick);
        let time_ns = if passed < self.valid_ticks.get() {
            time_ns + length_ns(passed, self.rate.get())
        } else {
            self.resync(kernel)
        };
        let time_ns = time_ns.max(self.last_ns.get());
        self.last_ns.set(time_ns);
        time_ns
    }

    /// Synchronises with the kernel's clock.
    #[cold]
    #[inline(never)]
    fn resync(&self, kernel: impl Fn() -> u64) -> u64 {
        if !tsc::is_trusted() {
            return kernel();
        }
        let before = tsc::read();
        let time_ns = kernel();
        let between = tsc::read().wrapping_sub(before);
        let now = SyncPoint { tick: before.wrapping_add(between / 2), time_ns };
        self.valid_ticks.set(0);
        // A thread that was interrupted in between does not know which moment it was. The next reading tries again.
        if between < INTERRUPTED_TICKS {
            self.measure(now);
        }
        time_ns
    }

    /// Calibrates with a moment on both clocks.
    fn measure(&self, now: SyncPoint) {
        let calibration_start = self.calibration_start.get().unwrap_or(now);
        self.calibration_start.set(Some(calibration_start));
        let span_ns = now.time_ns.saturating_sub(calibration_start.time_ns);
        if span_ns >= if self.calibrated.get() { CALIBRATION_NS } else { RESYNC_AFTER_NS } {
            let ticks = now.tick.wrapping_sub(calibration_start.tick);
            let rate = (u128::from(span_ns) << RATE_BITS) / u128::from(ticks.max(1));
            let rate = u64::try_from(rate).unwrap_or(0);
            // Clocks are corrected by far less than this.
            if rate == 0 || self.calibrated.get() && rate.abs_diff(self.rate.get()) > self.rate.get() / 1000 {
                return self.recalibrate(now);
            }
            self.rate.set(rate);
            if span_ns >= CALIBRATION_NS {
                self.calibration_start.set(Some(now));
                self.calibrated.set(true);
            }
        }
        if self.rate.get() > 0 {
            self.synced.set(now);
            let valid_ticks = (u128::from(RESYNC_AFTER_NS) << RATE_BITS) / u128::from(self.rate.get());
            self.valid_ticks.set(u64::try_from(valid_ticks).unwrap_or(0));
        }
    }

    /// Discards the calibration.
    fn recalibrate(&self, now: SyncPoint) {
        self.valid_ticks.set(0);
        self.rate.set(0);
        self.calibrated.set(false);
        self.calibration_start.set(Some(now));
    }
}

fn length_ns(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> RATE_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock_after(span_ns: u64, ticks: u64) -> TscClock {
        let clock = TscClock::new();
        clock.measure(SyncPoint { tick: 1000, time_ns: 50 });
        assert_eq!(clock.valid_ticks.get(), 0, "one moment says nothing about the length of a tick");
        clock.measure(SyncPoint { tick: 1000 + ticks, time_ns: 50 + span_ns });
        clock
    }

    #[test]
    fn the_length_of_a_tick_is_measured() {
        let clock = clock_after(2_000_000, 5_000_000);
        assert_eq!(length_ns(1_000_000, clock.rate.get()), 399_999, "0.4 ns, rounded down");
        assert_eq!(clock.valid_ticks.get(), 2_500_000, "a millisecond");
        assert!(!clock.calibrated.get());
        assert_eq!(clock_after(999_999, 2_500_000).rate.get(), 0, "too soon");
    }

    #[test]
    fn a_tick_whose_length_changes_is_measured_anew() {
        let clock = clock_after(CALIBRATION_NS, 1_250_000_000);
        assert!(clock.calibrated.get());
        let SyncPoint { tick, time_ns } = clock.synced.get();
        // The machine slept: the count went on, the clock did not.
        clock.measure(SyncPoint { tick: tick + 90_000_000_000, time_ns: time_ns + CALIBRATION_NS });
        assert_eq!((clock.rate.get(), clock.valid_ticks.get(), clock.calibrated.get()), (0, 0, false));
        let clock = clock_after(CALIBRATION_NS, 1_250_000_000);
        clock.measure(SyncPoint { tick: tick + 1_250_001_000, time_ns: time_ns + CALIBRATION_NS });
        assert!(clock.calibrated.get(), "small corrections are what clocks do");
    }

    #[test]
    fn a_count_that_stands_still_is_of_no_use() {
        assert_eq!(clock_after(u64::MAX / 2, 0).valid_ticks.get(), 0);
    }

    #[test]
    fn a_look_never_goes_back() {
        let clock = TscClock::new();
        assert_eq!(clock.now_ns(|| 700), 700);
        assert_eq!(clock.now_ns(|| 600), 700);
    }
}
