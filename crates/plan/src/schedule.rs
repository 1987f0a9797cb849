//! What one rank does, step by step, to carry out one collective.
//!
//! Every algorithm of this crate produces a [`Schedule`]: a flat list of [`Step`]s for one rank. A driver walks the
//! list from front to back. Spans count elements, ranks are numbered inside the group. There are three families of
//! steps.
//!
//! **Messages** ([`Step::Send`], [`Step::Recv`]) work over any link. A send is *posted*: the driver hands the span to
//! the link and walks on; the bytes leave in the order of posting, first in, first out for each pair of ranks. The span
//! of a posted send must not be written before it has left: a driver that reaches a receive into it takes the message
//! from the link but writes it only after the send has left. (Waiting first and taking then would let two ranks that
//! exchange the same span wait for each other.) A receive waits for the next message of that peer, which must have
//! exactly its length. With sends that never block, a set of schedules is free of deadlock exactly if it terminates in
//! a symbolic run. Where the order of operands matters, the contribution that comes from the lower rank is the left
//! one. [`Step::Copy`] moves elements from the source to the work buffer inside one rank.
//!
//! **Window steps** work between ranks that see each other's memory. Each rank has a *window*: a shared-memory area
//! with `slots` slots, each for one *tile* (tile `t` uses slot `t % slots`). Tiles cut the buffer into cache-sized
//! pieces, so that what passes between ranks stays in cache:
//! - [`Step::Publish`] copies this rank's contribution to the tile (all chunks but its own) into its slot; before, it
//!   waits until every peer has folded tile `t - slots` (nobody still reads the slot).
//! - [`Step::FoldTile`] waits until every peer has published the tile, combines all contributions to its own chunk in
//!   rank order, leaves the result in its buffer and writes it to every peer's slot, where that peer's contribution
//!   was.
//! - [`Step::Fetch`] waits until `from` has folded the tile and copies the chunk of `from` out of this rank's own slot
//!   into the buffer. All chunks of a tile must be fetched before tile `t + slots` is published.
//! - [`Step::FoldWhole`] waits until every peer has published the tile *whole* and combines all contributions to all of
//!   it, in rank order, on every rank alike: one hand-over instead of two, for small tensors.
//!
//! Some collectives have tiles that are not one span, or no results to fetch. They use:
//! - [`Step::Stage`], which copies a span of either buffer to a place in the slot, with the same wait as `Publish`; the
//!   `Publish` of the tile (of an empty span) makes all of it visible;
//! - [`Step::FoldChunk`], which waits until every peer has published the tile, combines all contributions to a chunk in
//!   rank order and leaves the result in the buffer only;
//! - [`Step::Take`], which waits until `from` has published the tile and copies a part of that rank's slot;
//! - [`Step::Release`], which says that this rank no longer reads the tile or any before it in anybody's slots: to
//!   those who wait, it has folded them. A rank that walks through fewer tiles than its peers ends with [`EVERY_TILE`];
//! - [`Step::Drain`], which waits until every peer has folded or released the tile. At the end of a schedule that also
//!   sends messages it keeps a rank from going on to the next operation before all have begun this one.
//!
//! The peers of a window step are the other ranks of the group *on the same host*. Tiles of one schedule are published
//! in the order of their numbers, starting from zero. Nobody may still be reading a slot that is written, also if the
//! reader is in an earlier operation: what a step waits for in the first `slots` tiles, it waits for in the operation
//! before.
//!
//! **Mapped steps** work on buffers that themselves lie in shared memory:
//! - [`Step::Expose`] says that this rank's buffer is filled;
//! - [`Step::FoldAcross`] waits until everybody has exposed, combines the span of all buffers in rank order and stores
//!   the result in all of them;
//! - [`Step::Settle`] says that this rank is done and waits until all are.
//!
//! What a step waits for is part of its meaning, so that a schedule cannot forget to wait. `tests/schedules` checks the
//! rest.

use std::collections::BTreeMap;

use crate::request::Rank;

/// A range of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// First element.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
}

impl Span {
    /// The elements from `start` up to and without `end`.
    pub fn between(start: u64, end: u64) -> Span {
        assert!(start <= end, "a span does not end before it starts");
        Span { start, len: end - start }
    }

    /// One past the last element.
    pub fn end(self) -> u64 {
        self.start + self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether the two have an element in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end() && other.start < self.end() && !self.is_empty() && !other.is_empty()
    }

    /// The `part`-th of `parts` nearly equal pieces; earlier pieces get the extra elements.
    pub fn piece(self, part: usize, parts: usize) -> Span {
        let (part, parts) = (part as u64, parts as u64);
        let (share, extra) = (self.len / parts, self.len % parts);
        let start = self.start + part * share + part.min(extra);
        Span { start, len: share + u64::from(part < extra) }
    }
}

/// The number of a tile that no schedule reaches: as many as a mark of shared memory can tell apart.
pub const EVERY_TILE: u32 = (1 << 20) - 3;

/// Which memory a send reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The buffer that receives write to.
    Work,
    /// The caller's input where it must stay as it is (alltoall).
    Source,
}

/// What happens to arriving elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// They replace what is there.
    Place,
    /// They are combined with what is there.
    Fold,
}

/// One step of one rank. See the module's text for what each waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Post a message.
    Send {
        /// The peer.
        to: Rank,
        /// Where the elements are.
        from: Buffer,
        /// Which elements.
        span: Span,
    },
    /// Wait for a message.
    Recv {
        /// The peer.
        from: Rank,
        /// Where the elements go in [`Buffer::Work`].
        span: Span,
        /// What happens to them.
        arrival: Arrival,
    },
    /// Copy elements of this rank from [`Buffer::Source`] to [`Buffer::Work`].
    Copy {
        /// Where they are.
        source: Span,
        /// Where they go; as long as `source`.
        work: Span,
    },
    /// Make this rank's contribution to a tile visible.
    Publish {
        /// Number of the tile.
        tile: u32,
        /// The tile.
        span: Span,
        /// The part that nobody else needs (this rank's own chunk), inside `span`; may be empty.
        except: Span,
    },
    /// Combine everybody's contribution to this rank's chunk of a tile and return the result to everybody's slot.
    FoldTile {
        /// Number of the tile.
        tile: u32,
        /// The tile.
        span: Span,
        /// This rank's chunk of it.
        chunk: Span,
    },
    /// Copy another rank's result of a tile out of this rank's own slot.
    Fetch {
        /// Number of the tile.
        tile: u32,
        /// The tile.
        span: Span,
        /// Whose result.
        from: Rank,
        /// That rank's chunk of the tile.
        chunk: Span,
    },
    /// Combine everybody's contribution to a whole tile.
    FoldWhole {
        /// Number of the tile.
        tile: u32,
        /// The tile.
        span: Span,
    },
    /// Put a part of a tile into this rank's slot, to be made visible by the tile's `Publish`.
    Stage {
        /// Number of the tile.
        tile: u32,
        /// Where the part is.
        from: Buffer,
        /// The part.
        span: Span,
        /// How many elements of the slot lie before it.
        at: u64,
    },
    /// Combine everybody's contribution to this rank's chunk of a tile, for itself only.
    FoldChunk {
        /// Number of the tile.
        tile: u32,
        /// This rank's chunk.
        chunk: Span,
        /// How many elements lie before it in everybody's slot.
        at: u64,
    },
    /// Copy what another rank has published.
    Take {
        /// Number of the tile.
        tile: u32,
        /// Whose slot.
        from: Rank,
        /// Where it goes.
        span: Span,
        /// How many elements of the slot lie before it.
        at: u64,
    },
    /// Say that this rank has read all it needs of the tiles up to this one.
    Release {
        /// Number of the tile.
        tile: u32,
    },
    /// Wait until all peers have folded or released the tile.
    Drain {
        /// Number of the tile.
        tile: u32,
    },
    /// Say that this rank's mapped buffer is filled.
    Expose,
    /// Combine a span of all mapped buffers and store the result in all of them.
    FoldAcross {
        /// The span.
        span: Span,
    },
    /// Say that this rank is done with the mapped buffers and wait until all are.
    Settle,
}

/// The steps of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In the order in which they are taken.
    pub steps: Vec<Step>,
    /// Slots of the window that window steps assume; zero if there are none.
    pub slots: u32,
}

impl Schedule {
    /// A schedule of message or mapped steps.
    pub fn new(steps: Vec<Step>) -> Schedule {
        Schedule { steps, slots: 0 }
    }

    /// Which messages of an allreduce over links carry *results*, and which elements become results on this rank.
    ///
    /// Before an element is a result it is a partial result; drivers may carry the two in different element types. A
    /// receive that folds takes a partial result, one that places takes a result. A send carries results exactly if
    /// nothing is received into its span afterwards: what is still to be folded, or to be replaced by the result, is
    /// partial. Sender and receiver come to the same answer, for every algorithm (`tests/schedules.rs`).
    pub fn results(&self, elems: u64) -> Results {
        let mut carried = vec![false; self.steps.len()];
        let (mut received_later, mut placed) = (SpanSet::default(), SpanSet::default());
        for (index, step) in self.steps.iter().enumerate().rev() {
            match *step {
                Step::Recv { span, arrival, .. } => {
                    carried[index] = arrival == Arrival::Place;
                    received_later.insert(span);
                    if arrival == Arrival::Place {
                        placed.insert(span);
                    }
                }
                Step::Send { span, .. } => carried[index] = !received_later.overlaps(span),
                _ => {}
            }
        }
        Results { carried, made_here: placed.complement(elems) }
    }
}

/// See [`Schedule::results`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// For each step, whether its message carries results.
    pub carried: Vec<bool>,
    /// Elements whose last fold is on this rank; the others arrive as results. In order.
    pub made_here: Vec<Span>,
}

/// Elements, as spans that do not touch each other.
#[derive(Debug, Default)]
struct SpanSet {
    /// End of each span by its start.
    ends: BTreeMap<u64, u64>,
}

impl SpanSet {
    fn insert(&mut self, span: Span) {
        let (mut start, mut end) = (span.start, span.end());
        if span.is_empty() {
            return;
        }
        // Spans that overlap or touch become one with it. Their ends grow with their starts.
        while let Some((&other_start, &other_end)) = self.ends.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            (start, end) = (start.min(other_start), end.max(other_end));
            self.ends.remove(&other_start);
        }
        self.ends.insert(start, end);
    }

    fn overlaps(&self, span: Span) -> bool {
        self.ends.range(..span.end()).next_back().is_some_and(|(_, &end)| end > span.start)
    }

    /// The elements below `elems` that are not in it.
    fn complement(&self, elems: u64) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut start = 0;
        for (&taken, &end) in &self.ends {
            if taken > start {
                spans.push(Span::between(start, taken));
            }
            start = end;
        }
        if elems > start {
            spans.push(Span::between(start, elems));
        }
        spans
    }
}
