//! The seal of a checkpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::publish::check_any_content(bytes);
}

/// Without the fuzzer's flag the function does not exist; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
