//! What must hold for any bytes that are taken for a sample of a rank.

use farandole_trace::live::LiveSample;

/// A sample has one encoding.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(sample) = LiveSample::decode(bytes) {
        assert_eq!(sample.encode(), bytes, "a sample has one encoding");
    }
}
