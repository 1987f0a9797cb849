//! Adaptive summation on a device: what [`crate::Stream::adasum`] is asked for.
//!
//! Vectors are combined in pairs. A tree of pairs takes a call for each of its levels: what a call stores is there for
//! the next one. The arithmetic is that of `farandole_tensor::adasum`, with the same bits.

use farandole_plan::plane::{Folding, carrier};
use farandole_plan::{Dtype, ReduceOp};

/// Elements that a block of the kernels works on, as `kernels.cu` has it.
pub(crate) const BLOCK_ELEMS: u64 = 4096;

/// Where the sums of blocks begin in scratch memory, as `kernels.cu` has it.
const SUMS_AT_BYTES: u64 = 2048;

/// Bytes of the three sums of a block.
const SUMS_BYTES: u64 = 24;

/// Pairs of vectors that are combined, each by itself.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAdasum<'a> {
    /// The element type of contributions, a float.
    pub dtype: Dtype,
    /// Multiplied with every contribution first.
    pub prescale: f64,
    /// What is stored.
    pub result: AdasumResult,
    /// The pairs. None of them reads what another one stores.
    pub pairs: &'a [AdasumPair],
    /// For each pair, where its result is stored: in as many places for all. One of them may be where a vector of the
    /// pair lies, if both have elements of the same size.
    pub targets: &'a [u64],
    /// Memory of the device for this call: as much as [`DeviceAdasum::scratch_bytes`] says.
    pub scratch: u64,
}

/// Two vectors of as many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdasumPair {
    /// Elements of each.
    pub elems: u64,
    /// Both. Their order does not matter.
    pub vectors: [AdasumVector; 2],
}

/// Where a vector lies, and of what form it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdasumVector {
    /// Nowhere: all elements are zero.
    Zeros,
    /// A rank's contribution.
    Contribution(u64),
    /// A combination that is not finished ([`AdasumResult::Carried`]).
    Carried(u64),
}

/// What becomes of combinations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdasumResult {
    /// They will be combined with others: they are stored as elements of [`DeviceAdasum::carrier`].
    Carried,
    /// They are multiplied by this factor, and rounded to the type of contributions.
    Finished(f64),
}

impl DeviceAdasum<'_> {
    /// The element type of combinations that are not finished.
    pub fn carrier(dtype: Dtype) -> Dtype {
        carrier(dtype, ReduceOp::Adasum, 1.0, Folding::OneByOne)
    }

    /// Bytes of scratch memory for pairs of these lengths.
    pub fn scratch_bytes(elems: impl IntoIterator<Item = u64>) -> u64 {
        SUMS_AT_BYTES + SUMS_BYTES * elems.into_iter().map(|elems| elems.div_ceil(BLOCK_ELEMS)).sum::<u64>()
    }

    /// Places where each result is stored.
    pub(crate) fn width(&self) -> usize {
        self.targets.len() / self.pairs.len().max(1)
    }
}

impl AdasumVector {
    /// Its address as kernels know it.
    pub(crate) fn address(self) -> u64 {
        match self {
            AdasumVector::Zeros => 0,
            AdasumVector::Contribution(address) | AdasumVector::Carried(address) => address,
        }
    }

    pub(crate) fn is_carried(self) -> bool {
        matches!(self, AdasumVector::Carried(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn factors_of_all_pairs_of_a_table_lie_before_the_sums() {
        let pairs = table::WORDS / table::ADASUM_HEAD_WORDS;
        assert!(pairs as u64 * 16 <= SUMS_AT_BYTES);
        assert_eq!(DeviceAdasum::scratch_bytes([0, 1, 4096, 4097]), 2048 + 4 * 24);
    }

    #[test]
    fn only_halves_are_carried_in_another_type() {
        let carriers = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64].map(DeviceAdasum::carrier);
        assert_eq!(carriers, [Dtype::F32, Dtype::F32, Dtype::F32, Dtype::F64]);
    }
}
