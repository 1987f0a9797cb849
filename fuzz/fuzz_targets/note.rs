//! What two ranks tell each other about a message between them.
#![no_main]

#[path = "../../crates/plan/tests/corpus/note.rs"]
mod note;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| note::check(bytes));
