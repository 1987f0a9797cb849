//! What a rank tells the other ranks of its host, word by word: the hand-over protocol of shared memory.
//!
//! Every rank has [`Flags`] at the front of its segment. Only the owner writes to it; everybody reads. A word on it
//! only ever grows, so a reader asks one kind of question: "has it reached this value?" ([`Mark`]).
//!
//! **Handing over bytes.** The owner writes the bytes, then stores the mark with release ordering; a reader loads the
//! mark with acquire ordering and, if it has been reached, may read the bytes. The owner may write those bytes again
//! only once the marks of all readers say that they are past them; which marks these are is written at each user.
//!
//! **Scenario "looked, then slept".** A rank that has looked at a mark in vain wants to block until somebody rings its
//! bell. The announcer may store the mark between the look and the block. Therefore: the sleeper raises `asleep`, *then
//! looks again*, then blocks; the announcer stores the mark, *then looks at `asleep`*, and rings if it is raised. A
//! sequentially consistent fence stands between the two accesses on both sides, so at least one of the two sees the
//! other's store: either the sleeper sees the mark or the announcer sees the sleeper. `tests/loom_flags.rs` checks
//! every interleaving.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bits of a mark that count tiles within an operation.
const TILE_BITS: u32 = 20;

/// The last tile of an operation that a mark can tell apart: zero is kept for "begun", the last number for "finished".
pub const MAX_TILES: u64 = (1 << TILE_BITS) - 3;

/// Words of payload that travel on the posting itself: with the mark and the descriptor they fill one cache line, so
/// a tiny contribution reaches a peer in a single transfer between cores.
pub const INLINE_WORDS: usize = 6;

/// Bytes of payload that travel on the posting itself.
pub const INLINE_BYTES: usize = INLINE_WORDS * 8;

/// A point in the life of a group that every rank passes: tile `tile` of operation `operation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl Mark {
    /// The rank has done its part of this tile.
    pub fn tile(operation: u64, tile: u64) -> Mark {
        assert!(tile <= MAX_TILES, "an operation has at most 2^{TILE_BITS} tiles");
        Mark::of(operation, tile + 1)
    }

    /// The rank has begun the operation.
    pub fn begun(operation: u64) -> Mark {
        Mark::of(operation, 0)
    }

    /// The rank has finished the operation.
    pub fn finished(operation: u64) -> Mark {
        Mark::of(operation, (1 << TILE_BITS) - 1)
    }

    fn of(operation: u64, low: u64) -> Mark {
        assert!(operation < 1 << (64 - TILE_BITS), "operations are counted below 2^44");
        Mark(operation << TILE_BITS | low)
    }

    /// The operation this mark belongs to.
    pub fn operation(self) -> u64 {
        self.0 >> TILE_BITS
    }
}

/// The announcement of an operation, with room for a tiny contribution. One cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Posting {
    begun: AtomicU64,
    descriptor: AtomicU64,
    words: [AtomicU64; INLINE_WORDS],
}

/// One growing word on a cache line of its own, so that polling one does not disturb the others.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Word(AtomicU64);

/// Everything a rank tells the others of its host.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Flags {
    /// Two, used in turn: the posting of operation `k` is overwritten by `k + 2`, which a rank begins only after every
    /// peer has begun `k + 1`, hence finished with `k`.
    postings: [Posting; 2],
    published: Word,
    folded: Word,
    asleep: Asleep,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Asleep(AtomicU32);

/// Which of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// The rank's contribution to a tile lies in its slot.
    Filled,
    /// The rank no longer touches the contributions of others to a tile, and has returned its result if it returns any.
    Released,
}

impl Flags {
    /// Begins an operation: says what this rank takes it to be, with a tiny contribution.
    pub fn begin(&self, operation: u64, descriptor: u64, contribution: &[u8]) {
        let posting = &self.postings[(operation & 1) as usize];
        for (word, bytes) in posting.words.iter().zip(contribution.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        posting.descriptor.store(descriptor, Ordering::Relaxed);
        posting.begun.store(Mark::begun(operation).0, Ordering::Release);
    }

    /// What the owner takes the operation to be, once it has begun it.
    pub fn begun(&self, operation: u64) -> Option<u64> {
        let posting = &self.postings[(operation & 1) as usize];
        (posting.begun.load(Ordering::Acquire) >= Mark::begun(operation).0)
            .then(|| posting.descriptor.load(Ordering::Relaxed))
    }

    /// The tiny contribution that came with `begin`; only after `begun` has said yes.
    pub fn contribution(&self, operation: u64, out: &mut [u8]) {
        let posting = &self.postings[(operation & 1) as usize];
        for (word, bytes) in posting.words.iter().zip(out.chunks_mut(8)) {
            let length = bytes.len();
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..length]);
        }
    }

    /// Raises a word to this mark. Bytes written before are visible to whoever sees it.
    pub fn reach(&self, flag: Flag, mark: Mark) {
        self.word(flag).store(mark.0, Ordering::Release);
    }

    /// Whether the owner has reached this mark. If so, what it wrote before is visible.
    pub fn has_reached(&self, flag: Flag, mark: Mark) -> bool {
        self.word(flag).load(Ordering::Acquire) >= mark.0
    }

    /// All marks together, to compare how far ranks have come. Only a hint: the words are read one after the other.
    pub fn total_reached(&self) -> u128 {
        [Flag::Filled, Flag::Released].map(|flag| u128::from(self.word(flag).load(Ordering::Relaxed))).iter().sum()
    }

    /// Sleeper's half of "looked, then slept". Look again after this call, before blocking.
    pub fn raise_asleep(&self) {
        self.asleep.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake again.
    pub fn lower_asleep(&self) {
        self.asleep.0.store(0, Ordering::Relaxed);
    }

    /// Announcer's half of "looked, then slept", for the marks stored before [`announced`].
    pub fn is_asleep(&self) -> bool {
        self.asleep.0.load(Ordering::Relaxed) != 0
    }

    fn word(&self, flag: Flag) -> &AtomicU64 {
        match flag {
            Flag::Filled => &self.published.0,
            Flag::Released => &self.folded.0,
        }
    }
}

/// Stands between storing a mark and looking who is asleep.
pub fn announced() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_grow_with_operation_and_tile() {
        let order = [
            Mark::begun(1),
            Mark::tile(1, 0),
            Mark::tile(1, 1),
            Mark::tile(1, MAX_TILES),
            Mark::finished(1),
            Mark::begun(2),
        ];
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Mark::tile(7, 3).operation(), 7);
    }

    #[test]
    fn a_posting_carries_a_tiny_contribution() {
        let flags = Flags::default();
        assert_eq!(flags.begun(4), None);
        flags.begin(4, 99, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(flags.begun(4), Some(99));
        assert_eq!(flags.begun(6), None);
        let mut out = [0; 9];
        flags.contribution(4, &mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn each_word_has_a_cache_line_of_its_own() {
        assert_eq!(std::mem::size_of::<Posting>(), 64);
        assert_eq!(std::mem::size_of::<Flags>(), 5 * 64);
    }
}
