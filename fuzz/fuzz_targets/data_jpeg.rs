//! Encoded images: JPEG, by our own decoder and by `zune-jpeg`; PNG and PNM.
#![no_main]

#[path = "../../crates/data/tests/corpus/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bodies::jpeg(bytes);
});
