//! In which element type a reduction keeps its partial results: its *carrier*.
//!
//! Half precision (f16, bf16) is accumulated and scaled in single precision and rounded once, whatever path the bytes
//! take. Where that happens depends on who folds:
//!
//! - *All at once.* In shared memory one rank folds the contributions of all, in single precision, and finishes the
//!   result before it is rounded. Contributions and results are halves; no partial result ever lies in memory.
//! - *One by one.* Over links partial results travel from rank to rank. They travel as singles: contributions are
//!   widened as they are loaded. Where an allreduce has only messages, results are finished and rounded where they
//!   become final and travel as halves (`links`); elsewhere they are when they are stored. So an allreduce sends at
//!   most one and a half times (`doubling`: twice) the bytes of its tensor's own type.
//!
//! Two cases differ. Minimum and maximum are exact in every type, so they need no wider carrier. A prescale is part of
//! the arithmetic, so contributions that have one are widened on every path: scaled halves could overflow or be rounded
//! before they are added.
//!
//! Every other element type carries itself. What the finish does is in `tensor::finish`; which path is taken, in
//! `path`.

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::OwnedBytes;
use farandole_tensor::cast::cast;

/// How many contributions a fold combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folding {
    /// Those of all ranks, in one go.
    AllAtOnce,
    /// A partial result and one more.
    OneByOne,
}

/// The element type in which the partial results of a reduction are kept.
pub(crate) fn carrier(dtype: Dtype, op: ReduceOp, prescale: f64, folding: Folding) -> Dtype {
    let is_half = matches!(dtype, Dtype::F16 | Dtype::BF16);
    let rounds = folding == Folding::OneByOne && !matches!(op, ReduceOp::Min | ReduceOp::Max);
    if is_half && (rounds || prescale != 1.0) { Dtype::F32 } else { dtype }
}

/// The same elements as singles, each multiplied by the factor.
pub(crate) fn widened(data: &[u8], dtype: Dtype, factor: f64) -> OwnedBytes {
    let mut wide = OwnedBytes::zeroed(data.len() / dtype.size_bytes() * Dtype::F32.size_bytes());
    cast(&mut wide, Dtype::F32, data, dtype, factor);
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_half_precision_is_ever_widened() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                for (prescale, folding) in [(1.0, Folding::AllAtOnce), (2.0, Folding::OneByOne)] {
                    let carrier = carrier(dtype, op, prescale, folding);
                    let is_half = dtype.is_float() && dtype.size_bytes() == 2;
                    assert_eq!(carrier != dtype, is_half && folding == Folding::OneByOne, "{op} of {dtype}");
                }
            }
        }
    }

    #[test]
    fn minimum_and_maximum_are_exact_in_half_precision() {
        assert_eq!(carrier(Dtype::F16, ReduceOp::Max, 1.0, Folding::OneByOne), Dtype::F16);
        assert_eq!(carrier(Dtype::F16, ReduceOp::Max, 0.5, Folding::AllAtOnce), Dtype::F32);
        assert_eq!(carrier(Dtype::BF16, ReduceOp::Product, 1.0, Folding::OneByOne), Dtype::F32);
    }
}
