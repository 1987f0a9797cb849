//! Numbers that tell memory apart: [`digest`] of all bytes, [`sampled`] of some of them.
//!
//! A digest depends on every bit and on the length, and is the same on all machines of one byte order. It finds
//! accidents, not attacks. It reads about as fast as one core reads memory.
//!
//! A *sample* of a tensor are [`BLOCKS`] blocks of [`BLOCK_BYTES`], evenly spaced, the first at the beginning and the
//! last near the end; a tensor of at most as many bytes is its own sample. Which bytes these are follows from the
//! length alone, so the samples of all ranks are of the same elements. Tensors that were initialised with other random
//! numbers differ in nearly every element, and so in any sample; a difference in a few elements may be missed.
//!
//! Not here: which memory is compared with whose (`farandole::parameter_check`).

use std::ops::Range;

/// Two ends and two places between them.
pub const BLOCKS: usize = 4;

/// Long enough that a block is worth its cache misses: a sample of the 161 parameters of ResNet-50 is read in well
/// below a tenth of a millisecond. A multiple of every element's size.
pub const BLOCK_BYTES: usize = 1024;

/// Blocks begin at multiples of this, which is a multiple of every element's size.
const ALIGNMENT: usize = 16;

/// A number that depends on all bits of these bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    // Four sums at a time, so that the processor need not wait for a multiplication. Each step is one-to-one in the
    // word and in the sum, so a single word that differs is always seen.
    let [mut first, mut second, mut third, mut fourth] = FACTORS;
    let (blocks, _) = bytes.as_chunks::<8>().0.as_chunks::<4>();
    for [one, two, three, four] in blocks {
        first = mix(first, u64::from_le_bytes(*one), FACTORS[0]);
        second = mix(second, u64::from_le_bytes(*two), FACTORS[1]);
        third = mix(third, u64::from_le_bytes(*three), FACTORS[2]);
        fourth = mix(fourth, u64::from_le_bytes(*four), FACTORS[3]);
    }
    let rest = &bytes[32 * blocks.len()..];
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    let words = last.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let ends = words.chain([bytes.len() as u64]).fold(0, |sum, word| mix(sum, word, FACTORS[0]));
    [first, second, third, fourth].into_iter().fold(ends, |sum, other| mix(sum, other, FACTORS[1]))
}

/// A number that depends on all bits of a sample of these bytes.
pub fn sampled(bytes: &[u8]) -> u64 {
    let mut sample = [0; BLOCKS * BLOCK_BYTES];
    if bytes.len() <= sample.len() {
        return digest(bytes);
    }
    for (place, block) in sample.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(blocks(bytes.len())) {
        place.copy_from_slice(&bytes[block]);
    }
    digest(&sample)
}

/// The parts of so many bytes that are their sample.
pub fn blocks(len_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let is_whole = len_bytes <= BLOCKS * BLOCK_BYTES;
    let distance = len_bytes.saturating_sub(BLOCK_BYTES) / (BLOCKS - 1) / ALIGNMENT * ALIGNMENT;
    let block = move |number| {
        let begin = number * distance;
        if is_whole { 0..len_bytes } else { begin..begin + BLOCK_BYTES }
    };
    (0..if is_whole { 1 } else { BLOCKS }).map(block)
}

/// Digests, put together in order.
pub fn combined(digests: impl IntoIterator<Item = u64>) -> u64 {
    digests.into_iter().fold(FACTORS[2], |sum, word| mix(sum, word, FACTORS[3]))
}

/// Odd, with bits in all places.
const FACTORS: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

#[inline]
fn mix(sum: u64, word: u64, factor: u64) -> u64 {
    (sum ^ word).wrapping_mul(factor).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_every_bit_and_the_length() {
        let bytes: Vec<u8> = (0..99).collect();
        let known = digest(&bytes);
        assert_eq!(known, digest(&bytes.clone()));
        for place in 0..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 1 << (place % 8);
            assert_ne!(digest(&other), known, "bit of byte {place}");
        }
        let zeros = [0; 70];
        let digests: std::collections::BTreeSet<u64> = (0..=70).map(|end| digest(&zeros[..end])).collect();
        assert_eq!(digests.len(), 71);
        let mut swapped = bytes.clone();
        swapped.swap(0, 32);
        assert_ne!(digest(&swapped), known);
        assert_ne!(combined([1, 2]), combined([2, 1]));
    }

    #[test]
    fn a_sample_is_all_of_a_small_tensor_and_both_ends_of_a_large_one() {
        for len in [0, 1, 100, 4096] {
            assert!(blocks(len).eq(std::iter::once(0..len)));
        }
        for len in [4097, 4100, 10_000, 1 << 20] {
            let parts: Vec<Range<usize>> = blocks(len).collect();
            assert_eq!((parts.len(), parts[0].start), (BLOCKS, 0), "{len}");
            assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start), "{len}: {parts:?}");
            let last = parts[BLOCKS - 1].end;
            assert!(last <= len && len - last < BLOCKS * ALIGNMENT, "{len}: {parts:?}");
        }
        let bytes = vec![7; 10_000];
        let mut other = bytes.clone();
        other[1_500] = 8;
        assert_eq!(sampled(&bytes), sampled(&other), "between the blocks");
        other[5_990] = 8;
        assert_ne!(sampled(&bytes), sampled(&other), "in a block");
        assert_eq!(sampled(&bytes[..4096]), digest(&bytes[..4096]));
    }
}
