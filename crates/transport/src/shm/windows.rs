//! The windows of the ranks of one host: what they show each other, and the rules of looking.
//!
//! Each rank owns one segment; all ranks map all of them. [`Windows`] turns the marks of the boards into references that are
//! safe to use: a method that hands out bytes of a peer first checks the mark which says that the peer has
//! written them, and the peer writes them again only after it has seen a mark of ours which we can only raise through
//! `&mut self`, when no such reference is alive any more. That is the invariant behind every `unsafe` block here:
//!
//! | bytes | written by | readable once | written again once |
//! |---|---|---|---|
//! | small slot of operation `k` | owner, in `begin` of `k` | owner has begun `k` | every peer has begun `k + 1` |
//! | tile slot `t % slots` | owner, before `publish` | owner has `Published` `t` | every peer has `Folded` `t` |
//! | result slot `t % slots` | owner, before `folded` | owner has `Folded` `t` | every peer has `Fetched` `t` |
//!
//! Every operation on windows is one that a rank finishes only after every other has begun it; an operation that was
//! given up counts as finished once all ranks have stopped it. Ranks are numbered within the host here (*seats*).
//!
//! Deliberately not here: arithmetic, schedules, blocking.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use farandole_plan::Rank;

use super::board::{Board, INLINE_BYTES, Mark, Stage, announced};
use super::copy::copy_out;
use super::gate::{Gate, Pass, Point};
use super::layout::Layout;
use super::segment::{Mapping, Segment};
use crate::error::{Error, Result};
use crate::wait::Bell;

/// Looks in vain before sleepers are looked for: about the time that a mark takes to leave this core.
const LOOKS_BEFORE_ANNOUNCING: u32 = 8;

/// A rank of this host as seen from here.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Its number in the group.
    pub(crate) rank: Rank,
    pub(crate) segment: Segment,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) bell: Bell,
}

impl Seat {
    pub(crate) fn board(&self) -> &Board {
        board_of(&self.mapping)
    }
}

/// The board at the front of a mapped segment.
pub(crate) fn board_of(mapping: &Mapping) -> &Board {
    let start = mapping.at(0, std::mem::size_of::<Board>());
    // SAFETY: the front of every segment is a `Board`: zeroed pages are a valid one, it consists of atomics only, and
    // a page is aligned for it.
    unsafe { start.cast().as_ref() }
}

/// What a rank needs of a peer to see its windows.
#[derive(Debug)]
pub struct Neighbour {
    /// Its number in the group.
    pub rank: Rank,
    /// Its segment.
    pub segment: Segment,
    /// Wakes it.
    pub bell: Bell,
}

/// The windows of all ranks of this host, from the point of view of one of them.
#[derive(Debug)]
pub struct Windows {
    me: usize,
    layout: Layout,
    pub(crate) seats: Vec<Seat>,
    operation: u64,
    descriptor: u64,
    /// The last operation before the current one whose results peers may still be fetching.
    previous: Option<u64>,
    /// The last operation before the current one in which peers read contributions of ours that we did not wait for.
    previous_taken: Option<u64>,
    /// Whether the current operation is of that kind.
    taking: bool,
    /// Peers that have been seen to have begun the current operation.
    begun: Vec<bool>,
    waiting: usize,
    /// Results of the current tile that have been fetched.
    fetches: usize,
    /// Marks have been raised since we last looked who is asleep, and so many looks in vain ago.
    unannounced: Cell<Option<u32>>,
    /// End of the last mapped buffer in every segment.
    pub(crate) mapped_end: usize,
    /// How much of each of this rank's slots for tiles and results has been reserved.
    reserved_tile_bytes: usize,
    /// Where faults strike, in tests.
    gate: Option<Box<dyn Gate>>,
}

impl Windows {
    /// Opens the windows of these ranks of one host, in the order of their group ranks. The entry at `me` is our own.
    pub fn open(me: usize, layout: Layout, neighbours: Vec<Neighbour>) -> Result<Windows> {
        assert_eq!(neighbours.len(), layout.ranks, "one neighbour for each rank of the host");
        let mut seats = Vec::with_capacity(neighbours.len());
        for Neighbour { rank, segment, bell } in neighbours {
            let mapping = Arc::new(segment.map(0, layout.fixed_bytes())?);
            seats.push(Seat { rank, segment, mapping, bell });
        }
        let begun = vec![true; seats.len()];
        let mapped_end = layout.fixed_bytes();
        Ok(Windows {
            me,
            layout,
            seats,
            operation: 0,
            descriptor: 0,
            previous: None,
            previous_taken: None,
            taking: false,
            begun,
            waiting: 0,
            fetches: 0,
            unannounced: Cell::new(None),
            mapped_end,
            reserved_tile_bytes: 0,
            gate: None,
        })
    }

    /// The windows of several ranks that are threads of this process, one for each bell.
    pub fn for_threads(layout: Layout, bells: &[Bell]) -> Result<Vec<Windows>> {
        let segments = bells.iter().map(|_| layout.create_segment()).collect::<Result<Vec<Segment>>>()?;
        let neighbour = |(index, (segment, bell)): (usize, (&Segment, &Bell))| Neighbour {
            rank: Rank::from(index),
            segment: segment.duplicate(),
            bell: bell.clone(),
        };
        let neighbours = || segments.iter().zip(bells).enumerate().map(neighbour).collect();
        (0..bells.len()).map(|me| Windows::open(me, layout, neighbours())).collect()
    }

    /// Lets this gate decide what happens from now on.
    pub fn set_gate(&mut self, gate: Box<dyn Gate>) {
        self.gate = Some(gate);
    }

    /// Whether what comes at this point of the current operation happens.
    ///
    /// # Errors
    /// What the gate says, if there is one.
    #[inline]
    pub fn pass(&mut self, point: Point) -> Result<Pass> {
        match &mut self.gate {
            None => Ok(Pass::Open),
            Some(gate) => gate.pass(self.operation, point),
        }
    }

    /// This rank's seat.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Number of seats.
    pub fn size(&self) -> usize {
        self.seats.len()
    }

    /// The sizes all ranks of the host agree on.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The group rank in a seat.
    pub fn rank(&self, seat: usize) -> Rank {
        self.seats[seat].rank
    }

    /// The seat of a group rank, which must be on this host.
    pub fn seat(&self, rank: Rank) -> usize {
        self.seats.binary_search_by_key(&rank, |seat| seat.rank).expect("window steps stay on their host")
    }

    /// The seats of all peers.
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.seats.len()).filter(move |&seat| seat != me)
    }

    /// Begins operation number `operation`, which must be larger than all before. `descriptor` stands for what this rank
    /// takes the operation to be; `small` is its contribution, shown at once, or empty.
    pub fn begin(&mut self, operation: u64, descriptor: u64, small: &[u8]) {
        assert!(operation > self.operation, "operations are begun in order");
        self.operation = operation;
        self.descriptor = descriptor;
        self.begun.fill(false);
        self.begun[self.me] = true;
        self.waiting = self.seats.len() - 1;
        if self.gate.is_some() && !matches!(self.pass(Point::Begin), Ok(Pass::Open)) {
            // Whoever cannot go on is told so at the next point.
            return;
        }
        if small.len() > INLINE_BYTES {
            copy_out(self.small_slot_mut(small.len()), small);
            self.board().begin(operation, descriptor, &[]);
        } else {
            self.board().begin(operation, descriptor, small);
        }
        self.unannounced.set(Some(0));
    }

    /// Whether every peer has begun the current operation; an error if one of them takes it to be something else.
    pub fn all_begun(&mut self) -> Result<bool> {
        if self.waiting == 0 {
            return Ok(true);
        }
        for seat in 0..self.seats.len() {
            if self.begun[seat] {
                continue;
            }
            match self.seats[seat].board().begun(self.operation) {
                None => {
                    self.look_in_vain();
                    return Ok(false);
                }
                Some(descriptor) if descriptor == self.descriptor => {
                    self.begun[seat] = true;
                    self.waiting -= 1;
                }
                Some(descriptor) => return Err(self.disagreement(seat, descriptor)),
            }
        }
        self.announce();
        if self.gate.is_some() {
            // Asked again at the next look if the answer is not yes.
            self.waiting = 1;
            if self.pass(Point::Gathered)? == Pass::Shut {
                return Ok(false);
            }
            self.waiting = 0;
        }
        Ok(true)
    }

    /// The first peer that has not begun the current operation, as far as this rank has looked.
    pub fn first_absent(&self) -> Option<usize> {
        (0..self.seats.len()).find(|&seat| !self.begun[seat])
    }

    /// All peers that have not begun the current operation.
    pub fn absent(&self) -> impl Iterator<Item = usize> {
        self.peers().filter(|&seat| !self.begun[seat] && self.seats[seat].board().begun(self.operation).is_none())
    }

    /// The peer whose marks are lowest: the one that the others are probably waiting for.
    pub fn last_behind(&self) -> Option<usize> {
        self.peers().min_by_key(|&seat| self.seats[seat].board().total_reached())
    }

    /// A peer's small contribution of `len` bytes; only after [`Windows::all_begun`] has said yes.
    pub fn small<'a>(&'a self, seat: usize, len: usize, inline: &'a mut [u8; INLINE_BYTES]) -> &'a [u8] {
        assert!(self.begun[seat], "a contribution is read after its owner has begun");
        if len <= INLINE_BYTES {
            self.seats[seat].board().contribution(self.operation, &mut inline[..len]);
            return &inline[..len];
        }
        assert!(len <= self.layout.small_bytes, "a small contribution fits its slot");
        let start = self.seats[seat].mapping.at(self.small_offset(), len);
        // SAFETY: the owner has begun this operation (asserted), so it has written the slot; it writes it again after we
        // have begun the next operation, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Makes sure that there is memory for tiles of this length, in all slots for them and for their results. To be called before
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
        let mapping = &self.seats[self.me].mapping;
        for slot in 0..self.layout.slots {
            for start in [self.layout.tile_offset(slot), self.layout.result_offset(slot)] {
                mapping.reserve(start, len)?;
            }
        }
        self.reserved_tile_bytes = len;
        Ok(())
    }

    /// This rank's slot for a tile, once no peer reads it any more. Call [`Windows::publish`] when it is filled.
    pub fn vacant_slot(&mut self, tile: u64, len: usize) -> Option<&mut [u8]> {
        let slots = self.layout.slots as u64;
        let free = match tile.checked_sub(slots) {
            Some(before) => self.all_reached(Stage::Folded, Mark::tile(self.operation, before)),
            None => self.previous_taken.is_none_or(|taken| self.all_reached(Stage::Folded, Mark::finished(taken))),
        };
        if !free {
            return None;
        }
        assert!(len <= self.layout.tile_bytes, "a tile fits its slot");
        let start = self.seats[self.me].mapping.at(self.layout.tile_offset((tile % slots) as usize), len);
        // SAFETY: the slot is ours. Peers read it between our `Published` and their `Folded` of the tile before in this
        // slot, which was checked above, also where that tile belongs to an operation in which peers take what they
        // need; from other operations slots are free because we have fetched everybody's result of the last tile, so
        // all have folded. `&mut self` keeps us from having it twice.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Shows this rank's slot for a tile to its peers.
    pub fn publish(&mut self, tile: u64) {
        self.reach(Stage::Published, Mark::tile(self.operation, tile));
    }

    /// Everybody's contribution to a tile and this rank's slot for the result, once all contributions are there and
    /// nobody reads the slot any more. Call [`Windows::folded`] when it is filled.
    pub fn folding(&mut self, tile: u64, result_len: usize) -> Option<Folding<'_>> {
        if !self.all_reached(Stage::Published, Mark::tile(self.operation, tile)) {
            return None;
        }
        let slots = self.layout.slots as u64;
        let free = match tile.checked_sub(slots) {
            Some(before) => self.all_reached(Stage::Fetched, Mark::tile(self.operation, before)),
            None => self.previous.is_none_or(|previous| self.all_reached(Stage::Fetched, Mark::finished(previous))),
        };
        if !free {
            return None;
        }
        assert!(result_len <= self.layout.tile_bytes, "a result fits its slot");
        let slot = (tile % slots) as usize;
        let start = self.seats[self.me].mapping.at(self.layout.result_offset(slot), result_len);
        // SAFETY: the slot is ours; peers have fetched what was in it (checked above). `Folding` borrows `self` mutably.
        let result = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), result_len) };
        Some(Folding { windows: self, slot, result })
    }

    /// Shows this rank's result of a tile, and says that it no longer reads the contributions to it.
    pub fn folded(&mut self, tile: u64) {
        self.reach(Stage::Folded, Mark::tile(self.operation, tile));
    }

    /// A peer's result of a tile, once it is there. Call [`Windows::fetched`] when it has been read.
    pub fn result(&self, seat: usize, tile: u64, len: usize) -> Option<&[u8]> {
        if !self.seats[seat].board().has_reached(Stage::Folded, Mark::tile(self.operation, tile)) {
            self.look_in_vain();
            return None;
        }
        assert!(len <= self.layout.tile_bytes, "a result fits its slot");
        let slot = (tile % self.layout.slots as u64) as usize;
        let start = self.seats[seat].mapping.at(self.layout.result_offset(slot), len);
        // SAFETY: the owner has folded the tile (checked), and writes the slot again after it has seen our `Fetched` of this
        // tile, which takes `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// What a peer has published of a tile, once it is there. Call [`Windows::release`] when it is no longer read.
    pub fn contribution(&self, seat: usize, tile: u64, offset: usize, len: usize) -> Option<&[u8]> {
        assert_ne!(seat, self.me, "a rank does not look into its own window");
        if !self.seats[seat].board().has_reached(Stage::Published, Mark::tile(self.operation, tile)) {
            self.look_in_vain();
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let slot = (tile % self.layout.slots as u64) as usize;
        let start = self.seats[seat].mapping.at(self.layout.tile_offset(slot) + offset, len);
        // SAFETY: the owner has published the tile (checked), and writes the slot again after it has seen our `Folded` of it,
        // which takes `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Says that this rank no longer reads what others have published of the tiles up to this one.
    pub fn release(&mut self, tile: u64) {
        self.taking = true;
        self.reach(Stage::Folded, Mark::tile(self.operation, tile));
    }

    /// Whether every peer has published a tile.
    pub fn all_published(&self, tile: u64) -> bool {
        self.all_reached(Stage::Published, Mark::tile(self.operation, tile))
    }

    /// Whether every peer has folded or released a tile.
    pub fn all_folded(&self, tile: u64) -> bool {
        self.all_reached(Stage::Folded, Mark::tile(self.operation, tile))
    }

    /// Says that this rank has read the result of one more peer of a tile. Tiles are fetched in order.
    pub fn fetched(&mut self, tile: u64) {
        self.fetches += 1;
        if self.fetches == self.seats.len() - 1 {
            self.fetches = 0;
            self.reach(Stage::Fetched, Mark::tile(self.operation, tile));
        }
    }

    /// Ends an operation that used tiles.
    pub fn finish(&mut self) {
        self.previous = Some(self.operation);
        if std::mem::take(&mut self.taking) {
            self.previous_taken = self.previous;
            self.board().reach(Stage::Folded, Mark::finished(self.operation));
        }
        self.reach(Stage::Fetched, Mark::finished(self.operation));
        self.announce();
    }

    /// Ends an operation that was given up. All ranks must have stopped it before any begins another.
    pub fn give_up(&mut self) {
        self.waiting = 0;
        self.taking = false;
        self.fetches = 0;
        self.begun.fill(true);
        for stage in [Stage::Published, Stage::Folded, Stage::Fetched] {
            self.reach(stage, Mark::finished(self.operation));
        }
        self.announce();
    }

    /// Raises one of this rank's marks.
    pub(crate) fn reach(&mut self, stage: Stage, mark: Mark) {
        self.board().reach(stage, mark);
        self.unannounced.set(Some(0));
    }

    /// Whether this rank has reached a mark.
    pub(crate) fn own_has_reached(&self, stage: Stage, mark: Mark) -> bool {
        self.board().has_reached(stage, mark)
    }

    /// Whether every peer has reached a mark.
    pub(crate) fn all_reached(&self, stage: Stage, mark: Mark) -> bool {
        let reached = self.peers().all(|seat| self.seats[seat].board().has_reached(stage, mark));
        if !reached {
            self.look_in_vain();
        }
        reached
    }

    /// The number of the current operation.
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// Sleeper's half of "looked, then slept" (see `board`): look again after this, before blocking.
    pub fn raise_asleep(&self) {
        self.announce();
        self.board().raise_asleep();
    }

    /// The driver is awake again.
    pub fn lower_asleep(&self) {
        self.board().lower_asleep();
    }

    fn board(&self) -> &Board {
        self.seats[self.me].board()
    }

    /// Announcer's half of "looked, then slept" for all marks raised since the last time.
    ///
    /// The fence in it waits until the marks have left this core, which takes as long as a hand-over. Right after raising
    /// one that time is better spent looking for the peers' marks, and most of the time nobody sleeps. So the
    /// announcement is put off until we have looked in vain a few times, sleep, or end the operation; an operation under way
    /// is looked at until it ends, so one of these comes soon.
    fn announce(&self) {
        if self.unannounced.take().is_some() {
            announced();
            for seat in self.peers() {
                if self.seats[seat].board().is_asleep() {
                    self.seats[seat].bell.ring();
                }
            }
        }
    }

    fn look_in_vain(&self) {
        if let Some(looks) = self.unannounced.get() {
            self.unannounced.set(Some(looks + 1));
            if looks >= LOOKS_BEFORE_ANNOUNCING {
                self.announce();
            }
        }
    }

    fn small_offset(&self) -> usize {
        self.layout.small_offset((self.operation & 1) as usize)
    }

    fn small_slot_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.layout.small_bytes, "a small contribution fits its slot");
        let start = self.seats[self.me].mapping.at(self.small_offset(), len);
        // SAFETY: the slot is ours. Peers last read it in operation k - 2, and we could finish k - 1 only after every
        // peer had begun it, hence finished k - 2. `&mut self` keeps us from having it twice.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    fn disagreement(&self, seat: usize, theirs: u64) -> Error {
        Error::Disagree { peer: self.rank(seat), operation: self.operation, ours: self.descriptor, theirs }
    }
}

/// Everybody's contributions to a tile, and the place for the result.
#[derive(Debug)]
pub struct Folding<'a> {
    windows: &'a Windows,
    slot: usize,
    /// This rank's result slot.
    pub result: &'a mut [u8],
}

impl<'a> Folding<'a> {
    /// A part of a peer's contribution, counted from the start of the tile.
    pub fn contribution(&self, seat: usize, offset: usize, len: usize) -> &'a [u8] {
        assert_ne!(seat, self.windows.me, "a rank does not publish its own chunk");
        assert!(offset + len <= self.windows.layout.tile_bytes, "a tile fits its slot");
        let start = self.windows.seats[seat].mapping.at(self.windows.layout.tile_offset(self.slot) + offset, len);
        // SAFETY: all peers have published the tile (checked in `folding`), and write the slot again after they have seen our
        // `Folded` of it, which takes `&mut Windows`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}
