//! A conversation with a member that follows no protocol.
#![no_main]

#[path = "../../crates/plan/tests/corpus/agree.rs"]
mod agree;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agree::check(bytes));
