//! Slots for tiles: how ranks fill, read, write back and release them.
//!
//! Each rank has a few slots in its window; tile `t` lies in slot `t % slots`. The table in `windows` says who writes
//! and reads a slot when; each method here checks the flag that its line of the table asks for.

#![allow(unsafe_code)]

use super::flags::{Flag, Mark};
use super::windows::Windows;
use crate::error::Result;

impl Windows {
    /// Makes sure that there is memory for tiles of this length in all slots. To be called before
    /// [`Windows::vacant_slot`]; costs a comparison unless tiles are longer than ever before.
    ///
    /// # Errors
    /// If there is not enough memory.
    #[inline]
    pub fn reserve_tiles(&mut self, len: usize) -> Result<()> {
        if len <= self.reserved_tile_bytes { Ok(()) } else { self.reserve_longer_tiles(len) }
    }

    #[cold]
    fn reserve_longer_tiles(&mut self, len: usize) -> Result<()> {
        let mapping = &self.local_ranks[self.me].mapping;
        for slot in 0..self.layout.slots {
            mapping.reserve(self.layout.tile_offset(slot), len)?;
        }
        self.reserved_tile_bytes = len;
        Ok(())
    }

    /// This rank's slot for a tile, once no peer reads it any more. Call [`Windows::mark_filled`] when it is filled.
    pub fn vacant_slot(&mut self, tile: u64, len: usize) -> Option<&mut [u8]> {
        let slots = self.layout.slots as u64;
        let free = match tile.checked_sub(slots) {
            Some(before) => self.all_reached(Flag::Released, Mark::tile(self.operation, before)),
            None => self.previous_taken.is_none_or(|taken| self.all_reached(Flag::Released, Mark::finished(taken))),
        };
        if !free {
            return None;
        }
        assert!(len <= self.layout.tile_bytes, "a tile fits its slot");
        let start = self.local_ranks[self.me].mapping.at(self.layout.tile_offset((tile % slots) as usize), len);
        // SAFETY: the slot is ours. Peers read it between our `Filled` and their `Released` of the tile before in this
        // slot, which was checked above, also where that tile belongs to an operation in which peers take what they
        // need; from other operations slots are free because we have fetched everybody's result of the last tile, so
        // all have folded, and with it have written what they return. `&mut self` keeps us from having it twice.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Shows this rank's slot for a tile to its peers.
    pub fn mark_filled(&mut self, tile: u64) {
        self.reach(Flag::Filled, Mark::tile(self.operation, tile));
    }

    /// This rank's chunk of a tile in the slots of all peers, in the order of their local ranks, once all have
    /// published the tile: their contributions, to be replaced by the result. Call [`Windows::release_chunks`] when it
    /// is there.
    ///
    /// `offset` and `len` must be those of the chunk that the schedule gives to this rank alone.
    pub fn chunks(&mut self, tile: u64, offset: usize, len: usize) -> Option<Vec<&mut [u8]>> {
        if !self.all_filled(tile) {
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let offset = self.layout.tile_offset((tile % self.layout.slots as u64) as usize) + offset;
        let chunk = |local_rank: usize| {
            let start = self.local_ranks[local_rank].mapping.at(offset, len);
            // SAFETY: the owner has published the tile (checked above) and touches this chunk of its slot again only
            // after it has seen our `Released` of the tile, which takes `&mut self`; other peers touch their own
            // chunks. Each local rank has a mapping of its own, so the slices are disjoint.
            unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
        };
        Some(self.peers().map(chunk).collect())
    }

    /// Shows what this rank has returned of a tile, and says that it no longer touches the contributions to it.
    pub fn release_chunks(&mut self, tile: u64) {
        self.reach(Flag::Released, Mark::tile(self.operation, tile));
    }

    /// What a peer has returned of a tile in its chunk of this rank's slot, once it is there.
    pub fn returned(&self, local_rank: usize, tile: u64, offset: usize, len: usize) -> Option<&[u8]> {
        if !self.local_ranks[local_rank].flags().has_reached(Flag::Released, Mark::tile(self.operation, tile)) {
            self.look_in_vain();
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let slot = (tile % self.layout.slots as u64) as usize;
        let start = self.local_ranks[self.me].mapping.at(self.layout.tile_offset(slot) + offset, len);
        // SAFETY: the slot is ours. The peer has folded the tile (checked), so it has written its chunk and writes
        // there again only after we have published another tile, which takes `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// What a peer has published of a tile, once it is there. Call [`Windows::release_slots`] when it is no longer
    /// read.
    pub fn filled(&self, local_rank: usize, tile: u64, offset: usize, len: usize) -> Option<&[u8]> {
        assert_ne!(local_rank, self.me, "a rank does not look into its own window");
        if !self.local_ranks[local_rank].flags().has_reached(Flag::Filled, Mark::tile(self.operation, tile)) {
            self.look_in_vain();
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let slot = (tile % self.layout.slots as u64) as usize;
        let start = self.local_ranks[local_rank].mapping.at(self.layout.tile_offset(slot) + offset, len);
        // SAFETY: the owner has published the tile (checked), and writes the slot again after it has seen our
        // `Released` of it, which takes `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Says that this rank no longer reads what others have published of the tiles up to this one.
    pub fn release_slots(&mut self, tile: u64) {
        self.taking = true;
        self.reach(Flag::Released, Mark::tile(self.operation, tile));
    }

    /// Whether every peer has published a tile.
    pub fn all_filled(&self, tile: u64) -> bool {
        self.all_reached(Flag::Filled, Mark::tile(self.operation, tile))
    }

    /// Whether every peer has folded or released a tile.
    pub fn all_released(&self, tile: u64) -> bool {
        self.all_reached(Flag::Released, Mark::tile(self.operation, tile))
    }
}
