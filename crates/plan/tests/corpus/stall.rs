//! What must hold for any bytes that are taken for a word about a stall. The fuzzer calls it, and a test with the
//! fuzzer's seeds.

use farandole_plan::stall::Word;

/// Bytes are a word in exactly one way, or none.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(word) = Word::decode(bytes) {
        let mut again = Vec::new();
        word.encode(&mut again);
        assert_eq!(again, bytes, "a word has one encoding");
    }
}
