//! What arrives over one connection: headers, stripes, trailers, and the buffer through which they come.
//!
//! Bytes are read either through the *inbox*, so that a small frame costs one system call and pieces can be handed on
//! from there, or, for large stripes whose memory is known, straight into place. Frames of operations that were given
//! up are read and dropped here.

use std::io::{self, IoSliceMut};
use std::ops::Range;

use super::{Connection, closed};
use crate::frame::{Checksum, Cut, HEADER_BYTES, Header, MalformedFrame, TRAILER_BYTES, Trailer};
use crate::link::{PIECE_ALIGN, Tag};

/// Bytes of the inbox. Pieces are folded out of it while the kernel's copy of them is still in the second-level cache;
/// larger is slower for lack of cache, smaller costs more system calls. Pages that are never touched cost nothing.
pub(super) const INBOX_BYTES: usize = 256 << 10;

/// Stripes longer than this are read straight into their place; copying fewer bytes than this out of the inbox is
/// cheaper than the second system call.
const DIRECT_BYTES: u64 = 16 << 10;

/// Where a payload goes.
pub(super) enum Target<'a> {
    /// To somebody who takes pieces.
    Sink(&'a mut dyn FnMut(u64, &[u8])),
    /// Into memory.
    Memory(&'a mut [u8]),
}

/// Which frame is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) tag: Tag,
    pub(super) payload_bytes: u64,
    /// The connection's place among those of its link.
    pub(super) lane: u16,
    /// How payloads are cut on this link.
    pub(super) cut: Cut,
}

/// Why nothing more comes.
pub(super) enum Trouble {
    Io(io::Error),
    Garbled(String),
    Corrupt(String),
    /// The peer takes the operation to be another one.
    Disagree {
        operation: u64,
        ours: u64,
        theirs: u64,
    },
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

impl From<MalformedFrame> for Trouble {
    fn from(what: MalformedFrame) -> Trouble {
        Trouble::Garbled(what.to_string())
    }
}

/// The reading side of one connection.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    inbox: Vec<u8>,
    /// The part of the inbox that has been read and not yet used.
    unread: Range<usize>,
    /// The stripe in the middle of which the stream is.
    stripe: Option<Stripe>,
    /// Bytes taken from the connection; tells whether a call moved anything.
    pub(super) total_bytes: u64,
}

#[derive(Debug)]
struct Stripe {
    header: Header,
    /// Bytes of it that have been used, and their checksum.
    used: u64,
    crc: u32,
}

impl Incoming {
    /// Reads until the stripe of the wanted frame has been handed on, or fails; [`io::ErrorKind::WouldBlock`] if it is
    /// not all there yet. `delivered` counts the bytes of the payload that went to the target.
    pub(super) fn pull(
        &mut self,
        connection: &mut impl Connection,
        wanted: Wanted,
        target: &mut Target<'_>,
        delivered: &mut u64,
    ) -> Result<(), Trouble> {
        loop {
            if self.stripe.is_none() {
                let header = self.header(connection, &wanted, target)?;
                check(&header, &wanted)?;
                self.stripe = Some(Stripe { header, used: 0, crc: 0 });
            }
            let stripe = self.stripe.as_mut().expect("set above");
            let stale = stripe.header.tag.operation < wanted.tag.operation;
            if stale {
                self.skip(connection)?;
            } else {
                self.deliver(connection, target, delivered)?;
            }
            let trailer = self.trailer(connection)?;
            let stripe = self.stripe.take().expect("a trailer follows a stripe");
            if !stale {
                return verdict(&stripe, trailer);
            }
        }
    }

    fn header(
        &mut self,
        connection: &mut impl Connection,
        wanted: &Wanted,
        target: &Target<'_>,
    ) -> Result<Header, Trouble> {
        let direct = matches!(target, Target::Memory(_)) && wanted.payload_bytes > DIRECT_BYTES;
        while self.unread.len() < HEADER_BYTES {
            let missing = HEADER_BYTES - self.unread.len();
            self.fill(connection, if direct { missing } else { INBOX_BYTES })?;
        }
        let bytes = &self.inbox[self.unread.start..][..HEADER_BYTES];
        let header = Header::decode(bytes.try_into().expect("sliced to the length of a header"))?;
        self.unread.start += HEADER_BYTES;
        Ok(header)
    }

    fn trailer(&mut self, connection: &mut impl Connection) -> Result<Trailer, Trouble> {
        while self.unread.len() < TRAILER_BYTES {
            self.fill(connection, INBOX_BYTES)?;
        }
        let bytes = &self.inbox[self.unread.start..][..TRAILER_BYTES];
        let trailer = Trailer::decode(bytes.try_into().expect("sliced to the length of a trailer"))?;
        self.unread.start += TRAILER_BYTES;
        Ok(trailer)
    }

    /// Reads the rest of a stripe that nobody wants any more.
    fn skip(&mut self, connection: &mut impl Connection) -> io::Result<()> {
        loop {
            let stripe = self.stripe.as_mut().expect("in the middle of a stripe");
            let span = stripe.header.span();
            let rest = (span.end - span.start) - stripe.used;
            let here = rest.min(self.unread.len() as u64);
            stripe.used += here;
            self.unread.start += here as usize;
            if here == rest {
                return Ok(());
            }
            self.fill(connection, INBOX_BYTES)?;
        }
    }

    fn deliver(
        &mut self,
        connection: &mut impl Connection,
        target: &mut Target<'_>,
        delivered: &mut u64,
    ) -> io::Result<()> {
        loop {
            let stripe = self.stripe.as_mut().expect("in the middle of a stripe");
            let span = stripe.header.span();
            let rest = (span.end - span.start) - stripe.used;
            let offset = span.start + stripe.used;
            let mut here = rest.min(self.unread.len() as u64) as usize;
            if matches!(target, Target::Sink(_)) && (here as u64) < rest {
                here -= here % PIECE_ALIGN;
            }
            if here > 0 {
                let piece = &self.inbox[self.unread.start..][..here];
                stripe.note(piece);
                match target {
                    Target::Sink(sink) => sink(offset, piece),
                    Target::Memory(memory) => memory[offset as usize..][..here].copy_from_slice(piece),
                }
                self.unread.start += here;
                *delivered += here as u64;
            }
            if here as u64 == rest {
                return Ok(());
            }
            if let (Target::Memory(memory), true) = (&mut *target, self.unread.is_empty()) {
                let place = &mut memory[offset as usize + here..span.end as usize];
                *delivered += self.fill_direct(connection, place)?;
            } else {
                self.fill(connection, INBOX_BYTES)?;
            }
        }
    }

    /// Reads into the inbox, at most this many bytes.
    fn fill(&mut self, connection: &mut impl Connection, at_most: usize) -> io::Result<()> {
        self.make_room();
        let room = self.unread.end..INBOX_BYTES.min(self.unread.end.saturating_add(at_most));
        match connection.read(&mut self.inbox[room])? {
            0 => Err(closed()),
            count => {
                self.unread.end += count;
                self.total_bytes += count as u64;
                Ok(())
            }
        }
    }

    /// Reads into `place`, and what comes behind it (the trailer, the next header) into the empty inbox. Says how many
    /// bytes are in place.
    fn fill_direct(&mut self, connection: &mut impl Connection, place: &mut [u8]) -> io::Result<u64> {
        self.make_room();
        let spill = &mut self.inbox[..HEADER_BYTES + TRAILER_BYTES];
        let count = connection.read_vectored(&mut [IoSliceMut::new(place), IoSliceMut::new(spill)])?;
        if count == 0 {
            return Err(closed());
        }
        self.total_bytes += count as u64;
        let placed = count.min(place.len());
        self.unread = 0..count - placed;
        self.stripe.as_mut().expect("in the middle of a stripe").note(&place[..placed]);
        Ok(placed as u64)
    }

    /// Moves the few bytes that are left to the front of the inbox, so that there is room behind them.
    fn make_room(&mut self) {
        if self.inbox.is_empty() {
            self.inbox = vec![0; INBOX_BYTES];
        }
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == INBOX_BYTES {
            self.inbox.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }
}

impl Stripe {
    fn note(&mut self, bytes: &[u8]) {
        self.used += bytes.len() as u64;
        if self.header.checksum == Checksum::Crc32c {
            self.crc = crc32c::crc32c_append(self.crc, bytes);
        }
    }
}

/// Whether a header is the wanted one or an older one that may be skipped.
fn check(header: &Header, wanted: &Wanted) -> Result<(), Trouble> {
    let garbled = |what: String| Err(Trouble::Garbled(what));
    let (got, want) = (header.tag, wanted.tag);
    let stripes = wanted.cut.stripes(header.payload_bytes);
    if header.stripe != wanted.lane || header.stripes != stripes {
        return garbled(format!(
            "stripe {} of {} on connection {} for a payload of {} bytes that has {stripes}: the ranks differ in their \
             connection settings",
            header.stripe, header.stripes, wanted.lane, header.payload_bytes
        ));
    }
    if got.operation < want.operation {
        return Ok(());
    }
    if got.operation > want.operation {
        return garbled(format!("operation {} while this rank is at operation {}", got.operation, want.operation));
    }
    if got.descriptor != want.descriptor {
        let (operation, ours, theirs) = (want.operation, want.descriptor, got.descriptor);
        return Err(Trouble::Disagree { operation, ours, theirs });
    }
    if got.message != want.message {
        return garbled(format!(
            "message {} of operation {}, expected message {}",
            got.message, want.operation, want.message
        ));
    }
    if header.payload_bytes != wanted.payload_bytes {
        return garbled(format!(
            "{} bytes as message {} of operation {}, expected {}",
            header.payload_bytes, want.message, want.operation, wanted.payload_bytes
        ));
    }
    Ok(())
}

fn verdict(stripe: &Stripe, trailer: Trailer) -> Result<(), Trouble> {
    let tag = stripe.header.tag;
    match trailer {
        Trailer::Void => Err(Trouble::Garbled(format!(
            "it gave up operation {} in the middle of message {}",
            tag.operation, tag.message
        ))),
        Trailer::Whole { crc } if stripe.header.checksum == Checksum::Crc32c && crc != stripe.crc => {
            Err(Trouble::Corrupt(format!(
                "message {} of operation {} has checksum {:#010x} instead of {crc:#010x}",
                tag.message, tag.operation, stripe.crc
            )))
        }
        Trailer::Whole { .. } => Ok(()),
    }
}
