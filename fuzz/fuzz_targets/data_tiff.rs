//! TIFF files of one band.
#![no_main]

#[path = "../../crates/data/tests/corpus/bodies.rs"]
mod bodies;

/// Decoders of others may panic, and their callers catch that. libFuzzer's hook would end the process before.
fn check(bytes: &[u8]) {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    bodies::tiff_band(bytes);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));
