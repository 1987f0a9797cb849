//! Where ranks meet before they know each other: every rank brings one message and takes home the messages of all.
//!
//! A [`Server`] hosts the meeting, in rank 0 or in the parent of all ranks; [`Rendezvous::exchange`] is a rank's visit. Both sides
//! prove that they hold the job's key before anything is decoded (`proof`). Everything has a limit: messages of
//! [`MOST_BLOB_BYTES`], a time for each visit, a number of connections. A visit ends with all messages or with an error that names who
//! did not come. What the messages say is not decided here.
//!
//! The two messages inside, numbers little-endian:
//!
//! ```text
//! arrival:  u32 rank · u32 ranks · u64 patience in ms · the rank's message
//! reply:    0 · for each rank: u32 length, message
//!           1 · for each missing rank: u32 rank
//!           2 · why the rank is turned away, UTF-8
//! ```

mod address;
mod part;
mod proof;
mod server;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::Key;

pub use address::Address;
pub use part::{Event, Verdict, VerdictKind};
pub use server::Server;

use crate::error::{Error, Result};
use proof::{Side, prove};

/// Longest message of a rank: room for hundreds of addresses.
pub const MOST_BLOB_BYTES: usize = 64 << 10;

/// Pauses between attempts to connect grow from the first to the second: the host of the meeting may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// The server answers at a rank's deadline; the answer gets this long to arrive.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The longest visit that makes sense; also keeps a damaged number from overflowing a clock.
const MOST_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A rank's way to the meeting.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    address: Address,
    ranks: usize,
    key: Key,
}

impl Rendezvous {
    /// The meeting of `ranks` ranks at `address`, for holders of `key`.
    pub fn new(address: Address, ranks: usize, key: Key) -> Rendezvous {
        Rendezvous { address, ranks, key }
    }

    /// Brings this rank's message and waits, until the deadline, for those of all ranks. They come in rank order.
    pub fn exchange(&self, rank: Rank, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        if blob.len() > MOST_BLOB_BYTES {
            return Err(Error::TooLong { bytes: blob.len(), most: MOST_BLOB_BYTES });
        }
        let began = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match self.visit(rank, blob, left) {
                Ok(reply) => return self.understand(reply, began.elapsed()),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::Untrusted { at: self.address.to_string() });
                }
                Err(error) => error,
            };
            if Instant::now() + pause >= deadline {
                return Err(Error::Unreachable {
                    address: self.address.to_string(),
                    waited: began.elapsed(),
                    source: error,
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// One attempt. Whatever breaks it off is worth another one, except a lack of trust.
    fn visit(&self, rank: Rank, blob: &[u8], left: Duration) -> io::Result<Vec<u8>> {
        let patience = left.min(MOST_PATIENCE);
        let stream = self.address.connect(patience)?;
        stream.set_patience(patience + ANSWER_PATIENCE)?;
        let mut proved = prove(stream, Side::Rank, &self.key)?;
        let arrival = Arrival { rank: rank.index(), ranks: self.ranks, patience, blob: blob.to_vec() };
        proved.send(&arrival.encode())?;
        proved.receive(1 + self.ranks * (MOST_BLOB_BYTES + 4))
    }

    fn understand(&self, reply: Vec<u8>, waited: Duration) -> Result<Vec<Vec<u8>>> {
        match Reply::decode(&reply) {
            Some(Reply::Everybody(blobs)) if blobs.len() == self.ranks => {
                Ok(Arc::try_unwrap(blobs).unwrap_or_else(|shared| shared.to_vec()))
            }
            Some(Reply::Missing(ranks)) => Err(Error::Missing { ranks, waited }),
            Some(Reply::Refused(why)) => Err(Error::Refused { why }),
            _ => {
                Err(Error::Refused { why: "its answer has another form: install the same farandole everywhere".into() })
            }
        }
    }
}

/// What a rank says when it comes.
#[derive(Debug, PartialEq)]
struct Arrival {
    rank: usize,
    ranks: usize,
    patience: Duration,
    blob: Vec<u8>,
}

impl Arrival {
    const HEAD_BYTES: usize = 16;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Arrival::HEAD_BYTES + self.blob.len());
        bytes.extend((self.rank as u32).to_le_bytes());
        bytes.extend((self.ranks as u32).to_le_bytes());
        bytes.extend((self.patience.as_millis() as u64).to_le_bytes());
        bytes.extend(&self.blob);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Arrival> {
        let (rank, rest) = bytes.split_first_chunk()?;
        let (ranks, rest) = rest.split_first_chunk()?;
        let (patience_ms, blob) = rest.split_first_chunk()?;
        Some(Arrival {
            rank: u32::from_le_bytes(*rank) as usize,
            ranks: u32::from_le_bytes(*ranks) as usize,
            patience: Duration::from_millis(u64::from_le_bytes(*patience_ms)).min(MOST_PATIENCE),
            blob: blob.to_vec(),
        })
    }
}

/// What the server answers.
#[derive(Debug, PartialEq)]
enum Reply {
    /// The messages of all ranks.
    Everybody(Arc<Vec<Vec<u8>>>),
    /// Who was not there at this rank's deadline.
    Missing(Vec<Rank>),
    /// Why this rank cannot take part.
    Refused(String),
}

impl Reply {
    fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Everybody(blobs) => {
                let mut bytes = vec![0];
                for blob in blobs.iter() {
                    bytes.extend((blob.len() as u32).to_le_bytes());
                    bytes.extend(blob);
                }
                bytes
            }
            Reply::Missing(ranks) => {
                std::iter::once(1).chain(ranks.iter().flat_map(|rank| rank.0.to_le_bytes())).collect()
            }
            Reply::Refused(why) => [&[2], why.as_bytes()].concat(),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Reply> {
        let (kind, mut rest) = bytes.split_first()?;
        match kind {
            0 => {
                let mut blobs = Vec::new();
                while !rest.is_empty() {
                    let (length, behind) = rest.split_first_chunk()?;
                    let (blob, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                    blobs.push(blob.to_vec());
                    rest = behind;
                }
                Some(Reply::Everybody(Arc::new(blobs)))
            }
            1 => {
                let (ranks, rest) = rest.as_chunks::<4>();
                rest.is_empty()
                    .then(|| Reply::Missing(ranks.iter().map(|rank| Rank(u32::from_le_bytes(*rank))).collect()))
            }
            2 => String::from_utf8(rest.to_vec()).ok().map(Reply::Refused),
            _ => None,
        }
    }
}

/// What must hold for any bytes that are taken for a message of a rendezvous. The fuzzer calls it, and a test with the
/// fuzzer's seeds. Nothing but the patience, which is cut, may change on the way.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_message(bytes: &[u8]) {
    if let Some(arrival) = Arrival::decode(bytes) {
        let again = arrival.encode();
        assert_eq!((&again[..8], &again[16..]), (&bytes[..8], &bytes[16..]), "an arrival keeps what it says");
        assert_eq!(Arrival::decode(&again), Some(arrival), "an arrival survives its own encoding");
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(reply.encode(), bytes, "a reply has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn messages_of_the_corpus_decode_or_are_refused() {
        let everybody = Reply::Everybody(Arc::new(vec![vec![], vec![1], vec![2; 300]]));
        let arrival = Arrival { rank: 3, ranks: 5, patience: Duration::from_millis(1500), blob: vec![1, 2, 3] };
        let made = [
            ("arrival", arrival.encode()),
            ("everybody", everybody.encode()),
            ("missing", Reply::Missing(vec![Rank(1), Rank(70_000)]).encode()),
            ("refused", Reply::Refused("wegen Überfüllung".into()).encode()),
            ("endless_patience", [&[0; 8][..], &[255; 8]].concat()),
            ("longer_than_it_is", vec![0, 255, 255, 255, 255, 1]),
            ("half_a_rank", vec![1, 0, 0]),
            ("no_text", vec![2, 255]),
            ("empty", Vec::new()),
        ];
        seeds::replay("rendezvous", &made, check_any_message);
    }

    #[test]
    fn messages_survive_the_wire() {
        let arrival = Arrival { rank: 3, ranks: 5, patience: Duration::from_millis(1500), blob: vec![1, 2, 3] };
        assert_eq!(Arrival::decode(&arrival.encode()), Some(arrival));
        for reply in [
            Reply::Everybody(Arc::new(vec![vec![], vec![1], vec![2; 300]])),
            Reply::Missing(vec![Rank(1), Rank(70_000)]),
            Reply::Refused("wegen Überfüllung".into()),
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn damaged_messages_are_nothing() {
        assert_eq!(Arrival::decode(&[0; 15]), None);
        for bytes in [&[][..], &[3], &[0, 1], &[0, 255, 255, 255, 255, 1], &[1, 0, 0], &[2, 255]] {
            assert_eq!(Reply::decode(bytes), None, "{bytes:?}");
        }
    }
}
