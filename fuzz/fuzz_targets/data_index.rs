//! Indexes of shards.
#![no_main]

#[path = "../../crates/data/tests/corpus/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bodies::index(bytes);
});
