//! The processor's time stamp counter, the only unsafe code of this crate.
//!
//! Reading it takes a third of the time of the kernel's clock. It counts ticks and nothing else;
//! [`tsc_clock`](crate::tsc_clock) turns ticks into times.
//!
//! What is deliberately not here: other architectures. Where there is no such counter, or the kernel does not trust it,
//! the kernel's clock is used.

#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Clock sources of the kernel that are based on this counter. A kernel that has chosen one of them has found that the
/// counter runs at one speed on all cores and does not stop.
const BASED_ON_TSC: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// Whether the counter may be used.
pub(crate) fn is_trusted() -> bool {
    static TRUSTED: OnceLock<bool> = OnceLock::new();
    *TRUSTED.get_or_init(|| {
        let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        cfg!(all(target_arch = "x86_64", not(miri))) && clock.is_ok_and(|clock| BASED_ON_TSC.contains(&clock.trim()))
    })
}

/// The counter now; meaningless where it is not trusted.
#[inline]
pub(crate) fn read() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction exists on every processor of this kind, touches no memory, and systems that forbid it to
    // programs would have to give up the clocks that `is_trusted` asks for.
    let count = unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let count = 0;
    count
}
