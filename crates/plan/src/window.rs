//! Allreduce on one host through shared memory: in tiles, whole, or across mapped buffers.
//!
//! **Tiles.** The buffer is cut into equal *tiles*, each tile into a *chunk* for each rank. For each tile, a rank
//! publishes its contribution to the others' chunks, folds its own chunk out of everybody's window, writes the result
//! back to where the contributions were, and fetches the others' chunks out of its own window. Traffic of each rank for
//! `N` bytes: copies `N (n-1)/n` into its window, reads `N` to fold and writes `N`, fetches `N (n-1)/n`.
//!
//! Every line of a window is written by its two users in turn: the owner puts its contribution there, the folder
//! replaces it by the result. So a line moves between two cores' caches twice for each tile, once in each direction,
//! and whoever writes it next already has it. With a slot of its own for the result, each line was read by one core and
//! then written by the core that wrote it before, which must first take it away from the reader: four transfers instead
//! of two with two ranks.
//!
//! Hand-overs: two for each tile, but they overlap: publishing runs `ahead` tiles ahead of folding and fetching comes
//! `behind` tiles behind it, so that a rank has something to do while its peers come up. The window allows that without
//! extra waiting as long as `ahead + behind < slots`: before tile `t` is published, tile `t - ahead - behind - 1` has
//! been fetched, which is at least the last tile that used the slot of `t`, and what has been fetched has been folded
//! by everybody.
//!
//! Chunks lie at the same place in every tile: the last tile is cut off, not divided anew. Tiles are made equal first,
//! so the last one misses little.
//!
//! **Whole.** Every rank publishes everything and folds everything, in the same order, and so gets the same bits. One
//! hand-over, `n N` bytes read: for small tensors, where the hand-over is what costs.
//!
//! **Mapped.** The buffers themselves are shared. Each rank folds its chunk straight out of all buffers and stores the
//! result straight into all of them: `N` bytes read and `N` written for each rank, no copies at all.
//!
//! [`Rounds`] is the layout for collectives in which each rank has a chunk of its own from the start (`gather`,
//! `scatter`).

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::schedule::{Schedule, Span, Step};

/// Chunks start at multiples of this many elements where tiles are large enough, so that two ranks never write the same
/// cache line (64 bytes hold at most 64 elements) and kernels start aligned.
const ALIGN_ELEMS: u64 = 64;
/// Chunks are aligned only if that shifts less than an eighth of one.
const ALIGNED_CHUNK_MIN_ELEMS: u64 = 8 * ALIGN_ELEMS;

/// The `part`-th of `parts` nearly equal pieces of the first `len` elements, aligned if they are large.
fn aligned_piece(len: u64, part: usize, parts: usize) -> Span {
    let share = len.div_ceil(parts as u64);
    if share < ALIGNED_CHUNK_MIN_ELEMS {
        return Span::between(0, len).piece(part, parts);
    }
    let share = share.next_multiple_of(ALIGN_ELEMS);
    Span::between((share * part as u64).min(len), (share * (part as u64 + 1)).min(len))
}

/// How a buffer is cut into tiles.
struct Tiling {
    elems: u64,
    /// Elements of every tile but the last.
    tile_elems: u64,
    count: u32,
}

impl Tiling {
    fn new(elems: u64, longest_tile_elems: u64) -> Tiling {
        let longest = longest_tile_elems.max(1);
        let equal = elems.div_ceil(elems.div_ceil(longest).max(1)).max(1);
        let aligned = equal.next_multiple_of(ALIGN_ELEMS);
        let tile_elems = if aligned <= longest { aligned } else { equal };
        let count = u32::try_from(elems.div_ceil(tile_elems)).expect("a buffer has fewer than 2^32 tiles");
        Tiling { elems, tile_elems, count }
    }

    fn span(&self, tile: u32) -> Span {
        let start = u64::from(tile) * self.tile_elems;
        Span::between(start, (start + self.tile_elems).min(self.elems))
    }

    fn chunk(&self, tile: u32, part: usize, parts: usize) -> Span {
        let span = self.span(tile);
        let full = aligned_piece(self.tile_elems, part, parts);
        Span::between(span.start + full.start.min(span.len), span.start + full.end().min(span.len))
    }
}

/// The longest tile of a tiled allreduce of `n` ranks. With more ranks a rank touches more windows for each tile, all
/// of which should stay in its second-level cache beside the buffer (2 MiB on the machine on which this was measured:
/// with 8 and 16 ranks and 16 MB, tiles of 512 KiB took a quarter longer than those of 128 KiB, with 2 ranks a
/// twentieth less). Below four tiles nothing overlaps, but tiles of less than a quarter cost more hand-overs than that
/// is worth.
fn longest_tile_elems(elems: u64, n: usize, tuning: &Tuning) -> u64 {
    let least = (tuning.tile_elems / 4).max(1);
    let most = match n {
        0..=2 => tuning.tile_elems,
        3..=4 => tuning.tile_elems / 2,
        _ => least,
    };
    (elems / 4).clamp(least, most.max(least))
}

/// Steps of rank `me` of `n` of a tiled allreduce.
pub(crate) fn allreduce_tiles(elems: u64, n: usize, me: Rank, tuning: &Tuning) -> Schedule {
    let tiling = Tiling::new(elems, longest_tile_elems(elems, n, tuning));
    let slots = tuning.slots.max(1);
    let behind = u32::from(slots >= 3);
    let ahead = slots - 1 - behind;
    let mut steps = Vec::new();
    for turn in 0..tiling.count + ahead + behind {
        if turn < tiling.count {
            let except = tiling.chunk(turn, me.index(), n);
            steps.push(Step::Publish { tile: turn, span: tiling.span(turn), except });
        }
        if let Some(tile) = turn.checked_sub(ahead).filter(|&tile| tile < tiling.count) {
            let chunk = tiling.chunk(tile, me.index(), n);
            steps.push(Step::FoldTile { tile, span: tiling.span(tile), chunk });
        }
        if let Some(tile) = turn.checked_sub(ahead + behind) {
            for offset in 1..n {
                // Each starts with the rank after it, so that readers spread over the windows.
                let from = (me.index() + offset) % n;
                let chunk = tiling.chunk(tile, from, n);
                steps.push(Step::Fetch { tile, span: tiling.span(tile), from: Rank::from(from), chunk });
            }
        }
    }
    Schedule { steps, slots }
}

/// Steps of any rank of an allreduce in which everybody folds everything.
pub(crate) fn allreduce_whole(elems: u64, tuning: &Tuning) -> Schedule {
    let tiling = Tiling::new(elems, tuning.tile_elems);
    let slots = tuning.slots.max(1);
    let ahead = slots - 1;
    let mut steps = Vec::new();
    for turn in 0..tiling.count + ahead {
        if turn < tiling.count {
            let span = tiling.span(turn);
            steps.push(Step::Publish { tile: turn, span, except: Span { start: span.start, len: 0 } });
        }
        if let Some(tile) = turn.checked_sub(ahead) {
            steps.push(Step::FoldWhole { tile, span: tiling.span(tile) });
        }
    }
    Schedule { steps, slots }
}

/// Steps of rank `me` of `n` of an allreduce across mapped buffers.
pub(crate) fn allreduce_mapped(elems: u64, n: usize, me: Rank) -> Schedule {
    let span = aligned_piece(elems, me.index(), n);
    let mut steps = vec![Step::Expose];
    if !span.is_empty() {
        steps.push(Step::FoldAcross { span });
    }
    steps.push(Step::Settle);
    Schedule::new(steps)
}

/// Tiles for collectives in which each member has a chunk of its own: in each *round* every chunk advances by one
/// *piece*, and the tile of that round holds pieces. Publishing runs `ahead` rounds ahead of reading.
pub(crate) struct Rounds {
    chunks: Vec<Span>,
    piece_elems: u64,
    slots: u32,
    /// Number of members that have a chunk.
    pub(crate) members: usize,
    /// Number of rounds: as many as the longest chunk needs.
    pub(crate) count: u32,
    /// Rounds published before the first is read.
    pub(crate) ahead: u32,
}

impl Rounds {
    /// The layout for these chunks, one for each member, in pieces of at most this length.
    pub(crate) fn new(chunks: &[Span], piece_elems: u64, tuning: &Tuning) -> Rounds {
        let piece_elems = piece_elems.max(1);
        let longest = chunks.iter().map(|chunk| chunk.len).max().unwrap_or(0);
        let count = u32::try_from(longest.div_ceil(piece_elems)).expect("a buffer has fewer than 2^32 tiles");
        let slots = tuning.slots.max(1);
        Rounds { chunks: chunks.to_vec(), piece_elems, slots, members: chunks.len(), count, ahead: slots - 1 }
    }

    /// What a member's chunk has in this round; empty when it has ended, and for ranks that are not members.
    pub(crate) fn piece(&self, round: u32, member: usize) -> Span {
        let chunk = self.chunks.get(member).copied().unwrap_or(Span { start: 0, len: 0 });
        let start = (u64::from(round) * self.piece_elems).min(chunk.len);
        let end = (start + self.piece_elems).min(chunk.len);
        Span::between(chunk.start + start, chunk.start + end)
    }

    /// How many elements lie before a member's piece where a tile holds the pieces of all.
    pub(crate) fn place(&self, member: usize) -> u64 {
        member as u64 * self.piece_elems
    }

    /// These steps with the slots they assume.
    pub(crate) fn schedule(&self, steps: Vec<Step>) -> Schedule {
        let slots = if steps.is_empty() { 0 } else { self.slots };
        Schedule { steps, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_equal_and_the_last_is_cut_off() {
        let tiling = Tiling::new(1000, 300);
        assert_eq!((tiling.count, tiling.tile_elems), (4, 256));
        assert_eq!(tiling.span(3), Span::between(768, 1000));
        let shares: u64 = (0..3).map(|part| tiling.chunk(3, part, 3).len).sum();
        assert_eq!(shares, 232);
    }

    #[test]
    fn chunks_lie_at_the_same_place_in_every_tile() {
        let tiling = Tiling::new(10_007, 1024);
        for part in 0..5 {
            let offset = tiling.chunk(0, part, 5).start;
            let last = tiling.count - 1;
            let place = tiling.chunk(last, part, 5).start - tiling.span(last).start;
            assert_eq!(place, offset.min(tiling.span(last).len));
        }
    }

    #[test]
    fn large_chunks_are_aligned() {
        for part in 0..3 {
            assert_eq!(aligned_piece(100_000, part, 3).start % ALIGN_ELEMS, 0);
        }
        assert_eq!(aligned_piece(100_000, 2, 3).end(), 100_000);
    }
}
