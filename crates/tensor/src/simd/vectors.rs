//! What Adasum needs of whole vectors: three inner products, and a weighted sum. Both in f64 and in one fixed order.
//!
//! The order of addition depends on nothing but the length, so every level and every rank gets the same bits; and it
//! suits devices as well as processors, so these do, too (`crates/device/src/cuda/kernels.cu` has the same order).
//!
//! - A vector is cut into *blocks* of 4096 elements, and a block into 16 *rows* of 256.
//! - Element i of a row goes to *partial sum* i mod 16 of that row: there are 256 of them in a block, of 16 elements
//!   each. A processor has those of one row in its registers, a device one in each of its threads.
//! - The partial sums of a block are added pairwise: the second half of them to the first, until one is left.
//! - The sum of block k goes to partial sum k mod 256 of the vector, and these are added pairwise, too.
//!
//! Where elements, rows or blocks are missing, zeros are added, which change nothing: no sum is ever -0.

use farandole_plan::Dtype;
use half::{bf16, f16};

use super::block::Lane;
use super::kernel::{TILE_ELEMS, Through};
use super::level::{Instructions, Level, Portable};
use super::number::Number;

/// Partial sums of a row: two of the widest registers for each product.
const LANES: usize = 16;

/// Elements of a row: 16 for each of its partial sums, so that adding these up takes little beside.
const ROW_ELEMS: usize = 16 * LANES;

/// Partial sums of a block, and of a vector: one for each thread of a device's block.
const SUMS: usize = 256;

/// Elements of a block.
const BLOCK_ELEMS: usize = SUMS / LANES * ROW_ELEMS;

/// Partial sums of the three products.
type Sums = [[f64; SUMS]; 3];

/// Inner products of two vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dots {
    /// The product of both.
    pub(crate) both: f64,
    /// The product of the first with itself.
    pub(crate) first: f64,
    /// The product of the second with itself.
    pub(crate) second: f64,
}

/// The code for one float type on one level of instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Vectors {
    dots: unsafe fn(&[u8], &[u8]) -> Dots,
    weigh: unsafe fn(&mut [u8], &[u8], [f64; 2]),
}

impl Vectors {
    /// The code for this type, or `None` if it is not a float.
    pub(crate) fn new(dtype: Dtype, level: Level) -> Option<Vectors> {
        assert!(level.is_available(), "this processor has no {level}");
        match dtype {
            Dtype::F16 => Some(of_type::<f16>(level)),
            Dtype::BF16 => Some(of_type::<bf16>(level)),
            Dtype::F32 => Some(of_type::<f32>(level)),
            Dtype::F64 => Some(of_type::<f64>(level)),
            _ => None,
        }
    }

    /// The inner products of two vectors.
    pub(crate) fn dots(&self, a: &[u8], b: &[u8]) -> Dots {
        check(a, b);
        // SAFETY: the processor has the level (checked in `new`) and the lengths are equal.
        unsafe { (self.dots)(a, b) }
    }

    /// a = a · factors[0] + b · factors[1].
    pub(crate) fn weigh(&self, a: &mut [u8], b: &[u8], factors: [f64; 2]) {
        check(a, b);
        // SAFETY: the processor has the level (checked in `new`) and the lengths are equal.
        unsafe { (self.weigh)(a, b, factors) }
    }
}

fn check(a: &[u8], b: &[u8]) {
    assert!(a.len() == b.len(), "vectors of {} and {} bytes cannot be combined", a.len(), b.len());
}

fn of_type<E: Lane>(level: Level) -> Vectors
where
    E::Number: Through<f64>,
{
    match level {
        #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
        Level::Avx512 => Vectors { dots: dots_avx512::<E>, weigh: weigh_avx512::<E> },
        #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
        Level::Avx2 => Vectors { dots: dots_avx2::<E>, weigh: weigh_avx2::<E> },
        _ => Vectors { dots: dots_portable::<E>, weigh: weigh_portable::<E> },
    }
}

macro_rules! level {
    ($dots:ident, $weigh:ident, $instructions:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $dots<E: Lane>(a: &[u8], b: &[u8]) -> Dots
        where
            E::Number: Through<f64>,
        {
            // SAFETY: this function is compiled for the level; the caller vouches for the lengths.
            unsafe { dots::<E, $instructions>(a, b) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn $weigh<E: Lane>(a: &mut [u8], b: &[u8], factors: [f64; 2])
        where
            E::Number: Through<f64>,
        {
            // SAFETY: this function is compiled for the level; the caller vouches for the lengths.
            unsafe { weigh::<E, $instructions>(a, b, factors) }
        }
    };
}

level!(dots_portable, weigh_portable, Portable);
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
level!(dots_avx2, weigh_avx2, super::x86::Avx2, "avx2,f16c");
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
level!(dots_avx512, weigh_avx512, super::x86::Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");

/// # Safety
/// The processor must have the level `L`; both slices have the same length.
#[inline(always)]
unsafe fn dots<E: Lane, L: Instructions>(a: &[u8], b: &[u8]) -> Dots
where
    E::Number: Through<f64>,
{
    let [mut of_vector, mut of_block]: [Sums; 2] = [[[0.0; SUMS]; 3]; 2];
    let block_bytes = BLOCK_ELEMS * E::ELEM_BYTES;
    for (block, (a, b)) in a.chunks(block_bytes).zip(b.chunks(block_bytes)).enumerate() {
        // SAFETY: the caller vouches for the level; both chunks have the same length.
        let filled = unsafe { fill::<E, L>(&mut of_block, a, b) };
        for (of_vector, of_block) in of_vector.iter_mut().zip(&mut of_block) {
            of_vector[block % SUMS] += pairwise(of_block, filled);
        }
    }
    let filled = a.len().div_ceil(block_bytes).min(SUMS);
    let [both, first, second] = of_vector.each_mut().map(|sums| pairwise(sums, filled));
    Dots { both, first, second }
}

/// The partial sums of a block, and how many of them there are.
///
/// # Safety
/// The processor must have the level `L`; both slices have the same length, of one block at most.
#[inline(always)]
unsafe fn fill<E: Lane, L: Instructions>(sums: &mut Sums, a: &[u8], b: &[u8]) -> usize
where
    E::Number: Through<f64>,
{
    let [mut x, mut y] = [[<E::Number as Number>::ZERO; TILE_ELEMS]; 2];
    let tile_bytes = TILE_ELEMS * E::ELEM_BYTES;
    let mut filled = 0;
    for (a, b) in a.chunks(tile_bytes).zip(b.chunks(tile_bytes)) {
        let count = a.len() / E::ELEM_BYTES;
        // SAFETY: both chunks have `count` elements.
        unsafe {
            E::load::<L>(&mut x[..count], a.as_ptr());
            E::load::<L>(&mut y[..count], b.as_ptr());
        }
        // The last elements are filled up with zeros.
        let padded = count.next_multiple_of(LANES);
        x[count..padded].fill(E::Number::ZERO);
        y[count..padded].fill(E::Number::ZERO);
        for (x, y) in x[..padded].chunks(ROW_ELEMS).zip(y[..padded].chunks(ROW_ELEMS)) {
            let [mut both, mut first, mut second] = [[0.0f64; LANES]; 3];
            for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y.as_chunks::<LANES>().0) {
                for i in 0..LANES {
                    let (x, y) = (x[i].into_wide(), y[i].into_wide());
                    both[i] += x * y;
                    first[i] += x * x;
                    second[i] += y * y;
                }
            }
            for (sums, row) in sums.iter_mut().zip([both, first, second]) {
                sums[filled..filled + LANES].copy_from_slice(&row);
            }
            filled += LANES;
        }
    }
    filled
}

/// The sum of the first so many; what is behind them counts as zero.
#[inline(always)]
fn pairwise(sums: &mut [f64; SUMS], filled: usize) -> f64 {
    let mut width = filled.next_power_of_two();
    sums[filled..width].fill(0.0);
    while width > 1 {
        width /= 2;
        let (low, high) = sums.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    sums[0]
}

/// # Safety
/// The processor must have the level `L`; both slices have the same length.
#[inline(always)]
unsafe fn weigh<E: Lane, L: Instructions>(a: &mut [u8], b: &[u8], factors: [f64; 2])
where
    E::Number: Through<f64>,
{
    let [mut x, mut y] = [[<E::Number as Number>::ZERO; TILE_ELEMS]; 2];
    let tile_bytes = TILE_ELEMS * E::ELEM_BYTES;
    for (a, b) in a.chunks_mut(tile_bytes).zip(b.chunks(tile_bytes)) {
        let count = a.len() / E::ELEM_BYTES;
        // SAFETY: both chunks have `count` elements.
        unsafe {
            E::load::<L>(&mut x[..count], a.as_ptr());
            E::load::<L>(&mut y[..count], b.as_ptr());
            for (x, y) in x[..count].iter_mut().zip(&y[..count]) {
                *x = E::Number::from_wide(x.into_wide() * factors[0] + y.into_wide() * factors[1]);
            }
            E::store::<L>(&x[..count], a.as_mut_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::as_bytes;

    /// The order that the module's text describes, element by element.
    fn in_that_order(a: &[f32], b: &[f32]) -> f64 {
        let mut of_vector = [0.0; 256];
        for (block, (a, b)) in a.chunks(4096).zip(b.chunks(4096)).enumerate() {
            let mut of_block = [0.0; 256];
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                of_block[i / 256 * 16 + i % 16] += f64::from(*a) * f64::from(*b);
            }
            of_vector[block % 256] += halved(&of_block);
        }
        halved(&of_vector)
    }

    fn halved(sums: &[f64]) -> f64 {
        match sums.split_at(sums.len() / 2) {
            ([], sums) => sums[0],
            (low, high) => halved(&low.iter().zip(high).map(|(low, high)| low + high).collect::<Vec<f64>>()),
        }
    }

    #[test]
    fn elements_are_added_in_the_order_that_devices_have() {
        let numbers = |seed: u64, len: usize| -> Vec<f32> {
            let number = |i: u64| ((i * 2 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 * 1e-7 - 0.8;
            (0..len as u64).map(number).collect()
        };
        // Miri takes minutes for a million elements.
        let longest = if cfg!(miri) { 5000 } else { 258 * 4096 + 77 };
        for len in [0, 1, 15, 16, 17, 255, 257, 700, 4095, 4096, 4097, 3 * 4096 + 1000, longest] {
            let (a, b) = (numbers(1, len), numbers(2, len));
            for level in Level::available() {
                let dots = Vectors::new(Dtype::F32, level).unwrap().dots(as_bytes(&a), as_bytes(&b));
                let expected =
                    Dots { both: in_that_order(&a, &b), first: in_that_order(&a, &a), second: in_that_order(&b, &b) };
                assert_eq!(dots, expected, "{len} elements, {level}");
            }
        }
    }
}
