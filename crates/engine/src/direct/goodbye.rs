//! The one message of direct collectives: "I leave; this was my last operation".

use farandole_plan::Rank;
use farandole_transport::{Error, Result};

/// The first byte, so that a message of another kind is noticed.
const GOODBYE: u8 = b'G';

/// The message of a rank whose last operation was this one.
pub(super) fn encode(last_operation: u64) -> [u8; 9] {
    let mut message = [GOODBYE; 9];
    message[1..].copy_from_slice(&last_operation.to_le_bytes());
    message
}

/// The last operation of the peer that sent this.
pub(super) fn decode(peer: Rank, message: &[u8]) -> Result<u64> {
    match message.split_first() {
        Some((&GOODBYE, last)) if last.len() == 8 => {
            Ok(u64::from_le_bytes(last.try_into().expect("eight bytes are eight bytes")))
        }
        _ => Err(Error::Garbled { peer, what: format!("a message of {} bytes is no goodbye", message.len()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goodbye_survives_and_anything_else_is_noticed() {
        assert_eq!(decode(Rank(1), &encode(77)).unwrap(), 77);
        for garbage in [&b""[..], b"G", b"Gxxxxxxxxx", b"Hxxxxxxxx"] {
            assert!(decode(Rank(1), garbage).is_err());
        }
    }
}
