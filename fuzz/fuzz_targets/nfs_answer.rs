//! What a portmapper, MOUNT and NFS answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_storage::check_any_answer(bytes);
}

/// Without the fuzzer's flag answers are nobody's business; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
