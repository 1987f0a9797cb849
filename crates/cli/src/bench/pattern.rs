//! Inputs whose collective results are known beforehand, and the count of results that differ.
//!
//! The values are those of `tensor::verifiable`: whatever the ranks make of them is exact in every element type, so a
//! result is either right to the last bit or wrong, and there is no tolerance to argue about. They are made for
//! [`PERIOD`] elements and then repeat; filling and comparing work on copies of that block and cost little even for the
//! largest buffers.

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::{Finish, verifiable};

/// After so many elements the values repeat. Prime, so that data which ended up at a wrong place meets other values
/// there, whichever power of two it was off by; large enough that copying a block runs at full speed.
const PERIOD: usize = 4093;

/// Seed of the values. Any would do; a fixed one makes a wrong result repeatable.
const SEED: u64 = 1;

/// A repeating sequence of elements, ready to be written or compared.
pub(crate) struct Pattern {
    elem_bytes: usize,
    /// Two periods, so that one whole period can be taken from any of its elements on.
    block: Vec<u8>,
}

impl Pattern {
    /// The contribution of a rank.
    pub(crate) fn contribution(dtype: Dtype, op: ReduceOp, rank: usize, ranks: usize) -> Pattern {
        Pattern::new(dtype, |period| verifiable::fill(dtype, op, rank as u64, ranks as u64, SEED, period))
    }

    /// The combination of the contributions of `ranks` ranks.
    pub(crate) fn combination(dtype: Dtype, op: ReduceOp, ranks: usize) -> Pattern {
        let finish = Finish::new(dtype, op, ranks as u64, 1.0);
        Pattern::new(dtype, |period| verifiable::expected(dtype, op, ranks as u64, SEED, finish, period))
    }

    /// All elements equal to zero: a fixed point of every operation, so that a repeated in-place reduction neither
    /// overflows nor becomes denormal.
    pub(crate) fn zeros(dtype: Dtype) -> Pattern {
        Pattern::new(dtype, |_| {})
    }

    fn new(dtype: Dtype, fill_period: impl FnOnce(&mut [u8])) -> Pattern {
        let elem_bytes = dtype.size_bytes();
        let mut period = vec![0; PERIOD * elem_bytes];
        fill_period(&mut period);
        Pattern { elem_bytes, block: period.repeat(2) }
    }

    /// Writes the sequence from element `first` on.
    pub(crate) fn fill(&self, target: &mut [u8], first: usize) {
        self.each_piece(target.len(), first, |range, piece| target[range].copy_from_slice(piece));
    }

    /// Counts the elements that differ from the sequence from element `first` on.
    pub(crate) fn count_wrong(&self, found: &[u8], first: usize) -> u64 {
        let mut wrong = 0;
        self.each_piece(found.len(), first, |range, piece| {
            let found = &found[range];
            if found != piece {
                let pairs = found.chunks_exact(self.elem_bytes).zip(piece.chunks_exact(self.elem_bytes));
                wrong += pairs.filter(|(found, expected)| found != expected).count() as u64;
            }
        });
        wrong
    }

    fn each_piece(&self, len: usize, first: usize, mut visit: impl FnMut(std::ops::Range<usize>, &[u8])) {
        let start = first % PERIOD * self.elem_bytes;
        let mut done = 0;
        while done < len {
            let piece = (PERIOD * self.elem_bytes).min(len - done);
            visit(done..done + piece, &self.block[start..start + piece]);
            done += piece;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_buffer_is_right_from_any_element_on() {
        for dtype in Dtype::ALL {
            let pattern = Pattern::contribution(dtype, ReduceOp::Sum, 3, 4);
            for first in [0, 1, 6, PERIOD, 10_000] {
                let mut buffer = vec![0; 10_000 * dtype.size_bytes()];
                pattern.fill(&mut buffer, first);
                assert_eq!(pattern.count_wrong(&buffer, first), 0);
                let tail = &buffer[4321 * dtype.size_bytes()..];
                assert_eq!(pattern.count_wrong(tail, first + 4321), 0);
            }
        }
    }

    #[test]
    fn each_wrong_element_is_counted_once() {
        let pattern = Pattern::combination(Dtype::F32, ReduceOp::Sum, 4);
        let mut buffer = vec![0; 4 * 9_000];
        pattern.fill(&mut buffer, 0);
        for byte in [0, 1, 4 * 5000, 4 * 8999 + 3] {
            buffer[byte] ^= 0x40;
        }
        assert_eq!(pattern.count_wrong(&buffer, 0), 3);
    }

    #[test]
    fn data_of_another_place_or_rank_is_noticed() {
        let pattern = |rank| Pattern::contribution(Dtype::F32, ReduceOp::Sum, rank, 4);
        let mut buffer = vec![0; 4 * 4096];
        pattern(0).fill(&mut buffer, 0);
        assert!(pattern(1).count_wrong(&buffer, 0) > 2000);
        for shift in (0..20).map(|power| 1 << power) {
            assert!(pattern(0).count_wrong(&buffer, shift) > 2000, "shifted by {shift}");
        }
    }
}
