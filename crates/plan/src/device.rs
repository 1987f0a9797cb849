//! Who folds what of a bucket in device memory.
//!
//! All ranks of a host see each other's device memory, so one of them can fold for all: it reads every contribution and
//! stores the result with every rank. The work is shared by *device*: every device folds an equal share of the
//! elements, and where several ranks use one device, the lowest of them does it. Kernels of several processes on one
//! device take turns, and a turn takes longer than folding a small bucket; and one kernel alone reaches the bandwidth
//! of the memory.
//!
//! Bytes: with `r` ranks and `d` devices, each device reads and writes `r/d` times the bucket.

use crate::Span;

/// Shares begin at multiples of this many elements, so that they are aligned for any element type if the tensors are.
const ALIGN_ELEMS: u64 = 64;

/// The places in `devices` of those that fold, in order. `devices` has the device of every rank, or nothing for a rank
/// that has no memory in the bucket.
pub fn folders<D: PartialEq>(devices: &[Option<D>]) -> Vec<usize> {
    let is_first =
        |place: usize| devices[place].is_some() && devices[..place].iter().all(|before| *before != devices[place]);
    (0..devices.len()).filter(|&place| is_first(place)).collect()
}

/// What folder `folder` of `folders` folds of tensors of these lengths: tensors by their place, with the span in each.
///
/// # Panics
/// If there is no such folder.
pub fn share(lengths: &[u64], folders: usize, folder: usize) -> Vec<(usize, Span)> {
    assert!(folder < folders, "folder {folder} is one of {folders}");
    let total: u64 = lengths.iter().sum();
    // Begin of a share. The product may exceed 64 bits.
    let begin = |folder: usize| match folder == folders {
        true => total,
        false => (u128::from(total) * folder as u128 / folders as u128) as u64 / ALIGN_ELEMS * ALIGN_ELEMS,
    };
    let (from, to) = (begin(folder), begin(folder + 1));
    let mut start = 0;
    let mut mine = Vec::new();
    for (place, length) in lengths.iter().enumerate() {
        let end = start + length;
        let (first, last) = (from.max(start), to.min(end));
        if first < last {
            mine.push((place, Span { start: first - start, len: last - first }));
        }
        start = end;
    }
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_of_each_device_folds() {
        assert_eq!(folders(&[Some('a'), Some('a'), Some('b'), Some('a')]), [0, 2]);
        assert_eq!(folders(&[None, Some('a'), None, Some('b'), Some('b')]), [1, 3]);
        assert_eq!(folders::<u8>(&[None, None]), [0; 0]);
    }

    #[test]
    fn shares_cover_every_element_once() {
        for lengths in [vec![], vec![0], vec![1], vec![1000, 0, 3, 64, 64_000, 1], vec![u64::MAX / 2]] {
            for count in 1..6 {
                let mut next = vec![0; lengths.len()];
                for (place, span) in (0..count).flat_map(|folder| share(&lengths, count, folder)) {
                    assert_eq!(span.start, next[place], "{lengths:?} by {count}");
                    next[place] = span.end();
                }
                assert_eq!(next, lengths);
            }
        }
    }
}
