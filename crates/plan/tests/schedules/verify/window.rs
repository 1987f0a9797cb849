//! Windows and mapped buffers in a symbolic run.
//!
//! A slot remembers which tile it holds. A step that reads a slot first waits for what it has to wait for and then
//! insists on finding its own tile; if the owner has begun to write another one, the wait was not enough.

use super::contents::{Contents, Fragment, combine};
use super::flaw::{Cause, Flaw};
use super::machine::{Machine, Outcome, Wake};
use farandole_plan::request::Rank;
use farandole_plan::schedule::{Buffer, Span, Step};

/// Slots have no end here: the size of a tile is not this check's concern.
const SLOT_ELEMS: u64 = u64::MAX / 2;

/// Something that lies in a window, and the tile it belongs to.
struct Slot {
    tile: Option<u32>,
    contents: Contents,
}

impl Slot {
    fn empty() -> Slot {
        Slot { tile: None, contents: Contents::unwritten(SLOT_ELEMS) }
    }

    /// Makes it the slot of this tile, forgetting another tile's contents.
    fn turn_to(&mut self, tile: u32) {
        if self.tile != Some(tile) {
            *self = Slot { tile: Some(tile), contents: Contents::unwritten(SLOT_ELEMS) };
        }
    }
}

/// The window of one rank. Counters are one more than the number of the last tile.
pub(super) struct Window {
    slots: Vec<Slot>,
    published: u32,
    folded: u32,
}

impl Window {
    pub(super) fn new(slots: u32) -> Window {
        Window { slots: (0..slots).map(|_| Slot::empty()).collect(), published: 0, folded: 0 }
    }
}

impl Machine<'_> {
    pub(super) fn take_window_step(&mut self, rank: usize, step: &Step) -> Result<Outcome, Flaw> {
        if self.actors[rank].window.slots.is_empty() && needs_slots(step) {
            return Err(Flaw::SlotsDiffer { rank: Rank::from(rank), slots: 0, expected: 1 });
        }
        match *step {
            Step::Publish { tile, span, except } => self.publish(rank, tile, span, except),
            Step::Stage { tile, from, span, at } => self.stage(rank, tile, from, span, at),
            Step::FoldTile { tile, span, chunk } => self.fold_tile(rank, tile, span, chunk),
            Step::FoldWhole { tile, span } => self.fold_whole(rank, tile, span),
            Step::FoldChunk { tile, chunk, at } => self.fold_chunk(rank, tile, chunk, at),
            Step::Fetch { tile, span, from, chunk } => self.fetch(rank, tile, span, from, chunk),
            Step::Take { tile, from, span, at } => self.take_published(rank, tile, from, span, at),
            Step::Release { tile } => Ok(self.release(rank, tile)),
            Step::Drain { tile } => {
                let reading = self.waiting_for(rank, |window| window.folded > tile);
                Ok(if reading.is_empty() { done() } else { Outcome::Waits(Cause::SlotToBeFree, reading) })
            }
            Step::Expose => {
                self.actors[rank].exposed = true;
                Ok(done())
            }
            Step::FoldAcross { span } => self.fold_across(rank, span),
            Step::Settle => Ok(self.settle(rank)),
            Step::Send { .. } | Step::Recv { .. } | Step::Copy { .. } => unreachable!("messages are taken elsewhere"),
        }
    }

    fn waiting_for(&self, rank: usize, ready: impl Fn(&Window) -> bool) -> Vec<usize> {
        self.locals(rank).filter(|&local| !ready(&self.actors[local].window)).collect()
    }

    fn slot_of(&self, rank: usize, tile: u32) -> usize {
        tile as usize % self.actors[rank].window.slots.len()
    }

    /// The tile that had the slot before.
    fn tile_before(&self, rank: usize, tile: u32) -> Option<u32> {
        tile.checked_sub(self.actors[rank].window.slots.len() as u32)
    }

    fn stage(&mut self, rank: usize, tile: u32, from: Buffer, span: Span, at: u64) -> Result<Outcome, Flaw> {
        if tile < self.actors[rank].window.published {
            return Err(Flaw::TileOutOfOrder { spot: self.spot(rank), tile });
        }
        self.check_bounds(rank, span, self.actors[rank].buffer(from).elems)?;
        if let Some(before) = self.tile_before(rank, tile) {
            let reading = self.waiting_for(rank, |window| window.folded > before);
            if !reading.is_empty() {
                return Ok(Outcome::Waits(Cause::SlotToBeFree, reading));
            }
        }
        let elements = self.actors[rank].buffer(from).read(span);
        let elements = elements.map_err(|trouble| self.flaw(rank, rank, span.start, trouble))?;
        let index = self.slot_of(rank, tile);
        let slot = &mut self.actors[rank].window.slots[index];
        slot.turn_to(tile);
        slot.contents.place(at, elements);
        Ok(done())
    }

    fn publish(&mut self, rank: usize, tile: u32, span: Span, except: Span) -> Result<Outcome, Flaw> {
        let (before, after) = if except.is_empty() {
            (span, Span::between(span.end(), span.end()))
        } else {
            (Span::between(span.start, except.start), Span::between(except.end(), span.end()))
        };
        for part in [before, after] {
            if let waits @ Outcome::Waits(..) = self.stage(rank, tile, Buffer::Work, part, part.start - span.start)? {
                return Ok(waits);
            }
        }
        self.actors[rank].window.published = tile + 1;
        Ok(done())
    }

    /// Everybody's contribution to `chunk`, combined in rank order; `at` is its place in the slots.
    fn gather_contributions(
        &self,
        rank: usize,
        tile: u32,
        chunk: Span,
        at: u64,
    ) -> Result<Option<Vec<Fragment>>, Flaw> {
        if chunk.is_empty() {
            return Ok(None);
        }
        self.check_bounds(rank, chunk, self.actors[rank].work.elems)?;
        let mut sum = self.actors[rank].work.read(chunk);
        for local in self.locals(rank) {
            let part = self.read_slot(rank, local, tile, Span { start: at, len: chunk.len })?;
            sum = sum.and_then(|sum| combine(&sum, &part));
        }
        sum.map(Some).map_err(|trouble| self.flaw(rank, rank, chunk.start, trouble))
    }

    fn read_slot(&self, rank: usize, owner: usize, tile: u32, place: Span) -> Result<Vec<Fragment>, Flaw> {
        let slot = &self.actors[owner].window.slots[self.slot_of(rank, tile)];
        if slot.tile != Some(tile) {
            let (spot, owner) = (self.spot(rank), Rank::from(owner));
            return Err(Flaw::OverwrittenSlot { spot, owner, tile, found: slot.tile });
        }
        slot.contents.read(place).map_err(|trouble| self.flaw(rank, owner, place.start, trouble))
    }

    fn unpublished(&self, rank: usize, tile: u32) -> Vec<usize> {
        self.waiting_for(rank, |window| window.published > tile)
    }

    fn fold_tile(&mut self, rank: usize, tile: u32, span: Span, chunk: Span) -> Result<Outcome, Flaw> {
        let unpublished = self.unpublished(rank, tile);
        if !unpublished.is_empty() {
            return Ok(Outcome::Waits(Cause::Publication, unpublished));
        }
        let at = chunk.start - span.start;
        if let Some(result) = self.gather_contributions(rank, tile, chunk, at)? {
            let index = self.slot_of(rank, tile);
            let locals: Vec<usize> = self.locals(rank).collect();
            for local in locals {
                self.actors[local].window.slots[index].contents.place(at, result.clone());
            }
            self.write(rank, rank, chunk, result)?;
        }
        Ok(self.release(rank, tile))
    }

    fn fold_whole(&mut self, rank: usize, tile: u32, span: Span) -> Result<Outcome, Flaw> {
        match self.fold_chunk(rank, tile, span, 0)? {
            Outcome::Done(_) => Ok(self.release(rank, tile)),
            waits => Ok(waits),
        }
    }

    fn fold_chunk(&mut self, rank: usize, tile: u32, chunk: Span, at: u64) -> Result<Outcome, Flaw> {
        let unpublished = self.unpublished(rank, tile);
        if !unpublished.is_empty() {
            return Ok(Outcome::Waits(Cause::Publication, unpublished));
        }
        if let Some(result) = self.gather_contributions(rank, tile, chunk, at)? {
            self.write(rank, rank, chunk, result)?;
        }
        Ok(done())
    }

    fn release(&mut self, rank: usize, tile: u32) -> Outcome {
        let window = &mut self.actors[rank].window;
        window.folded = window.folded.max(tile + 1);
        done()
    }

    fn visible_peer(&self, rank: usize, peer: Rank) -> Result<usize, Flaw> {
        let found = self.locals(rank).find(|&local| local == peer.index());
        found.ok_or(Flaw::NoSuchPeer { spot: self.spot(rank), peer })
    }

    fn fetch(&mut self, rank: usize, tile: u32, span: Span, from: Rank, chunk: Span) -> Result<Outcome, Flaw> {
        let folder = self.visible_peer(rank, from)?;
        self.check_bounds(rank, chunk, self.actors[rank].work.elems)?;
        if self.actors[folder].window.folded <= tile {
            return Ok(Outcome::Waits(Cause::Result, vec![folder]));
        }
        let result = self.read_slot(rank, rank, tile, Span { start: chunk.start - span.start, len: chunk.len })?;
        self.write(rank, rank, chunk, result)?;
        Ok(done())
    }

    fn take_published(&mut self, rank: usize, tile: u32, from: Rank, span: Span, at: u64) -> Result<Outcome, Flaw> {
        let owner = self.visible_peer(rank, from)?;
        self.check_bounds(rank, span, self.actors[rank].work.elems)?;
        if self.actors[owner].window.published <= tile {
            return Ok(Outcome::Waits(Cause::Publication, vec![owner]));
        }
        let elements = self.read_slot(rank, owner, tile, Span { start: at, len: span.len })?;
        self.write(rank, rank, span, elements)?;
        Ok(done())
    }

    fn fold_across(&mut self, rank: usize, span: Span) -> Result<Outcome, Flaw> {
        self.check_bounds(rank, span, self.actors[rank].work.elems)?;
        let hidden: Vec<usize> = self.locals(rank).filter(|&local| !self.actors[local].exposed).collect();
        if !hidden.is_empty() {
            return Ok(Outcome::Waits(Cause::Exposure, hidden));
        }
        let mut sum = self.actors[rank].work.read(span);
        for local in self.locals(rank) {
            let part = self.actors[local].work.read(span);
            let part = part.map_err(|trouble| self.flaw(rank, local, span.start, trouble))?;
            sum = sum.and_then(|sum| combine(&sum, &part));
        }
        let sum = sum.map_err(|trouble| self.flaw(rank, rank, span.start, trouble))?;
        for local in self.locals(rank) {
            self.write(rank, local, span, sum.clone())?;
        }
        self.write(rank, rank, span, sum)?;
        Ok(done())
    }

    fn settle(&mut self, rank: usize) -> Outcome {
        if !self.actors[rank].settled {
            self.actors[rank].settled = true;
            return Outcome::Halfway(Wake::Watchers);
        }
        let busy: Vec<usize> = self.locals(rank).filter(|&local| !self.actors[local].settled).collect();
        if busy.is_empty() { done() } else { Outcome::Waits(Cause::Settlement, busy) }
    }
}

fn done() -> Outcome {
    Outcome::Done(Wake::Watchers)
}

fn needs_slots(step: &Step) -> bool {
    !matches!(step, Step::Expose | Step::FoldAcross { .. } | Step::Settle)
}
