//! How both sides of a rendezvous make sure of each other, and how messages travel afterwards.
//!
//! ```text
//! rank                                        server
//!     magic · nonce  ──────────────────────────▶
//!     ◀───────────────────  nonce · proof(server)
//!     proof(rank)  ────────────────────────────▶
//! ```
//!
//! A proof is BLAKE3 over the prover's role and both nonces, keyed with a key that is derived from the job's. Nonces are fresh, so
//! proofs cannot be replayed; roles differ, so they cannot be mirrored. Until the proof has been checked only these
//! fixed lengths are read and nothing is decoded. Afterwards every message is
//!
//! ```text
//! u32 length · body · 32-byte code over direction, count and body, keyed for this connection
//! ```
//!
//! so that a message can neither be altered nor be moved to another place. Bodies are not encrypted: addresses of ranks are no
//! secret to whoever sees the ranks connect.

use std::io::{self, Read, Write};

use farandole_transport::Key;

/// First bytes on every connection; the last one is the version.
const MAGIC: [u8; 8] = *b"FRNDMEE\x01";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// Which side of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Rank,
    Server,
}

impl Side {
    fn word(self) -> &'static [u8] {
        match self {
            Side::Rank => b"rank",
            Side::Server => b"server",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Rank => Side::Server,
            Side::Server => Side::Rank,
        }
    }
}

/// A connection whose two sides have proved themselves.
pub(super) struct Proved<S> {
    pub(super) stream: S,
    side: Side,
    key: [u8; 32],
    sent: u64,
    received: u64,
}

/// Shakes hands. An error of kind `PermissionDenied` means that the other side does not hold the key.
pub(super) fn prove<S: Read + Write>(mut stream: S, side: Side, key: &Key) -> io::Result<Proved<S>> {
    let key = blake3::derive_key("farandole 2026 rendezvous", key.to_hex().as_bytes());
    let ours = random_nonce()?;
    let nonces = match side {
        Side::Rank => {
            stream.write_all(&[&MAGIC[..], &ours].concat())?;
            let theirs: [u8; NONCE_BYTES] = read(&mut stream)?;
            [ours, theirs].concat()
        }
        Side::Server => {
            if read(&mut stream)? != MAGIC {
                return Err(untrusted());
            }
            let theirs: [u8; NONCE_BYTES] = read(&mut stream)?;
            [theirs, ours].concat()
        }
    };
    let proof =
        |prover: Side| *blake3::Hasher::new_keyed(&key).update(prover.word()).update(&nonces).finalize().as_bytes();
    match side {
        Side::Rank => {
            check(&mut stream, proof(Side::Server))?;
            stream.write_all(&proof(Side::Rank))?;
        }
        Side::Server => {
            stream.write_all(&[ours, proof(Side::Server)].concat())?;
            check(&mut stream, proof(Side::Rank))?;
        }
    }
    let connection_key = *blake3::keyed_hash(&key, &nonces).as_bytes();
    Ok(Proved { stream, side, key: connection_key, sent: 0, received: 0 })
}

impl<S: Read + Write> Proved<S> {
    pub(super) fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let code = self.code(self.side, self.sent, body);
        self.sent += 1;
        self.stream.write_all(&[&length.to_le_bytes()[..], body, code.as_bytes()].concat())
    }

    /// The next message, of at most `most` bytes.
    pub(super) fn receive(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let length = u32::from_le_bytes(read(&mut self.stream)?) as usize;
        if length > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let code: [u8; PROOF_BYTES] = read(&mut self.stream)?;
        // Comparing hashes takes the same time wherever they differ.
        if self.code(self.side.other(), self.received, &body) != blake3::Hash::from(code) {
            return Err(untrusted());
        }
        self.received += 1;
        Ok(body)
    }

    fn code(&self, sender: Side, count: u64, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(sender.word()).update(&count.to_le_bytes()).update(body);
        hasher.finalize()
    }
}

fn check(stream: &mut impl Read, expected: [u8; PROOF_BYTES]) -> io::Result<()> {
    let proof: [u8; PROOF_BYTES] = read(stream)?;
    if blake3::Hash::from(proof) == blake3::Hash::from(expected) { Ok(()) } else { Err(untrusted()) }
}

fn read<const COUNT: usize>(stream: &mut impl Read) -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn untrusted() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "does not hold this job's key")
}

fn random_nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
