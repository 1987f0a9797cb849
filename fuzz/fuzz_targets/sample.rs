//! What a rank tells of itself while it runs.
#![no_main]

#[path = "../../crates/trace/tests/corpus/sample.rs"]
mod sample;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sample::check(bytes));
