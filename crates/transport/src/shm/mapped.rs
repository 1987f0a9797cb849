//! Buffers that lie in shared memory from the start: what is written into one is already where the peers can see it.
//!
//! A mapped buffer has one part for each rank of the host, each in its owner's segment and mapped by all. Filling one's
//! part is publishing it, so an allreduce needs no copy at all: each rank folds its chunk of all parts and stores the
//! result in all of them. Fusion buffers are of this kind, and callers can have such buffers too.
//!
//! Outside an operation a part belongs to its owner alone. Inside one, between "everybody has exposed" and "everybody
//! has settled", chunk `r` of *all* parts belongs to rank `r` alone.

#![allow(unsafe_code)]

use std::ops::Range;

use super::flags::{Flag, Mark};
use super::gate::{Pass, Point};
use super::layout::page_up;
use super::segment::Mapping;
use super::windows::Windows;
use crate::error::{Error, Result};

/// A buffer that has been given a place in this rank's segment, but is not yet mapped by the peers.
#[derive(Debug)]
pub struct Reserved {
    offset: usize,
    bytes: usize,
}

/// A buffer with a part for every rank of the host.
#[derive(Debug)]
pub struct Mapped {
    me: usize,
    offset: usize,
    bytes: usize,
    parts: Vec<Mapping>,
}

impl Windows {
    /// First half of making a mapped buffer: makes room in this rank's segment. Every rank of the host does this with
    /// the same size and in the same order; when all have, each calls [`Windows::map_reserved`].
    pub fn reserve(&mut self, bytes: usize) -> Result<Reserved> {
        self.may_grow(Point::Reserve)?;
        let offset = self.mapped_end;
        let end = offset + page_up(bytes.max(1));
        let segment = &self.local_ranks[self.me()].segment;
        segment.grow(end)?;
        // The peers write here, too, and count on it that the pages are there.
        segment.reserve(offset, end - offset)?;
        self.mapped_end = end;
        Ok(Reserved { offset, bytes })
    }

    /// Second half: maps everybody's part.
    pub fn map_reserved(&mut self, reserved: Reserved) -> Result<Mapped> {
        self.may_grow(Point::Map)?;
        let Reserved { offset, bytes } = reserved;
        let parts = self
            .local_ranks
            .iter()
            .map(|local_rank| local_rank.segment.map_populated(offset, page_up(bytes.max(1))))
            .collect::<Result<Vec<_>>>()?;
        Ok(Mapped { me: self.me(), offset, bytes, parts })
    }

    /// A shut gate is here what the kernel says when there is no memory left.
    fn may_grow(&mut self, point: Point) -> Result<()> {
        match self.pass(point)? {
            Pass::Open => Ok(()),
            Pass::Shut => Err(Error::local("growing shared memory", std::io::ErrorKind::OutOfMemory)),
        }
    }

    /// Gives the memory of a mapped buffer back. Its place in the segment is not used again.
    pub fn unmap(&self, mapped: Mapped) {
        self.local_ranks[self.me()].segment.release(mapped.offset, page_up(mapped.bytes.max(1)));
    }

    /// Says that this rank's part is filled.
    pub fn expose(&mut self) {
        self.reach(Flag::Filled, Mark::tile(self.operation(), 0));
    }

    /// Whether everybody's part is filled.
    pub fn all_exposed(&self) -> bool {
        self.all_reached(Flag::Filled, Mark::tile(self.operation(), 0))
    }

    /// Says that this rank no longer touches the parts of others.
    pub fn settle(&mut self) {
        let mark = Mark::finished(self.operation());
        if !self.own_has_reached(Flag::Released, mark) {
            self.reach(Flag::Released, mark);
        }
    }

    /// Whether nobody touches the parts of others any more.
    pub fn all_settled(&self) -> bool {
        self.all_reached(Flag::Released, Mark::finished(self.operation()))
    }
}

impl Mapped {
    /// Length of each part in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the parts have no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// This rank's part.
    pub fn own(&self) -> &[u8] {
        let start = self.parts[self.me].at(0, self.bytes);
        // SAFETY: outside an operation the part is ours alone (module text); inside one the driver holds `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.bytes) }
    }

    /// This rank's part, to be filled.
    pub fn own_mut(&mut self) -> &mut [u8] {
        let start = self.parts[self.me].at(0, self.bytes);
        // SAFETY: as in `own`; `&mut self` makes it exclusive within this process.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.bytes) }
    }

    /// A peer's part, between the end of an operation and this rank's next one: results are read where they lie.
    ///
    /// Only while the schedule guarantees that the owner does not write there, which holds after `all_settled` until
    /// this rank exposes again.
    pub fn part(&self, local_rank: usize, range: Range<usize>) -> &[u8] {
        assert!(range.end <= self.bytes, "a range stays inside its part");
        let start = self.parts[local_rank].at(range.start, range.len());
        // SAFETY: see the text above; the driver of fusion buffers keeps it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// The same range of all parts, in the order of the ranks; only between "all exposed" and this rank's `settle`, and
    /// only for the range that the schedule gives to this rank.
    pub fn across(&mut self, windows: &Windows, range: Range<usize>) -> Vec<&mut [u8]> {
        assert!(windows.all_exposed(), "parts of others are touched after all have exposed");
        assert!(range.end <= self.bytes, "a range stays inside its part");
        self.parts
            .iter()
            .map(|part| {
                let start = part.at(range.start, range.len());
                // SAFETY: everybody has exposed (asserted), so nobody writes outside the chunk that is its own; the
                // schedule gives this range to us. The parts are different mappings, so the slices are disjoint.
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
            })
            .collect()
    }
}
