//! The processor's own count: the one thing here that the language calls unsafe.
//!
//! Reading it takes a third of the time that the kernel's clock takes, because nothing is waited for and nothing
//! converted. It says how much time has passed and nothing else; [`watch`](crate::watch) makes times of it.
//!
//! What is deliberately not here: other processors. Where there is no such count, or the kernel does not trust it,
//! [`read`] has no answer and the kernel's clock is asked.

#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Clocks of the kernel that are made of this very count. A kernel that has chosen one of them has found that it runs
/// at one speed on all cores and does not stop; a kernel that has chosen another one may have found the opposite.
const MADE_OF_IT: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// Whether the count may be used.
pub(crate) fn is_trusted() -> bool {
    static TRUSTED: OnceLock<bool> = OnceLock::new();
    *TRUSTED.get_or_init(|| {
        let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        cfg!(all(target_arch = "x86_64", not(miri))) && clock.is_ok_and(|clock| MADE_OF_IT.contains(&clock.trim()))
    })
}

/// The count now; nothing of value where it is not trusted.
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
