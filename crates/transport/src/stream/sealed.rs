//! A connection whose bytes are encrypted and authenticated.
//!
//! The stream is cut into records: `u32 length of the plaintext · ciphertext · 16-byte seal`, at most 64 KiB of
//! plaintext each. The cipher is AES-256-GCM; each direction of each connection has a key of its own, derived from the
//! job's key and the random numbers of both hellos, so a record number (counted from zero, never sent) can serve as
//! nonce without ever repeating under one key. The length is authenticated with the record. A record that was changed,
//! dropped, repeated or swapped does not open, and the connection fails with [`ErrorKind::InvalidData`].
//!
//! There is no forward secrecy: whoever learns the job's key can read what was recorded before. Keys live as long as a
//! job.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};

use super::Connection;

/// Plaintext of one record. Larger records would leave the cache between decryption and use, smaller ones spend more on
/// seals.
const RECORD_BYTES: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;
const SEAL_BYTES: usize = 16;
const WHOLE_BYTES: usize = LENGTH_BYTES + RECORD_BYTES + SEAL_BYTES;

/// One key for each direction of a connection, as this side sees them.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKeys {
    /// For what this side sends.
    pub sending: [u8; 32],
    /// For what this side receives.
    pub receiving: [u8; 32],
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(secret)")
    }
}

/// A connection with encryption on top.
pub struct Sealed<C> {
    connection: C,
    sealer: Cipher,
    opener: Cipher,
    /// A sealed record on its way out.
    outbox: Vec<u8>,
    left: usize,
    /// A record on its way in; once open, its plaintext.
    inbox: Vec<u8>,
    filled: usize,
    /// The part of the inbox that is open plaintext and has not been read.
    open: std::ops::Range<usize>,
}

struct Cipher {
    key: Aes256Gcm,
    /// Number of the next record.
    record: u64,
}

impl Cipher {
    fn new(key: &[u8; 32]) -> Cipher {
        Cipher { key: Aes256Gcm::new(key.into()), record: 0 }
    }

    fn next_nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.record.to_le_bytes());
        self.record = self.record.checked_add(1).expect("2^64 records do not fit into a lifetime");
        nonce
    }
}

impl<C: Connection> Sealed<C> {
    /// Encrypts everything that goes over this connection from here on.
    pub fn new(connection: C, keys: &SessionKeys) -> Sealed<C> {
        Sealed {
            connection,
            sealer: Cipher::new(&keys.sending),
            opener: Cipher::new(&keys.receiving),
            outbox: Vec::new(),
            left: 0,
            inbox: Vec::new(),
            filled: 0,
            open: 0..0,
        }
    }

    fn seal<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) -> usize {
        self.outbox.clear();
        self.left = 0;
        self.outbox.resize(LENGTH_BYTES, 0);
        for slice in slices {
            let room = LENGTH_BYTES + RECORD_BYTES - self.outbox.len();
            self.outbox.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        let count = self.outbox.len() - LENGTH_BYTES;
        if count > 0 {
            let (length, body) = self.outbox.split_at_mut(LENGTH_BYTES);
            length.copy_from_slice(&(count as u32).to_le_bytes());
            let nonce = self.sealer.next_nonce();
            let seal = self
                .sealer
                .key
                .encrypt_inout_detached(&Nonce::from(nonce), length, body.into())
                .expect("a record is far below the limit of the cipher");
            self.outbox.extend_from_slice(&seal);
        } else {
            self.outbox.clear();
        }
        count
    }

    /// Reads until a whole record is there, and opens it. `Ok(false)` means that the peer has closed between records.
    fn open_next(&mut self) -> io::Result<bool> {
        if self.inbox.is_empty() {
            self.inbox.resize(WHOLE_BYTES, 0);
        }
        loop {
            let wanted = match self.inbox[..self.filled].first_chunk::<LENGTH_BYTES>() {
                None => LENGTH_BYTES,
                Some(length) => {
                    let length = u32::from_le_bytes(*length) as usize;
                    if length == 0 || length > RECORD_BYTES {
                        return Err(broken_seal(self.opener.record));
                    }
                    LENGTH_BYTES + length + SEAL_BYTES
                }
            };
            if self.filled == wanted && wanted > LENGTH_BYTES {
                break;
            }
            match self.connection.read(&mut self.inbox[self.filled..wanted])? {
                0 if self.filled == 0 => return Ok(false),
                0 => return Err(super::closed()),
                count => self.filled += count,
            }
        }
        let record = self.opener.record;
        let nonce = self.opener.next_nonce();
        let (length, rest) = self.inbox[..self.filled].split_at_mut(LENGTH_BYTES);
        let (body, seal) = rest.split_at_mut(rest.len() - SEAL_BYTES);
        let seal = Tag::try_from(&*seal).expect("split to the length of a seal");
        let end = LENGTH_BYTES + body.len();
        self.opener
            .key
            .decrypt_inout_detached(&Nonce::from(nonce), length, body.into(), &seal)
            .map_err(|_| broken_seal(record))?;
        self.open = LENGTH_BYTES..end;
        self.filled = 0;
        Ok(true)
    }
}

fn broken_seal(record: u64) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the seal of record {record} is broken"))
}

impl<C: Connection> Read for Sealed<C> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.open.is_empty() && !self.open_next()? {
            return Ok(0);
        }
        let count = target.len().min(self.open.len());
        target[..count].copy_from_slice(&self.inbox[self.open.start..][..count]);
        self.open.start += count;
        Ok(count)
    }
}

impl<C: Connection> Write for Sealed<C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let count = self.seal(slices.iter().map(|slice| &**slice));
        // The record counts as taken; whether it has left is what `flush` says.
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.left < self.outbox.len() {
            self.left += self.connection.write(&self.outbox[self.left..])?;
        }
        self.connection.flush()
    }
}

impl<C: fmt::Debug> fmt::Debug for Sealed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("connection", &self.connection).finish_non_exhaustive()
    }
}
