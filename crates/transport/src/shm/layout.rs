//! Where things lie inside a segment.
//!
//! ```text
//! flags | small slots | tile slots | rings to each local rank | mapped buffers, appended as asked for
//! ```
//!
//! All ranks of a host compute the same layout from the same numbers, which therefore travel in the hello of a mesh.

use super::segment::{PAGE_BYTES, Segment};
use crate::error::Result;

/// Sizes that all ranks of a host must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks on this host.
    pub ranks: usize,
    /// Bytes of one of the two slots for small contributions.
    pub small_bytes: usize,
    /// Bytes of a tile.
    pub tile_bytes: usize,
    /// Slots for tiles.
    pub slots: usize,
    /// Bytes of a ring between two ranks.
    pub ring_bytes: usize,
}

impl Layout {
    /// The layout used unless tests want small numbers.
    ///
    /// Small slots hold what one hand-over is best for at most. Three slots let a rank publish a tile while it folds
    /// another and fetches a third; a fourth only took more of the cache (16 cores, 8 ranks, 16 MB: 15 % longer). A
    /// tile (and so a slot) is sized so that all slots that two ranks touch stay within a core's second-level cache; a
    /// ring is as large as a few pieces in flight.
    pub fn standard(ranks: usize) -> Layout {
        Layout { ranks, small_bytes: 64 << 10, tile_bytes: 512 << 10, slots: 3, ring_bytes: 256 << 10 }
    }

    /// Offset of the small slot for operations of this parity.
    pub(crate) fn small_offset(&self, parity: usize) -> usize {
        PAGE_BYTES + parity * page_up(self.small_bytes)
    }

    /// Offset of a tile slot.
    pub(crate) fn tile_offset(&self, slot: usize) -> usize {
        self.small_offset(2) + slot * page_up(self.tile_bytes)
    }

    /// Offset of the ring towards this local rank.
    pub(crate) fn ring_offset(&self, to: usize) -> usize {
        self.tile_offset(self.slots) + to * (PAGE_BYTES + page_up(self.ring_bytes))
    }

    /// A segment for one of the ranks. What peers look at before its owner has sent anything is reserved: the flags,
    /// the small slots behind it and the counters of every ring. The rest is reserved when it is first used, because
    /// most of it never is.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn create_segment(&self) -> Result<Segment> {
        let segment = Segment::create(self.fixed_bytes())?;
        segment.reserve(0, self.small_offset(2))?;
        for to in 0..self.ranks {
            segment.reserve(self.ring_offset(to), PAGE_BYTES)?;
        }
        Ok(segment)
    }

    /// Bytes of everything but mapped buffers.
    pub fn fixed_bytes(&self) -> usize {
        self.ring_offset(self.ranks)
    }
}

/// The next multiple of the page size.
pub(crate) fn page_up(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}
