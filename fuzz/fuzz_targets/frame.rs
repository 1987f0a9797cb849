//! Bytes around a payload: header and trailer of a frame.
#![no_main]

#[path = "../../crates/transport/tests/corpus/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frame::check(bytes));
