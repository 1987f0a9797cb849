//! The bytes around a payload on a stream: a header before it, a trailer behind it.
//!
//! A frame may travel over several connections at once; then every connection carries one *stripe* of the payload, with
//! a header and a trailer of its own:
//!
//! ```text
//! header, 48 bytes, little-endian           stripe            trailer, 8 bytes
//!  0 magic       u32                        bytes of the       0 mark      u32  whole or void
//!  4 version     u16                        payload            4 crc32c    u32  of the stripe, or zero
//!  6 kind        u8   data
//!  7 flags       u8   bit 0: has a crc32c
//!  8 operation   u64
//! 16 message     u32
//! 20 stripe      u16  this one
//! 22 stripes     u16  how many there are
//! 24 payload     u64  bytes of the whole payload
//! 32 descriptor  u64
//! 40 zero        u32
//! 44 check       u32  crc32c of the 44 bytes before
//! ```
//!
//! Both sides know from their schedules what comes next. Operation and descriptor are in the header so that a
//! difference between them becomes an error with a name. The operation's number carries the generation in its upper
//! bits; frames of older operations are left over from abandoned ones and are skipped. The descriptor is a hash of what
//! the sender takes the operation to be; a different one ends the group with a message that names both sides.
//!
//! The mark exists because a sender may give up an operation in the middle of a frame: it fills the rest with zeros
//! and marks the stripe *void*, so that the stream stays in step and nobody takes the zeros for data.
//!
//! Decoding is total: any bytes give a header or a [`MalformedFrame`] that says what is wrong, and a header that was
//! decoded can be trusted to be consistent in itself. Whether it is the expected one is not decided here.

use std::fmt;
use std::ops::Range;

use crate::link::{PIECE_ALIGN, Tag};

/// Version of everything that this crate says on a wire. Raised by every change that an older peer would misread.
pub const PROTOCOL_VERSION: u16 = 6;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;

/// Bytes of a trailer.
pub const TRAILER_BYTES: usize = 8;

/// "FRDL" as it appears in a dump of the stream.
const MAGIC: u32 = u32::from_le_bytes(*b"FRDL");

const KIND_DATA: u8 = 1;
const FLAG_CRC: u8 = 1;
const MARK_WHOLE: u32 = u32::from_le_bytes(*b"over");
const MARK_VOID: u32 = u32::from_le_bytes(*b"void");

/// What precedes a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which frame this is.
    pub tag: Tag,
    /// Bytes of the whole payload.
    pub payload_bytes: u64,
    /// Which stripe of the payload follows.
    pub stripe: u16,
    /// How many stripes the payload was cut into.
    pub stripes: u16,
    /// Whether the trailer holds a checksum.
    pub checksum: Checksum,
}

/// Whether stripes carry a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The network is trusted to keep bits as they are (TCP has a weak checksum of its own).
    #[default]
    Off,
    /// CRC32C over every stripe.
    Crc32c,
}

/// What follows a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// The stripe is what the sender wanted to send; the checksum counts if the header says so.
    Whole {
        /// CRC32C of the stripe.
        crc: u32,
    },
    /// The sender gave the frame up; the stripe is worthless.
    Void,
}

/// Why bytes are not a header or trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedFrame(String);

impl fmt::Display for MalformedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = KIND_DATA;
        bytes[7] = if self.checksum == Checksum::Crc32c { FLAG_CRC } else { 0 };
        bytes[8..16].copy_from_slice(&self.tag.operation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tag.message.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.stripe.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.stripes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.tag.descriptor.to_le_bytes());
        let check = crc32c::crc32c(&bytes[..44]);
        bytes[44..48].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header that these bytes are, if they are one.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, MalformedFrame> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(MalformedFrame(format!("a frame that starts with {magic:#010x} instead of {MAGIC:#010x}")));
        }
        let check = u32_at(bytes, 44);
        if check != crc32c::crc32c(&bytes[..44]) {
            return Err(MalformedFrame("a frame header with a wrong check".to_owned()));
        }
        let version = u16_at(bytes, 4);
        if version != PROTOCOL_VERSION {
            return Err(MalformedFrame(format!("a frame of protocol version {version}")));
        }
        let (kind, flags) = (bytes[6], bytes[7]);
        if kind != KIND_DATA || flags & !FLAG_CRC != 0 || u32_at(bytes, 40) != 0 {
            return Err(MalformedFrame(format!("a frame of unknown kind {kind} with flags {flags:#04x}")));
        }
        let (stripe, stripes) = (u16_at(bytes, 20), u16_at(bytes, 22));
        if stripe >= stripes {
            return Err(MalformedFrame(format!("a frame with stripe {stripe} of {stripes}")));
        }
        Ok(Header {
            tag: Tag { operation: u64_at(bytes, 8), message: u32_at(bytes, 16), descriptor: u64_at(bytes, 32) },
            payload_bytes: u64_at(bytes, 24),
            stripe,
            stripes,
            checksum: if flags & FLAG_CRC != 0 { Checksum::Crc32c } else { Checksum::Off },
        })
    }

    /// Where in the payload the stripe lies.
    pub fn span(&self) -> Range<u64> {
        stripe_span(self.payload_bytes, self.stripe, self.stripes)
    }
}

impl Trailer {
    /// The trailer as bytes.
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let (mark, crc) = match *self {
            Trailer::Whole { crc } => (MARK_WHOLE, crc),
            Trailer::Void => (MARK_VOID, 0),
        };
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0..4].copy_from_slice(&mark.to_le_bytes());
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The trailer that these bytes are, if they are one.
    pub fn decode(bytes: &[u8; TRAILER_BYTES]) -> Result<Trailer, MalformedFrame> {
        match u32_at(bytes, 0) {
            MARK_WHOLE => Ok(Trailer::Whole { crc: u32_at(bytes, 4) }),
            MARK_VOID => Ok(Trailer::Void),
            other => Err(MalformedFrame(format!("a frame that ends with {other:#010x}"))),
        }
    }
}

/// How a link cuts payloads into stripes. Both sides of a link hold the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Connections of the link.
    pub connections: u16,
    /// Payloads of at least this many bytes travel over all of them.
    pub stripe_from_bytes: u64,
}

impl Cut {
    /// How many stripes a payload has.
    pub fn stripes(&self, payload_bytes: u64) -> u16 {
        if payload_bytes < self.stripe_from_bytes { 1 } else { self.connections }
    }
}

/// Cuts a payload into nearly equal stripes at multiples of [`PIECE_ALIGN`], so that pieces of a stripe keep the
/// alignment that [`crate::Link::recv`] promises. A pure function of its arguments: both sides cut alike without
/// asking.
pub fn stripe_span(payload_bytes: u64, stripe: u16, stripes: u16) -> Range<u64> {
    let align = PIECE_ALIGN as u64;
    let share = payload_bytes.div_ceil(u64::from(stripes)).div_ceil(align).saturating_mul(align);
    let start = share.saturating_mul(u64::from(stripe)).min(payload_bytes);
    start..start.saturating_add(share).min(payload_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(payload_bytes: u64) -> Header {
        let tag = Tag { operation: 1 << 40, message: 7, descriptor: 0xfeed };
        Header { tag, payload_bytes, stripe: 1, stripes: 4, checksum: Checksum::Crc32c }
    }

    #[test]
    fn lengths_beyond_4_gib_survive_and_are_cut_completely() {
        for payload_bytes in [(1u64 << 32) + 1, 5 << 32, u64::MAX] {
            let header = sample(payload_bytes);
            assert_eq!(Header::decode(&header.encode()).unwrap(), header);
            let mut next = 0;
            for stripe in 0..4 {
                let span = stripe_span(payload_bytes, stripe, 4);
                assert_eq!((span.start, span.start % 64), (next, 0));
                next = span.end;
            }
            assert_eq!(next, payload_bytes);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = sample(1000).encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_trailer_says_whether_the_stripe_counts() {
        for trailer in [Trailer::Whole { crc: 0xdead_beef }, Trailer::Void] {
            assert_eq!(Trailer::decode(&trailer.encode()).unwrap(), trailer);
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::array::uniform32(any::<u8>()), fixed in any::<bool>()) {
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            if fixed {
                // Past magic and check, so that the fields behind them are reached.
                header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
                let check = crc32c::crc32c(&header[..44]);
                header[44..48].copy_from_slice(&check.to_le_bytes());
            }
            if let Ok(decoded) = Header::decode(&header) {
                prop_assert_eq!(decoded.encode(), header);
                prop_assert!(decoded.span().end <= decoded.payload_bytes);
            }
            let _ = Trailer::decode(bytes[..8].try_into().expect("eight bytes"));
        }

        #[test]
        fn stripes_cover_the_payload_once(payload_bytes in any::<u64>(), stripes in 1u16..40) {
            let mut next = 0;
            for stripe in 0..stripes {
                let span = stripe_span(payload_bytes, stripe, stripes);
                prop_assert_eq!(span.start, next);
                prop_assert!(span.start.is_multiple_of(PIECE_ALIGN as u64) || span.is_empty());
                next = span.end;
            }
            prop_assert_eq!(next, payload_bytes);
        }
    }
}
