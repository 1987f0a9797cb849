//! The trace file of a rank.
#![no_main]

#[path = "../../crates/trace/tests/corpus/trace.rs"]
mod trace;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trace::check(bytes));
