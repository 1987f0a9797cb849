//! Messages between two ranks of one host, through a ring in shared memory.
//!
//! For each ordered pair of ranks there is one ring in the sender's segment: a page with two counters and then
//! `ring_bytes` bytes. The sender writes at `tail`, the receiver reads at `head`; both count bytes since the beginning
//! and only grow, so `tail - head` is what is in flight. A frame is a header of [`HEADER_BYTES`] and the payload,
//! padded to the same. The sender shows a payload in pieces of at most a quarter of the ring, so that the receiver
//! works on one piece while the next is being written and both stay in cache.
//!
//! The receiver hands pieces to the sink straight from the ring. Nothing is allocated, nothing blocks.
//!
//! An operation may be given up in the middle of a frame. The sender then owes the rest of the frame and pays it with
//! zeros before its next one; the receiver skips it, because its operation is older than the one asked for.

#![allow(unsafe_code)]

use std::sync::Arc;

use farandole_plan::Rank;

use super::copy::copy_out;
use super::layout::Layout;
use super::segment::{Mapping, PAGE_BYTES};
use super::sync::{AtomicU64, Ordering};
use super::windows::{Windows, flags_of};
use crate::error::{Error, Result};
use crate::link::{Link, PIECE_ALIGN, Progress, RecvCursor, SendCursor, Tag};
use crate::wait::Bell;

/// A frame's header fills one cache line; payloads therefore start at multiples of [`PIECE_ALIGN`].
const HEADER_BYTES: u64 = PIECE_ALIGN as u64;

#[repr(C, align(64))]
struct Counter(AtomicU64);

/// Written by the sender (`tail`) and by the receiver (`head`).
#[repr(C)]
struct Counters {
    tail: Counter,
    head: Counter,
}

/// One direction.
struct Ring {
    mapping: Arc<Mapping>,
    offset: usize,
    capacity: u64,
}

impl Ring {
    fn counters(&self) -> &Counters {
        let start = self.mapping.at(self.offset, std::mem::size_of::<Counters>());
        // SAFETY: the first page of a ring holds its counters: atomics, valid when zeroed, aligned to the page.
        unsafe { start.cast().as_ref() }
    }

    /// Position and length of the contiguous stretch that starts at the counter value `at`.
    fn stretch(&self, at: u64, len: u64) -> (usize, usize) {
        let within = at % self.capacity;
        let len = len.min(self.capacity - within);
        (self.offset + PAGE_BYTES + within as usize, len as usize)
    }

    /// Bytes at `at` that the sender has shown, as one stretch.
    fn shown(&self, at: u64, len: u64) -> &[u8] {
        let (start, len) = self.stretch(at, len);
        let start = self.mapping.at(start, len);
        // SAFETY: the caller (the receiver) has seen a `tail` beyond these bytes and has not yet raised `head` past
        // them, so the sender does not write there.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Writes bytes at `at`, which must be free, around the end if need be.
    fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (start, len) = self.stretch(at, bytes.len() as u64);
            let target = self.mapping.at(start, len);
            // SAFETY: the caller (the sender) has seen a `head` that leaves these bytes free, and has not yet raised
            // `tail` past them, so the receiver does not read there, and `&mut self` is the only sender.
            let target = unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), len) };
            copy_out(target, &bytes[..len]);
            at += len as u64;
            bytes = &bytes[len..];
        }
    }
}

/// A link to a rank on the same host.
pub struct ShmLink {
    peer: Rank,
    out: Ring,
    into: Ring,
    tail: u64,
    head: u64,
    /// Bytes of the frame being sent that are still to be written, padding included.
    owed: u64,
    /// Bytes of the frame being received that are still to be read, padding included.
    unread: u64,
    bell: Bell,
    peer_mapping: Arc<Mapping>,
    /// Whether the ring towards the peer has its memory. It gets it with the first message: most pairs never send one.
    reserved: bool,
}

impl std::fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmLink").field("peer", &self.peer).field("tail", &self.tail).field("head", &self.head).finish()
    }
}

impl Windows {
    /// The link to the peer in this local rank. Made once for each peer.
    pub fn link(&self, local_rank: usize) -> ShmLink {
        let layout: &Layout = self.layout();
        let ring = |owner: usize, to: usize| Ring {
            mapping: self.local_ranks[owner].mapping.clone(),
            offset: layout.ring_offset(to),
            capacity: layout.ring_bytes as u64,
        };
        ShmLink {
            peer: self.local_ranks[local_rank].rank,
            out: ring(self.me(), local_rank),
            into: ring(local_rank, self.me()),
            tail: 0,
            head: 0,
            owed: 0,
            unread: 0,
            bell: self.local_ranks[local_rank].bell.clone(),
            peer_mapping: self.local_ranks[local_rank].mapping.clone(),
            reserved: false,
        }
    }
}

impl ShmLink {
    fn free(&self) -> u64 {
        self.out.capacity - (self.tail - self.out.counters().head.0.load(Ordering::Acquire))
    }

    fn available(&self) -> u64 {
        self.into.counters().tail.0.load(Ordering::Acquire) - self.head
    }

    /// Shows everything written so far to the peer.
    fn show(&mut self) {
        self.out.counters().tail.0.store(self.tail, Ordering::Release);
        self.wake();
    }

    /// Gives everything read so far back to the peer.
    fn give_back(&mut self) {
        self.into.counters().head.0.store(self.head, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        super::flags::announced();
        if flags_of(&self.peer_mapping).is_asleep() {
            self.bell.ring();
        }
    }

    fn header(tag: Tag, len: u64) -> [u8; HEADER_BYTES as usize] {
        let mut header = [0; HEADER_BYTES as usize];
        header[0..8].copy_from_slice(&tag.operation.to_ne_bytes());
        header[8..12].copy_from_slice(&tag.message.to_ne_bytes());
        header[16..24].copy_from_slice(&len.to_ne_bytes());
        header[24..32].copy_from_slice(&tag.descriptor.to_ne_bytes());
        header
    }

    fn parse(header: &[u8]) -> (Tag, u64) {
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let tag = Tag { operation: word(0), message: word(8) as u32, descriptor: word(24) };
        (tag, word(16))
    }

    /// Pays what is owed of a frame whose operation was given up.
    fn pay(&mut self) -> bool {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.owed > 0 {
            let len = self.owed.min(self.free()).min(ZEROS.len() as u64);
            if len == 0 {
                return false;
            }
            self.out.write(self.tail, &ZEROS[..len as usize]);
            self.tail += len;
            self.owed -= len;
            self.show();
        }
        true
    }

    /// Skips what is unread of a frame that nobody wants any more.
    fn skip(&mut self) -> bool {
        let len = self.unread.min(self.available());
        if len > 0 {
            self.head += len;
            self.unread -= len;
            self.give_back();
        }
        self.unread == 0
    }

    /// Reads headers until the frame `tag` begins; frames of older operations are skipped, payload and all.
    fn find(&mut self, tag: Tag, len: u64) -> Result<bool> {
        loop {
            if !self.skip() || self.available() < HEADER_BYTES {
                return Ok(false);
            }
            let (got, got_len) = ShmLink::parse(self.into.shown(self.head, HEADER_BYTES));
            self.head += HEADER_BYTES;
            self.unread = padded(got_len);
            self.give_back();
            if got.operation < tag.operation {
                continue;
            }
            if got != tag || got_len != len {
                return Err(Error::Garbled {
                    peer: self.peer,
                    what: format!("expected {tag:?} of {len} bytes, got {got:?} of {got_len} bytes"),
                });
            }
            return Ok(true);
        }
    }
}

fn padded(len: u64) -> u64 {
    len.next_multiple_of(HEADER_BYTES)
}

impl Link for ShmLink {
    fn send(&mut self, tag: Tag, payload: &[u8], cursor: &mut SendCursor) -> Result<Progress> {
        let mut moved = false;
        if !self.reserved {
            self.out.mapping.reserve(self.out.offset + PAGE_BYTES, self.out.capacity as usize)?;
            self.reserved = true;
        }
        if cursor.state == 0 {
            if !self.pay() || self.free() < HEADER_BYTES {
                return Ok(Progress::Pending);
            }
            self.out.write(self.tail, &ShmLink::header(tag, payload.len() as u64));
            self.tail += HEADER_BYTES;
            self.owed = padded(payload.len() as u64);
            cursor.state = 1;
            moved = true;
        }
        let piece = (self.out.capacity / 4).max(HEADER_BYTES);
        while cursor.taken < payload.len() as u64 {
            let rest = payload.len() as u64 - cursor.taken;
            let len = rest.min(piece).min(self.free() / HEADER_BYTES * HEADER_BYTES);
            if len == 0 {
                break;
            }
            self.out.write(self.tail, &payload[cursor.taken as usize..][..len as usize]);
            self.tail += padded(len);
            self.owed -= padded(len);
            cursor.taken += len;
            moved = true;
            self.show();
        }
        if moved {
            self.show();
        }
        Ok(match (cursor.taken == payload.len() as u64, moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Pending,
        })
    }

    fn recv(
        &mut self,
        tag: Tag,
        len: u64,
        cursor: &mut RecvCursor,
        sink: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Progress> {
        if cursor.state == 0 {
            if !self.find(tag, len)? {
                return Ok(Progress::Pending);
            }
            cursor.state = 1;
        }
        let mut moved = false;
        while cursor.delivered < len {
            let rest = len - cursor.delivered;
            let available = self.available().min(padded(rest));
            if available == 0 {
                break;
            }
            let bytes = self.into.shown(self.head, available);
            let (room, useful) = (bytes.len() as u64, bytes.len().min(rest as usize));
            sink(cursor.delivered, &bytes[..useful]);
            cursor.delivered += useful as u64;
            self.head += room;
            self.unread -= room;
            self.give_back();
            moved = true;
        }
        Ok(match (cursor.delivered == len, moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Pending,
        })
    }
}
