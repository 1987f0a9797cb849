//! The clock of records: the monotonic clock of the host, as it is.
//!
//! All processes of one host read the same clock, so their records need no alignment among each other; and nobody sets
//! it. It counts from an arbitrary moment, so a file also says which time of day one moment was (`anchor`), and which
//! clock it was (`id`). Between two readings of the kernel's clock a thread extrapolates from the time stamp counter
//! (`tsc_clock`), because nothing here is done more often than reading the time.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::tsc_clock::TscClock;

thread_local! {
    static CLOCK: TscClock = const { TscClock::new() };
}

/// Now, in nanoseconds of this host's clock.
#[inline]
pub fn now_ns() -> u64 {
    CLOCK.with(|clock| clock.now_ns(kernel_ns))
}

/// The clock itself.
fn kernel_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One moment on this clock and in nanoseconds since 1970.
pub(crate) fn anchor() -> (u64, u64) {
    // A thread may be interrupted between the two clocks, so the reading with the shortest time in between counts.
    let read = || {
        let before = kernel_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let after = kernel_ns();
        (after - before, before + (after - before) / 2, unix)
    };
    let (_, moment, unix) = (0..5).map(|_| read()).min().expect("invariant: five readings were taken");
    (moment, unix)
}

/// Identifies the clock of this host: the boot id of the kernel. Empty where there is none.
pub(crate) fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farandole_testing::Deadline;

    use super::*;

    #[test]
    fn a_thread_s_watch_says_what_the_clock_says() {
        let end = Deadline::after(Duration::from_millis(200));
        let (mut last_ns, mut looks, mut off) = (0, 0, 0);
        while !end.is_over() {
            let (before_ns, time_ns, after_ns) = (kernel_ns(), now_ns(), kernel_ns());
            assert!(time_ns >= last_ns, "it never goes back");
            // Other threads may run in between, but not always.
            let allowed = 5000;
            off += u32::from(time_ns + allowed < before_ns || time_ns > after_ns + allowed);
            (last_ns, looks) = (time_ns, looks + 1);
        }
        assert_eq!(off, 0, "of {looks} looks so many were wrong by five microseconds and more");
    }

    #[test]
    fn the_anchor_is_now_on_both_clocks() {
        let (moment, unix) = anchor();
        // Others may run between any two looks.
        let before = now_ns() - moment;
        let unix_now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let after = now_ns() - moment;
        let allowed = 50_000_000;
        let expected = unix + before - allowed..=unix + after + allowed;
        assert!(expected.contains(&unix_now), "the two clocks run alike for a moment");
    }
}
