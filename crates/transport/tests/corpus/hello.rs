//! What must hold for any bytes that a stranger sends first.

use farandole_transport::hello::{HELLO_BYTES, Hello};

/// Decodes the bytes as they are and, because few strangers guess the first ten bytes, once more behind the right ones.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() {
        check_hello(bytes);
    }
    let mut completed = preamble();
    for (place, byte) in completed[10..].iter_mut().zip(bytes) {
        *place = *byte;
    }
    check_hello(&completed);
}

fn check_hello(bytes: &[u8; HELLO_BYTES]) {
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(&hello.encode(), bytes, "a hello has one encoding");
    }
}

/// Magic and version as we write them, then zeros.
fn preamble() -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(b"FARANDOL");
    bytes[8..10].copy_from_slice(&farandole_transport::frame::PROTOCOL_VERSION.to_le_bytes());
    bytes
}
