//! Where a rank can be reached, as a rendezvous hands it on.
#![no_main]

#[path = "../../crates/transport/tests/corpus/contact.rs"]
mod contact;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| contact::check(bytes));
