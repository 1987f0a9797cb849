//! What a launcher and its agents tell each other, and the first bytes of an agent.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::launch::message::check_any_message(bytes);
}

/// Without the fuzzer's flag the messages are nobody's business; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
