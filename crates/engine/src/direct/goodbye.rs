//! The one message of direct collectives: "I leave; this was my last operation, and this is why".

use farandole_plan::{Rank, RankDeparture};
use farandole_transport::{Error, Result};

/// The first byte, so that a message of another kind is noticed.
const GOODBYE: u8 = b'G';

/// The message of a rank that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goodbye {
    /// Its last operation.
    pub(super) last_operation: u64,
    /// Why it leaves.
    pub(super) departure: RankDeparture,
}

impl Goodbye {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut message = vec![GOODBYE];
        message.extend_from_slice(&self.last_operation.to_le_bytes());
        self.departure.encode(&mut message);
        message
    }

    /// What this peer has sent.
    pub(super) fn decode(peer: Rank, message: &[u8]) -> Result<Goodbye> {
        let read = || {
            let (&GOODBYE, rest) = message.split_first()? else { return None };
            let (last_operation, departure) = rest.split_first_chunk()?;
            let departure = RankDeparture::decode(departure).ok()?;
            Some(Goodbye { last_operation: u64::from_le_bytes(*last_operation), departure })
        };
        let is_its_own = |goodbye: &Goodbye| goodbye.departure.rank == peer;
        read()
            .filter(is_its_own)
            .ok_or_else(|| Error::Garbled { peer, what: format!("a message of {} bytes is no goodbye", message.len()) })
    }
}

#[cfg(test)]
mod tests {
    use farandole_plan::{Exit, RankProgress};

    use super::*;

    #[test]
    fn a_goodbye_survives_and_anything_else_is_noticed() {
        let exit = Exit { code: Some(0), cause: None };
        let departure = RankDeparture { rank: Rank(1), exit, progress: RankProgress::default() };
        let goodbye = Goodbye { last_operation: 77, departure };
        let bytes = goodbye.encode();
        assert_eq!(Goodbye::decode(Rank(1), &bytes).unwrap(), goodbye);
        assert!(Goodbye::decode(Rank(2), &bytes).is_err(), "a rank speaks for itself");
        for garbage in [&b""[..], b"G", b"Gxxxxxxxxx", b"Hxxxxxxxx", &bytes[..bytes.len() - 1]] {
            assert!(Goodbye::decode(Rank(1), garbage).is_err());
        }
    }
}
