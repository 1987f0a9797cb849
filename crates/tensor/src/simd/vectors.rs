//! What Adasum needs of whole vectors: three inner products, and a weighted sum. Both in f64 and in one fixed order.
//!
//! Element i of a tile goes to partial sum i mod 16, and the partial sums are added pairwise at the end. The order
//! depends on nothing but the length, so every level and every rank gets the same bits.

use farandole_plan::Dtype;
use half::{bf16, f16};

use super::block::Lane;
use super::kernel::{TILE_ELEMS, Through};
use super::level::{Instructions, Level, Portable};
use super::number::Number;

/// Partial sums: two of the widest registers for each product.
const SUMS: usize = 16;

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
    let [mut both, mut first, mut second] = [[0.0f64; SUMS]; 3];
    let [mut x, mut y] = [[<E::Number as Number>::ZERO; TILE_ELEMS]; 2];
    let tile_bytes = TILE_ELEMS * E::ELEM_BYTES;
    for (a, b) in a.chunks(tile_bytes).zip(b.chunks(tile_bytes)) {
        let count = a.len() / E::ELEM_BYTES;
        // SAFETY: both chunks have `count` elements.
        unsafe {
            E::load::<L>(&mut x[..count], a.as_ptr());
            E::load::<L>(&mut y[..count], b.as_ptr());
        }
        // The last group is filled up with zeros, which add zero.
        let padded = count.next_multiple_of(SUMS);
        x[count..padded].fill(E::Number::ZERO);
        y[count..padded].fill(E::Number::ZERO);
        for (x, y) in x[..padded].as_chunks::<SUMS>().0.iter().zip(y[..padded].as_chunks::<SUMS>().0) {
            for i in 0..SUMS {
                let (x, y) = (x[i].into_wide(), y[i].into_wide());
                both[i] += x * y;
                first[i] += x * x;
                second[i] += y * y;
            }
        }
    }
    Dots { both: pairwise(both), first: pairwise(first), second: pairwise(second) }
}

fn pairwise(mut sums: [f64; SUMS]) -> f64 {
    let mut width = SUMS / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
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
