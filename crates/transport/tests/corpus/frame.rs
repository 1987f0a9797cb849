//! What must hold for any bytes that are taken for a frame's header or trailer.

use farandole_transport::frame::{HEADER_BYTES, Header, TRAILER_BYTES, Trailer};

/// Decodes the bytes as they are and, because a random check sum is never right, once more with the check sum mended.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() {
        check_header(bytes);
        let mut mended = *bytes;
        let check = crc32c::crc32c(&mended[..HEADER_BYTES - 4]);
        mended[HEADER_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
        check_header(&mended);
    }
    if let Some(bytes) = bytes.first_chunk::<TRAILER_BYTES>()
        && let Ok(trailer) = Trailer::decode(bytes)
    {
        assert_eq!(Trailer::decode(&trailer.encode()).ok(), Some(trailer), "a trailer survives its own encoding");
    }
}

fn check_header(bytes: &[u8; HEADER_BYTES]) {
    let Ok(header) = Header::decode(bytes) else { return };
    assert_eq!(&header.encode(), bytes, "a header has one encoding");
    let span = header.span();
    assert!(span.start <= span.end && span.end <= header.payload_bytes, "a stripe lies within its payload");
}
