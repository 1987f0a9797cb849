//! What ranks tell each other to agree.
#![no_main]

#[path = "../../crates/plan/tests/corpus/message.rs"]
mod message;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| message::check(bytes));
