//! The inverse discrete cosine transform: 64 coefficients of a block become 8 x 8, 4 x 4, 2 x 2 samples or one.
//!
//! The full transform is that of Loeffler, Ligtenberg and Moschytz with 12 multiplications, in integers of 32 bits with
//! constants of 13 bits: columns first, with two bits more than whole numbers, then rows. It is the arrangement of
//! libjpeg's accurate decoder (`islow`), step by step, so that results are the same bits. Smaller ones take the lowest
//! frequencies alone: a transform of so many points, scaled such that a flat block keeps its level.
//!
//! All numbers of a step are eight lanes, one for each column (or row): see `lanes`.
//!
//! **Invariant:** sums wrap and never panic, whatever the coefficients are; samples are cut to 0 to 255.

#![allow(clippy::needless_range_loop, reason = "loops over lanes are unrolled, and read best as the sums they are")]

use super::lanes::Vectors;

/// Coefficients of a block, row by row; those behind the first 64 have no meaning.
pub(super) type Block = [i32; 128];

/// Bits of constants behind the point.
const CONST_BITS: u32 = 13;

/// Bits behind the point that are kept between columns and rows.
const PASS1_BITS: u32 = 2;

/// A constant with [`CONST_BITS`].
const fn fix(number: f64) -> i32 {
    (number * (1 << CONST_BITS) as f64 + 0.5) as i32
}

/// One dimension of the transform: eight frequencies become eight samples. The result has [`CONST_BITS`] more bits.
#[inline(always)]
fn eight_points<V: Vectors>(v: V, f: [V::Lanes; 8]) -> [V::Lanes; 8] {
    // Even frequencies: a rotation by 3 pi / 8, and sums.
    let z = v.times(v.add(f[2], f[6]), fix(0.541_196_1));
    let even2 = v.sub(z, v.times(f[6], fix(1.847_759_065)));
    let even3 = v.add(z, v.times(f[2], fix(0.765_366_865)));
    let even0 = v.times(v.add(f[0], f[4]), 1 << CONST_BITS);
    let even1 = v.times(v.sub(f[0], f[4]), 1 << CONST_BITS);
    let (t10, t13) = (v.add(even0, even3), v.sub(even0, even3));
    let (t11, t12) = (v.add(even1, even2), v.sub(even1, even2));
    // Odd frequencies.
    let (z1, z2) = (v.add(f[7], f[1]), v.add(f[5], f[3]));
    let (z3, z4) = (v.add(f[7], f[3]), v.add(f[5], f[1]));
    let z5 = v.times(v.add(z3, z4), fix(1.175_875_602));
    let (z1, z2) = (v.times(z1, -fix(0.899_976_223)), v.times(z2, -fix(2.562_915_447)));
    let z3 = v.add(v.times(z3, -fix(1.961_570_56)), z5);
    let z4 = v.add(v.times(z4, -fix(0.390_180_644)), z5);
    let odd0 = v.add(v.times(f[7], fix(0.298_631_336)), v.add(z1, z3));
    let odd1 = v.add(v.times(f[5], fix(2.053_119_869)), v.add(z2, z4));
    let odd2 = v.add(v.times(f[3], fix(3.072_711_026)), v.add(z2, z3));
    let odd3 = v.add(v.times(f[1], fix(1.501_321_11)), v.add(z1, z4));
    [
        v.add(t10, odd3),
        v.add(t11, odd2),
        v.add(t12, odd1),
        v.add(t13, odd0),
        v.sub(t13, odd0),
        v.sub(t12, odd1),
        v.sub(t11, odd2),
        v.sub(t10, odd3),
    ]
}

/// A sample as it is stored: around 128, in the range of a byte.
#[inline(always)]
fn sample(number: i32) -> u8 {
    (number.clamp(-128, 127) + 128) as u8
}

/// 8 x 8 samples.
#[inline(always)]
pub(super) fn full<V: Vectors>(v: V, block: &Block) -> [[u8; 8]; 8] {
    const COLUMNS_BITS: i32 = (CONST_BITS - PASS1_BITS) as i32;
    // Each pass multiplies by the root of eight; a shift by three takes that back.
    const ROWS_BITS: i32 = (CONST_BITS + PASS1_BITS + 3) as i32;
    let (rows, _) = block.as_chunks::<8>();
    let mut numbers = [v.load(&rows[0]); 8];
    for (lanes, row) in numbers.iter_mut().zip(rows) {
        *lanes = v.load(row);
    }
    numbers = eight_points(v, numbers);
    for lanes in &mut numbers {
        *lanes = v.descale::<COLUMNS_BITS>(*lanes);
    }
    numbers = eight_points(v, v.transposed(numbers));
    for lanes in &mut numbers {
        *lanes = v.descale::<ROWS_BITS>(*lanes);
    }
    v.samples(numbers)
}

/// The level of a block that has the first coefficient alone.
#[inline(always)]
pub(super) fn flat(first: i32) -> u8 {
    sample(first.wrapping_add(4) >> 3)
}

/// One dimension with four points, with [`CONST_BITS`] more bits.
#[inline(always)]
fn four_points(f: [i32; 4]) -> [i32; 4] {
    let [f0, f1, f2, f3] = f;
    let (even0, even1) = (f0.wrapping_add(f2) << CONST_BITS, f0.wrapping_sub(f2) << CONST_BITS);
    // The root of two, times the cosines of pi / 8 and 3 pi / 8.
    let (large, small) = (fix(1.306_562_965), fix(0.541_196_1));
    let odd0 = f1.wrapping_mul(large).wrapping_add(f3.wrapping_mul(small));
    let odd1 = f1.wrapping_mul(small).wrapping_sub(f3.wrapping_mul(large));
    [even0.wrapping_add(odd0), even1.wrapping_add(odd1), even1.wrapping_sub(odd1), even0.wrapping_sub(odd0)]
}

/// 4 x 4 samples.
#[inline(always)]
pub(super) fn quarter(block: &Block) -> [[u8; 4]; 4] {
    let round = |number: i32, bits: u32| number.wrapping_add(1 << (bits - 1)) >> bits;
    let mut rows = [[0; 4]; 4];
    for column in 0..4 {
        let done = four_points([block[column], block[8 + column], block[16 + column], block[24 + column]]);
        for row in 0..4 {
            rows[row][column] = round(done[row], CONST_BITS - PASS1_BITS);
        }
    }
    let mut samples = [[0; 4]; 4];
    for (to, row) in samples.iter_mut().zip(rows) {
        for (to, number) in to.iter_mut().zip(four_points(row)) {
            *to = sample(round(number, CONST_BITS + PASS1_BITS + 3));
        }
    }
    samples
}

/// 2 x 2 samples.
#[inline(always)]
pub(super) fn sixteenth(block: &Block) -> [[u8; 2]; 2] {
    let (f0, f1, f8, f9) = (block[0], block[1], block[8], block[9]);
    let (left, right) = (f0.wrapping_add(f1), f0.wrapping_sub(f1));
    let (left_odd, right_odd) = (f8.wrapping_add(f9), f8.wrapping_sub(f9));
    [
        [flat(left.wrapping_add(left_odd)), flat(right.wrapping_add(right_odd))],
        [flat(left.wrapping_sub(left_odd)), flat(right.wrapping_sub(right_odd))],
    ]
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use crate::chance::{Chance, StreamPurpose};

    /// With the vectors of this processor, which give the same as without.
    fn full(block: &Block) -> [[u8; 8]; 8] {
        let plain = super::full(Portable, block);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            assert_eq!(super::full(simd, block), plain);
        }
        plain
    }

    /// The transform by its definition, with so many points.
    fn reference(block: &Block, points: usize) -> Vec<f64> {
        let basis = |frequency: usize, place: usize| {
            let angle = (2 * place + 1) as f64 * frequency as f64 * std::f64::consts::PI / (2 * points) as f64;
            angle.cos() * if frequency == 0 { 0.5f64.sqrt() } else { 1.0 } / 2.0
        };
        let mut samples = Vec::new();
        for y in 0..points {
            for x in 0..points {
                let terms = (0..points).flat_map(|v| (0..points).map(move |u| (u, v)));
                let sum = terms.map(|(u, v)| f64::from(block[8 * v + u]) * basis(u, x) * basis(v, y)).sum::<f64>();
                samples.push((sum + 128.0).clamp(0.0, 255.0));
            }
        }
        samples
    }

    fn random_block(chance: &mut Chance, size: f32) -> Block {
        let mut block = [0; 128];
        for (number, coefficient) in block[..64].iter_mut().enumerate() {
            *coefficient = (chance.normal() * size / (1.0 + (number / 8 + number % 8) as f32)) as i32;
        }
        block
    }

    #[test]
    fn all_sizes_are_accurate() {
        let mut chance = Chance::new(3, StreamPurpose::World, 0, 0);
        let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
        for round in 0..2000 {
            let block = random_block(&mut chance, [5.0, 60.0, 300.0, 1000.0][round % 4]);
            let all: [(usize, Vec<u8>); 3] =
                [(8, full(&block).concat()), (4, quarter(&block).concat()), (2, sixteenth(&block).concat())];
            for (points, samples) in all {
                for (&sample, exact) in samples.iter().zip(reference(&block, points)) {
                    let error = f64::from(sample) - exact;
                    // Half a level is lost by rounding to one.
                    assert!(error.abs() < 0.6, "{points}: {error}");
                    let rounding = f64::from(sample) - exact.round();
                    (sum, squares, count) = (sum + rounding, squares + rounding * rounding, count + 1.0);
                }
            }
        }
        // The bounds of IEEE 1180 for all samples together.
        assert!(sum / count < 0.0015 && squares / count < 0.02, "{} {}", sum / count, squares / count);
    }

    #[test]
    fn a_flat_block_is_the_same_at_every_size() {
        for first in -1100..1100 {
            let mut block = [0; 128];
            block[0] = first;
            let level = flat(first);
            assert_eq!(full(&block), [[level; 8]; 8]);
            assert_eq!(quarter(&block), [[level; 4]; 4]);
            assert_eq!(sixteenth(&block), [[level; 2]; 2]);
        }
    }

    #[test]
    fn absurd_coefficients_do_not_panic() {
        for extreme in [i32::MAX, i32::MIN, 1 << 30] {
            let block = [extreme; 128];
            full(&block);
            quarter(&block);
            sixteenth(&block);
            flat(extreme);
        }
    }
}
