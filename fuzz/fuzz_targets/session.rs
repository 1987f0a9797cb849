//! What comes to either side of a channel, before and after they know each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::channel::check_any_session(bytes);
}

/// Without the fuzzer's flag predictable sessions do not exist; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
