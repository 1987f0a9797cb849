//! One stripe on its way out over one connection.
//!
//! The stripe and what surrounds it form one sequence: header, bytes of the payload, trailer. [`Outgoing`] remembers
//! how much of that sequence the connection has taken, and nothing of the payload itself, which the caller shows again
//! on every call.

use std::io::{self, IoSlice};
use std::ops::Range;

use super::Connection;
use crate::frame::{Checksum, HEADER_BYTES, Header, TRAILER_BYTES, Trailer};

/// With checksums on, so much is hashed and handed to the kernel at a time: it must still be in the cache when the
/// kernel copies it, so it is well below the size of a second-level cache.
const HASH_AHEAD_BYTES: u64 = 256 << 10;

/// What fills the rest of a frame that was given up.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How far a stripe has left.
#[derive(Debug)]
pub(super) struct Outgoing {
    header: [u8; HEADER_BYTES],
    checksum: Checksum,
    /// Where the stripe lies in the payload.
    span: Range<u64>,
    /// Bytes of header, stripe and trailer that the connection has taken.
    taken: u64,
    /// Bytes of the stripe that are in `crc`; never less than what was taken of it.
    hashed: u64,
    crc: u32,
    damaged: Damage,
}

/// Whether the fault injector wants this stripe to arrive damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Damage {
    /// Leave it alone.
    #[default]
    None,
    /// Spoil the checksum if there is one, otherwise the header.
    Wanted,
}

impl Outgoing {
    pub(super) fn new(header: &Header, damaged: Damage) -> Outgoing {
        let mut encoded = header.encode();
        if damaged == Damage::Wanted && header.checksum == Checksum::Off {
            encoded[HEADER_BYTES - 1] ^= 1;
        }
        Outgoing {
            header: encoded,
            checksum: header.checksum,
            span: header.span(),
            taken: 0,
            hashed: 0,
            crc: 0,
            damaged,
        }
    }

    /// Whether the connection has taken anything.
    pub(super) fn has_begun(&self) -> bool {
        self.taken > 0
    }

    /// Bytes of the stripe that the connection has taken.
    pub(super) fn payload_taken(&self) -> u64 {
        self.taken.saturating_sub(HEADER_BYTES as u64).min(self.span.end - self.span.start)
    }

    /// Hands everything on; fails with [`io::ErrorKind::WouldBlock`] when the connection takes no more for now. Without
    /// a payload the frame is void.
    pub(super) fn push(&mut self, connection: &mut impl Connection, payload: Option<&[u8]>) -> io::Result<()> {
        let stripe_bytes = self.span.end - self.span.start;
        let whole = HEADER_BYTES as u64 + stripe_bytes + TRAILER_BYTES as u64;
        while self.taken < whole {
            let header = &self.header[(self.taken as usize).min(HEADER_BYTES)..];
            let from = self.payload_taken();
            let mut to = stripe_bytes;
            if self.checksum == Checksum::Crc32c {
                to = to.min(from + HASH_AHEAD_BYTES);
            }
            let body = match payload {
                Some(payload) => {
                    let stripe = &payload[self.span.start as usize..self.span.end as usize];
                    if self.checksum == Checksum::Crc32c && self.hashed < to {
                        self.crc = crc32c::crc32c_append(self.crc, &stripe[self.hashed as usize..to as usize]);
                        self.hashed = to;
                    }
                    &stripe[from as usize..to as usize]
                }
                None => &ZEROS[..ZEROS.len().min((to - from) as usize)],
            };
            let trailer = match payload {
                Some(_) => Trailer::Whole { crc: self.crc ^ u32::from(self.damaged == Damage::Wanted) },
                None => Trailer::Void,
            };
            let trailer = trailer.encode();
            let past_stripe = self.taken.saturating_sub(HEADER_BYTES as u64 + stripe_bytes) as usize;
            let trailer = if from + body.len() as u64 == stripe_bytes { &trailer[past_stripe..] } else { &[] };
            let taken =
                connection.write_vectored(&[IoSlice::new(header), IoSlice::new(body), IoSlice::new(trailer)])?;
            self.taken += taken as u64;
        }
        connection.flush()
    }
}
