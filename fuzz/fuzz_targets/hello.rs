//! The first bytes of a stranger.
#![no_main]

#[path = "../../crates/transport/tests/corpus/hello.rs"]
mod hello;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hello::check(bytes));
