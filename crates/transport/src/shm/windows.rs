//! The windows of the ranks of one host: what they show each other, and the rules of looking.
//!
//! Each rank owns one segment; all ranks map all of them. [`Windows`] turns the marks of the boards into references
//! that are safe to use: a method that hands out bytes of a peer first checks the mark which says that the peer has
//! written them, and the peer writes them again only after it has seen a mark of ours which we can only raise through
//! `&mut self`, when no such reference is alive any more. That is the invariant behind every `unsafe` block here:
//!
//! | bytes | written by | readable once | written again once |
//! |---|---|---|---|
//! | small slot of operation `k` | owner, in `begin` of `k` | owner has begun `k` | every peer has begun `k + 1` |
//! | tile slot `t % slots` | owner, before `publish` | owner has `Published` `t` | every peer has `Folded` `t` |
//! | one peer's chunk of that slot | that peer, before `folded` | that peer has `Folded` `t` | owner has `Published` `t + slots` |
//!
//! The last line is for operations whose results return to where the contributions were: between the owner's
//! `Published` and a peer's `Folded` of a tile, that peer's chunk of the owner's slot belongs to the peer alone.
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
    /// The last operation before the current one in which peers read contributions of ours that we did not wait for.
    previous_taken: Option<u64>,
    /// Whether the current operation is of that kind.
    taking: bool,
    /// Peers that have been seen to have begun the current operation.
    begun: Vec<bool>,
    waiting: usize,
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
            previous_taken: None,
            taking: false,
            begun,
            waiting: 0,
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

    /// Begins operation number `operation`, which must be larger than all before. `descriptor` stands for what this
    /// rank takes the operation to be; `small` is its contribution, shown at once, or empty.
    pub fn begin(&mut self, operation: u64, descriptor: u64, small: &[u8]) {
        if !self.turn_to(operation, descriptor) {
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

    /// As [`Windows::begin`] with a small slot that `fill` fills, and a note of at most [`INLINE_BYTES`] on the posting
    /// itself. Peers read them with [`Windows::small`] and [`Windows::small_part`].
    pub fn begin_with_note(&mut self, operation: u64, descriptor: u64, note: &[u8], fill: impl FnOnce(&mut [u8])) {
        assert!(note.len() <= INLINE_BYTES, "a note fits its posting");
        if !self.turn_to(operation, descriptor) {
            return;
        }
        fill(self.small_slot_mut(self.layout.small_bytes));
        self.board().begin(operation, descriptor, note);
        self.unannounced.set(Some(0));
    }

    /// Makes this the current operation. Whether it may be announced: whoever cannot go on is told so at the next
    /// point.
    fn turn_to(&mut self, operation: u64, descriptor: u64) -> bool {
        assert!(operation > self.operation, "operations are begun in order");
        self.operation = operation;
        self.descriptor = descriptor;
        self.begun.fill(false);
        self.begun[self.me] = true;
        self.waiting = self.seats.len() - 1;
        self.gate.is_none() || matches!(self.pass(Point::Begin), Ok(Pass::Open))
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
        self.small_part(seat, 0, len)
    }

    /// A part of a peer's small slot; only after [`Windows::all_begun`] has said yes.
    pub fn small_part(&self, seat: usize, offset: usize, len: usize) -> &[u8] {
        assert!(self.begun[seat], "a contribution is read after its owner has begun");
        assert!(offset + len <= self.layout.small_bytes, "a small contribution fits its slot");
        let start = self.seats[seat].mapping.at(self.small_offset() + offset, len);
        // SAFETY: the owner has begun this operation (asserted), so it has written the slot; it writes it again after
        // we have begun the next operation, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

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
        let mapping = &self.seats[self.me].mapping;
        for slot in 0..self.layout.slots {
            mapping.reserve(self.layout.tile_offset(slot), len)?;
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
        // all have folded, and with it have written what they return. `&mut self` keeps us from having it twice.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Shows this rank's slot for a tile to its peers.
    pub fn publish(&mut self, tile: u64) {
        self.reach(Stage::Published, Mark::tile(self.operation, tile));
    }

    /// This rank's chunk of a tile in the slots of all peers, in the order of their seats, once all have published the
    /// tile: their contributions, to be replaced by the result. Call [`Windows::folded`] when it is there.
    ///
    /// `offset` and `len` must be those of the chunk that the schedule gives to this rank alone.
    pub fn chunks(&mut self, tile: u64, offset: usize, len: usize) -> Option<Vec<&mut [u8]>> {
        if !self.all_published(tile) {
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let offset = self.layout.tile_offset((tile % self.layout.slots as u64) as usize) + offset;
        let chunk = |seat: usize| {
            let start = self.seats[seat].mapping.at(offset, len);
            // SAFETY: the owner has published the tile (checked above) and touches this chunk of its slot again only
            // after it has seen our `Folded` of the tile, which takes `&mut self`; other peers touch their own chunks.
            // Each seat has a mapping of its own, so the slices are disjoint.
            unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
        };
        Some(self.peers().map(chunk).collect())
    }

    /// Shows what this rank has returned of a tile, and says that it no longer touches the contributions to it.
    pub fn folded(&mut self, tile: u64) {
        self.reach(Stage::Folded, Mark::tile(self.operation, tile));
    }

    /// What a peer has returned of a tile in its chunk of this rank's slot, once it is there.
    pub fn returned(&self, seat: usize, tile: u64, offset: usize, len: usize) -> Option<&[u8]> {
        if !self.seats[seat].board().has_reached(Stage::Folded, Mark::tile(self.operation, tile)) {
            self.look_in_vain();
            return None;
        }
        assert!(offset + len <= self.layout.tile_bytes, "a tile fits its slot");
        let slot = (tile % self.layout.slots as u64) as usize;
        let start = self.seats[self.me].mapping.at(self.layout.tile_offset(slot) + offset, len);
        // SAFETY: the slot is ours. The peer has folded the tile (checked), so it has written its chunk and writes
        // there again only after we have published another tile, which takes `&mut self`.
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
        // SAFETY: the owner has published the tile (checked), and writes the slot again after it has seen our `Folded`
        // of it, which takes `&mut self`.
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

    /// Ends an operation that used tiles.
    pub fn finish(&mut self) {
        if std::mem::take(&mut self.taking) {
            self.previous_taken = Some(self.operation);
            self.reach(Stage::Folded, Mark::finished(self.operation));
        }
        self.announce();
    }

    /// Ends an operation that was given up. All ranks must have stopped it before any begins another.
    pub fn give_up(&mut self) {
        self.waiting = 0;
        self.taking = false;
        self.begun.fill(true);
        for stage in [Stage::Published, Stage::Folded] {
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
    /// The fence in it waits until the marks have left this core, which takes as long as a hand-over. Right after
    /// raising one that time is better spent looking for the peers' marks, and most of the time nobody sleeps. So the
    /// announcement is put off until we have looked in vain a few times, sleep, or end the operation; an operation
    /// under way is looked at until it ends, so one of these comes soon.
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
