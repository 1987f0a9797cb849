//! What has become of a rank, a host or the launcher, as it travels.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::failure_notice::check_any_notice(bytes);
}

/// Without the fuzzer's flag there is nothing to check; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
