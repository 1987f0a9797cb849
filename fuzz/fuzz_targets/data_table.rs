//! Tables of labels in a folder of images.
#![no_main]

#[path = "../../crates/data/tests/corpus/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bodies::table(bytes);
});
