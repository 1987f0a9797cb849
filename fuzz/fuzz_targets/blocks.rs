//! What a rank that has a block of a data set and one that wants it tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::blocks::check_any_word(bytes);
}

/// Without the fuzzer's flag the messages are nobody's business; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
