//! What must hold for any bytes that are taken for a message.

use farandole_plan::message::Message;

/// What decodes has exactly these bytes as its encoding.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let mut encoded = Vec::with_capacity(bytes.len());
        message.encode(&mut encoded);
        assert_eq!(encoded, bytes, "a message has one encoding");
    }
}
