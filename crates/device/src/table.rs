//! The tables of segments with which kernels are launched.
//!
//! A kernel gets its segments as a parameter by value: nothing has to be copied to the device first, and nothing has to
//! be kept until the kernel has read it. Parameters have room for [`WORDS`] words, so many segments take several
//! launches. The form is that of `cuda/kernels.cu`:
//!
//! - a fold has `ranks + targets + 2` words for each segment: the number of blocks before it, its elements, the address
//!   of each rank's contribution, and those of its targets;
//! - a copy has four: the number of blocks before it, its bytes, source and target;
//! - a pair of vectors that are combined by adaptive summation has `targets + 5`: the number of blocks before it, its
//!   elements, flags, the addresses of both, and those of its targets.
//!
//! A block works on [`BLOCK_BYTES`] of one contribution, or on `adasum::BLOCK_ELEMS` elements.

use crate::adasum::BLOCK_ELEMS;
use crate::{AdasumPair, DeviceAdasum, DeviceCopy, DeviceFold};

/// Words of a table.
pub(crate) const WORDS: usize = 496;

/// Bytes of each contribution, or of a copy, that one block works on.
pub(crate) const BLOCK_BYTES: u64 = 32 << 10;

/// Words of a pair of vectors without its targets.
pub(crate) const ADASUM_HEAD_WORDS: usize = 5;

/// Ranks of which a segment can have contributions, and targets that it can have.
pub const MAX_RANKS: usize = 64;

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Launch {
    pub(crate) words: [u64; WORDS],
    /// Segments in the table.
    pub(crate) count: u32,
    /// Blocks of the grid.
    pub(crate) blocks: u32,
}

impl Launch {
    fn empty() -> Launch {
        Launch { words: [0; WORDS], count: 0, blocks: 0 }
    }

    /// Adds a segment that takes so many blocks, if there is room for it.
    fn add(&mut self, blocks: u64, length: u64, addresses: impl ExactSizeIterator<Item = u64>) -> bool {
        let width = addresses.len() + 2;
        let start = self.count as usize * width;
        let blocks = u64::from(self.blocks) + blocks;
        if start + width > WORDS || blocks > i32::MAX as u64 {
            return false;
        }
        let head = [u64::from(self.blocks), length];
        for (word, value) in self.words[start..start + width].iter_mut().zip(head.into_iter().chain(addresses)) {
            *word = value;
        }
        self.count += 1;
        self.blocks = blocks as u32;
        true
    }
}

/// The launches of a fold.
///
/// # Panics
/// If there are more than [`MAX_RANKS`] contributions or targets.
pub(crate) fn of_fold(folding: &DeviceFold<'_>) -> Vec<Launch> {
    let most = folding.ranks.max(folding.targets);
    assert!(most <= MAX_RANKS, "a fold of at most {MAX_RANKS} contributions");
    let mut launches = vec![Launch::empty()];
    for (elems, addresses) in folding.elems.iter().zip(folding.addresses.chunks(folding.width())) {
        // Where the result has another type, blocks are counted by contributions, too.
        let bytes = elems * folding.dtype.size_bytes() as u64;
        put(&mut launches, bytes.div_ceil(BLOCK_BYTES), *elems, addresses.iter().copied());
    }
    launches.retain(|launch| launch.count > 0);
    launches
}

/// The launches of copies.
pub(crate) fn of_copies(copies: &[DeviceCopy]) -> Vec<Launch> {
    let mut launches = vec![Launch::empty()];
    for copy in copies {
        let blocks = copy.bytes.div_ceil(BLOCK_BYTES);
        put(&mut launches, blocks, copy.bytes, [copy.source, copy.target].into_iter());
    }
    launches.retain(|launch| launch.count > 0);
    launches
}

/// The launches of combinations.
///
/// # Panics
/// If there are more than [`MAX_RANKS`] targets.
pub(crate) fn of_adasum(combining: &DeviceAdasum<'_>) -> Vec<Launch> {
    assert!(combining.width() <= MAX_RANKS, "a combination has at most {MAX_RANKS} targets");
    let mut launches = vec![Launch::empty()];
    let mut words = Vec::with_capacity(ADASUM_HEAD_WORDS + MAX_RANKS);
    for (AdasumPair { elems, vectors }, targets) in
        combining.pairs.iter().zip(combining.targets.chunks(combining.width()))
    {
        let [a, b] = vectors;
        words.clear();
        words.extend([u64::from(a.is_carried()) | u64::from(b.is_carried()) << 1, a.address(), b.address()]);
        words.extend(targets);
        put(&mut launches, elems.div_ceil(BLOCK_ELEMS), *elems, words.iter().copied());
    }
    launches.retain(|launch| launch.count > 0);
    launches
}

fn put(launches: &mut Vec<Launch>, blocks: u64, length: u64, addresses: impl ExactSizeIterator<Item = u64> + Clone) {
    if blocks == 0 {
        return;
    }
    let last = launches.last_mut().expect("invariant: there is always a last launch");
    if !last.add(blocks, length, addresses.clone()) {
        let mut next = Launch::empty();
        assert!(next.add(blocks, length, addresses), "an empty table has room for a segment");
        launches.push(next);
    }
}

#[cfg(test)]
mod tests {
    use farandole_plan::{Dtype, ReduceOp};
    use farandole_tensor::Finish;

    use super::*;
    use crate::{AdasumResult, AdasumVector};

    #[test]
    fn many_segments_take_several_launches() {
        let (elems, addresses) = (vec![9000; 300], (0..900).collect::<Vec<u64>>());
        let folding = DeviceFold {
            dtype: Dtype::F32,
            stored: Dtype::F32,
            op: ReduceOp::Sum,
            prescale: 1.0,
            finish: Finish::Nothing,
            ranks: 3,
            targets: 0,
            elems: &elems,
            addresses: &addresses,
        };
        let launches = of_fold(&folding);
        let counts: Vec<u32> = launches.iter().map(|launch| launch.count).collect();
        assert_eq!(counts, [99, 99, 99, 3]);
        assert_eq!(launches[0].blocks, 99 * 2, "36,000 bytes are two blocks");
        assert_eq!(launches[1].words[..10], [0, 9000, 297, 298, 299, 2, 9000, 300, 301, 302]);
        let apart = of_fold(&DeviceFold { ranks: 2, targets: 1, ..folding });
        assert_eq!(apart, launches, "rows of as many words");
    }

    #[test]
    fn pairs_take_a_row_each() {
        let vectors = [AdasumVector::Contribution(7), AdasumVector::Carried(8)];
        let zeros = [AdasumVector::Carried(9), AdasumVector::Zeros];
        let pair = |elems, vectors| AdasumPair { elems, vectors };
        let launches = of_adasum(&DeviceAdasum {
            dtype: Dtype::F32,
            prescale: 1.0,
            result: AdasumResult::Carried,
            pairs: &[pair(4097, vectors), pair(0, vectors), pair(1, zeros)],
            targets: &[1, 2, 3, 4, 5, 6],
            scratch: 0,
        });
        assert_eq!((launches.len(), launches[0].count, launches[0].blocks), (1, 2, 3));
        assert_eq!(launches[0].words[..15], [0, 4097, 2, 7, 8, 1, 2, 2, 1, 1, 9, 0, 5, 6, 0]);
    }

    #[test]
    fn empty_segments_are_left_out() {
        let nothing = DeviceCopy { source: 1, target: 2, bytes: 0 };
        assert!(of_copies(&[nothing]).is_empty());
        let launches = of_copies(&[nothing, DeviceCopy { bytes: 5, ..nothing }]);
        assert_eq!((launches.len(), &launches[0].words[..4]), (1, &[0, 5, 1, 2][..]));
    }
}
