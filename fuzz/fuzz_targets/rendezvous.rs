//! What ranks and the server of a rendezvous tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

#[cfg(fuzzing)]
fn check(bytes: &[u8]) {
    farandole_cluster::rendezvous::check_any_message(bytes);
}

/// Without the fuzzer's flag the messages are nobody's business; this keeps the target compiling for linters.
#[cfg(not(fuzzing))]
fn check(_bytes: &[u8]) {}
