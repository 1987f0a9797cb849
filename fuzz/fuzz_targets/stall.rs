//! What ranks tell each other about a stall.
#![no_main]

#[path = "../../crates/plan/tests/corpus/stall.rs"]
mod stall;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stall::check(bytes));
