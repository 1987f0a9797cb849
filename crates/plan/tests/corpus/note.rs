//! What must hold for any bytes that are taken for a note about a message between two ranks.

use farandole_plan::p2p::Note;

/// What decodes has exactly these bytes as its encoding, before those that follow.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok((note, body)) = Note::decode(bytes) {
        let mut encoded = Vec::with_capacity(bytes.len());
        note.encode(&mut encoded);
        encoded.extend_from_slice(body);
        assert_eq!(encoded, bytes, "a note has one encoding");
    }
}
