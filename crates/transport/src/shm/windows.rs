//! The windows of the ranks of one host: what they show each other, and the rules of looking.
//!
//! Each rank owns one segment; all ranks map all of them. [`Windows`] turns the marks of the flags into references
//! that are safe to use: a method that hands out bytes of a peer first checks the mark which says that the peer has
//! written them, and the peer writes them again only after it has seen a mark of ours which we can only raise through
//! `&mut self`, when no such reference is alive any more. That is the invariant behind every `unsafe` block here:
//!
//! | bytes | written by | readable once | written again once |
//! |---|---|---|---|
//! | small slot of operation `k` | owner, in `begin` of `k` | owner has begun `k` | every peer has begun `k + 1` |
//! | tile slot `t % slots` | owner, before `mark_filled` | owner has `Filled` `t` | every peer has `Released` `t` |
//! | one peer's chunk of that slot | that peer, before `release_chunks` | that peer has `Released` `t` | owner has `Filled` `t + slots` |
//!
//! The last line is for operations whose results return to where the contributions were: between the owner's
//! `Filled` and a peer's `Released` of a tile, that peer's chunk of the owner's slot belongs to the peer alone.
//!
//! Every operation on windows is one that a rank finishes only after every other has begun it; an operation that was
//! given up counts as finished once all ranks have stopped it. Ranks are numbered within the host here (*local ranks*).
//!
//! Deliberately not here: arithmetic, schedules, blocking.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use farandole_plan::Rank;

use super::copy::copy_out;
use super::flags::{Flag, Flags, INLINE_BYTES, Mark, announced};
use super::gate::{Gate, Pass, Point};
use super::layout::Layout;
use super::segment::{Mapping, Segment};
use crate::error::{Error, Result};
use crate::wait::Bell;

/// Looks in vain before sleepers are looked for: about the time that a mark takes to leave this core.
const LOOKS_BEFORE_ANNOUNCING: u32 = 8;

/// A rank of this host as seen from here.
#[derive(Debug)]
pub(crate) struct LocalRank {
    /// Its number in the group.
    pub(crate) rank: Rank,
    pub(crate) segment: Segment,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) bell: Bell,
}

impl LocalRank {
    pub(crate) fn flags(&self) -> &Flags {
        flags_of(&self.mapping)
    }
}

/// The flags at the front of a mapped segment.
pub(crate) fn flags_of(mapping: &Mapping) -> &Flags {
    let start = mapping.at(0, std::mem::size_of::<Flags>());
    // SAFETY: the front of every segment is a `Flags`: zeroed pages are valid ones, they consist of atomics only, and
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
    pub(super) me: usize,
    pub(super) layout: Layout,
    pub(crate) local_ranks: Vec<LocalRank>,
    pub(super) operation: u64,
    descriptor: u64,
    /// The last operation before the current one in which peers read contributions of ours that we did not wait for.
    pub(super) previous_taken: Option<u64>,
    /// Whether the current operation is of that kind.
    pub(super) taking: bool,
    /// Peers that have been seen to have begun the current operation.
    begun: Vec<bool>,
    waiting: usize,
    /// Marks have been raised since we last looked who is asleep, and so many looks in vain ago.
    unannounced: Cell<Option<u32>>,
    /// End of the last mapped buffer in every segment.
    pub(crate) mapped_end: usize,
    /// How much of each of this rank's slots for tiles and results has been reserved.
    pub(super) reserved_tile_bytes: usize,
    /// Where faults strike, in tests.
    gate: Option<Box<dyn Gate>>,
}

impl Windows {
    /// Opens the windows of these ranks of one host, in the order of their group ranks. The entry at `me` is our own.
    pub fn open(me: usize, layout: Layout, neighbours: Vec<Neighbour>) -> Result<Windows> {
        assert_eq!(neighbours.len(), layout.ranks, "one neighbour for each rank of the host");
        let mut local_ranks = Vec::with_capacity(neighbours.len());
        for Neighbour { rank, segment, bell } in neighbours {
            let mapping = Arc::new(segment.map(0, layout.fixed_bytes())?);
            local_ranks.push(LocalRank { rank, segment, mapping, bell });
        }
        let begun = vec![true; local_ranks.len()];
        let mapped_end = layout.fixed_bytes();
        Ok(Windows {
            me,
            layout,
            local_ranks,
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

    /// This rank's local rank.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Number of local ranks.
    pub fn size(&self) -> usize {
        self.local_ranks.len()
    }

    /// The sizes all ranks of the host agree on.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The group rank in a local rank.
    pub fn rank(&self, local_rank: usize) -> Rank {
        self.local_ranks[local_rank].rank
    }

    /// The local rank of a group rank, which must be on this host.
    pub fn local_rank(&self, rank: Rank) -> usize {
        self.local_ranks
            .binary_search_by_key(&rank, |local_rank| local_rank.rank)
            .expect("window steps stay on their host")
    }

    /// The local ranks of all peers.
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.local_ranks.len()).filter(move |&local_rank| local_rank != me)
    }

    /// Begins operation number `operation`, which must be larger than all before. `descriptor` stands for what this
    /// rank takes the operation to be; `small` is its contribution, shown at once, or empty.
    pub fn begin(&mut self, operation: u64, descriptor: u64, small: &[u8]) {
        if !self.turn_to(operation, descriptor) {
            return;
        }
        if small.len() > INLINE_BYTES {
            copy_out(self.small_slot_mut(small.len()), small);
            self.flags().begin(operation, descriptor, &[]);
        } else {
            self.flags().begin(operation, descriptor, small);
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
        self.flags().begin(operation, descriptor, note);
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
        self.waiting = self.local_ranks.len() - 1;
        self.gate.is_none() || matches!(self.pass(Point::Begin), Ok(Pass::Open))
    }

    /// Whether every peer has begun the current operation; an error if one of them takes it to be something else.
    pub fn all_begun(&mut self) -> Result<bool> {
        if self.waiting == 0 {
            return Ok(true);
        }
        for local_rank in 0..self.local_ranks.len() {
            if self.begun[local_rank] {
                continue;
            }
            match self.local_ranks[local_rank].flags().begun(self.operation) {
                None => {
                    self.look_in_vain();
                    return Ok(false);
                }
                Some(descriptor) if descriptor == self.descriptor => {
                    self.begun[local_rank] = true;
                    self.waiting -= 1;
                }
                Some(descriptor) => return Err(self.disagreement(local_rank, descriptor)),
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
        (0..self.local_ranks.len()).find(|&local_rank| !self.begun[local_rank])
    }

    /// All peers that have not begun the current operation.
    pub fn absent(&self) -> impl Iterator<Item = usize> {
        self.peers().filter(|&local_rank| {
            !self.begun[local_rank] && self.local_ranks[local_rank].flags().begun(self.operation).is_none()
        })
    }

    /// The peer whose marks are lowest: the one that the others are probably waiting for.
    pub fn last_behind(&self) -> Option<usize> {
        self.peers().min_by_key(|&local_rank| self.local_ranks[local_rank].flags().total_reached())
    }

    /// A peer's small contribution of `len` bytes; only after [`Windows::all_begun`] has said yes.
    pub fn small<'a>(&'a self, local_rank: usize, len: usize, inline: &'a mut [u8; INLINE_BYTES]) -> &'a [u8] {
        assert!(self.begun[local_rank], "a contribution is read after its owner has begun");
        if len <= INLINE_BYTES {
            self.local_ranks[local_rank].flags().contribution(self.operation, &mut inline[..len]);
            return &inline[..len];
        }
        self.small_part(local_rank, 0, len)
    }

    /// A part of a peer's small slot; only after [`Windows::all_begun`] has said yes.
    pub fn small_part(&self, local_rank: usize, offset: usize, len: usize) -> &[u8] {
        assert!(self.begun[local_rank], "a contribution is read after its owner has begun");
        assert!(offset + len <= self.layout.small_bytes, "a small contribution fits its slot");
        let start = self.local_ranks[local_rank].mapping.at(self.small_offset() + offset, len);
        // SAFETY: the owner has begun this operation (asserted), so it has written the slot; it writes it again after
        // we have begun the next operation, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Ends an operation that used tiles.
    pub fn finish(&mut self) {
        if std::mem::take(&mut self.taking) {
            self.previous_taken = Some(self.operation);
            self.reach(Flag::Released, Mark::finished(self.operation));
        }
        self.announce();
    }

    /// Ends an operation that was given up. All ranks must have stopped it before any begins another.
    pub fn give_up(&mut self) {
        self.waiting = 0;
        self.taking = false;
        self.begun.fill(true);
        for flag in [Flag::Filled, Flag::Released] {
            self.reach(flag, Mark::finished(self.operation));
        }
        self.announce();
    }

    /// Raises one of this rank's marks.
    pub(crate) fn reach(&mut self, flag: Flag, mark: Mark) {
        self.flags().reach(flag, mark);
        self.unannounced.set(Some(0));
    }

    /// Whether this rank has reached a mark.
    pub(crate) fn own_has_reached(&self, flag: Flag, mark: Mark) -> bool {
        self.flags().has_reached(flag, mark)
    }

    /// Whether every peer has reached a mark.
    pub(crate) fn all_reached(&self, flag: Flag, mark: Mark) -> bool {
        let reached = self.peers().all(|local_rank| self.local_ranks[local_rank].flags().has_reached(flag, mark));
        if !reached {
            self.look_in_vain();
        }
        reached
    }

    /// The number of the current operation.
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// Sleeper's half of "looked, then slept" (see `flags`): look again after this, before blocking.
    pub fn raise_asleep(&self) {
        self.announce();
        self.flags().raise_asleep();
    }

    /// The driver is awake again.
    pub fn lower_asleep(&self) {
        self.flags().lower_asleep();
    }

    fn flags(&self) -> &Flags {
        self.local_ranks[self.me].flags()
    }

    /// Announcer's half of "looked, then slept" for all marks raised since the last time.
    ///
    /// The fence in it waits until the marks have left this core, which takes as long as a hand-over. Right after
    /// raising one that time is better spent looking for the peers' marks, and most of the time nobody sleeps. So the
    /// announcement is put off until we have looked in vain a few times, sleep, or end the operation; an operation
    /// under way is looked at until it ends, so one of these comes soon.
    pub fn announce(&self) {
        if self.unannounced.take().is_some() {
            announced();
            for local_rank in self.peers() {
                if self.local_ranks[local_rank].flags().is_asleep() {
                    self.local_ranks[local_rank].bell.ring();
                }
            }
        }
    }

    pub(super) fn look_in_vain(&self) {
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
        let start = self.local_ranks[self.me].mapping.at(self.small_offset(), len);
        // SAFETY: the slot is ours. Peers last read it in operation k - 2, and we could finish k - 1 only after every
        // peer had begun it, hence finished k - 2. `&mut self` keeps us from having it twice.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    fn disagreement(&self, local_rank: usize, theirs: u64) -> Error {
        Error::Disagree { peer: self.rank(local_rank), operation: self.operation, ours: self.descriptor, theirs }
    }
}
