//! A file of measured tables.
#![no_main]

#[path = "../../crates/plan/tests/corpus/table.rs"]
mod table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| table::check(bytes));
