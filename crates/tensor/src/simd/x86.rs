//! What the x86 levels do by hand: conversion of IEEE half precision, which the compiler does not find by itself.
//!
//! Both levels are the same text with different vectors; what a vector cannot
//! take is left to `Portable`, which gives the same bits.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, _CMP_EQ_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_add_ps,
    _mm256_and_ps, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm512_add_ps,
    _mm512_and_ps, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_mask_mov_ps,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_or_ps, _mm512_set1_epi32, _mm512_set1_ps,
};

use super::level::{Instructions, Portable};
use super::number::{Op, OpKind};

/// The only rounding there is here, whatever the thread has set for its own arithmetic.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// The bits that `Number::settle` gives a single that is no number.
const CANONICAL_NAN: i32 = 0x7fc0_0000;

/// AVX2 and F16C.
pub(super) struct Avx2;

/// AVX-512 F, BW, DQ and VL.
pub(super) struct Avx512;

/// `yes` where `a` and `b` compare, `no` elsewhere.
#[inline]
#[target_feature(enable = "avx2")]
fn select_avx2<const COMPARISON: i32>(a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
    _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<COMPARISON>(a, b))
}

/// `yes` where `a` and `b` compare, `no` elsewhere.
#[inline]
#[target_feature(enable = "avx512f")]
fn select_avx512<const COMPARISON: i32>(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
    _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask::<COMPARISON>(a, b), yes)
}

macro_rules! instructions {
    (
        $level:ident, $features:literal, $lanes:literal, $half:ty, $single:ty, select: $select:ident,
        apply: $apply:ident, settle: $settle:ident, widen: $widen:ident, narrow: $narrow:ident, add: $add:ident,
        mul: $mul:ident, min: $min:ident, max: $max:ident, or: $or:ident, and: $and:ident, set: $set:ident,
        canonical: $canonical:expr
    ) => {
        /// What `O` does to numbers, for a vector of them; see `Number` for how minimum and maximum treat zeros and
        /// NaN.
        #[inline]
        #[target_feature(enable = $features)]
        fn $apply<O: Op>(a: $single, b: $single) -> $single {
            let (extreme, equal) = match O::KIND {
                OpKind::Sum => return $add(a, b),
                OpKind::Product => return $mul(a, b),
                OpKind::Min => ($min(a, b), $or(a, b)),
                OpKind::Max => ($max(a, b), $and(a, b)),
            };
            // The instruction gives `b` when one of the two is NaN, so only a NaN in `a` has to be brought back.
            let ordered = $select::<_CMP_EQ_OQ>(a, b, equal, extreme);
            $select::<_CMP_UNORD_Q>(a, a, a, ordered)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn $settle(number: $single) -> $single {
            $select::<_CMP_UNORD_Q>(number, number, $canonical, number)
        }

        impl Instructions for $level {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn f16_to_f32(singles: &mut [f32], halves: *const u8) {
                let (vectors, rest) = singles.as_chunks_mut::<$lanes>();
                let whole = vectors.len() * $lanes;
                // SAFETY: the caller vouches for `halves`; any bits are valid on both sides.
                unsafe {
                    for (i, vector) in vectors.iter_mut().enumerate() {
                        let half = halves.cast::<$half>().add(i).read_unaligned();
                        vector.as_mut_ptr().cast::<$single>().write_unaligned($widen(half));
                    }
                    Portable::f16_to_f32(rest, halves.add(2 * whole));
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn f32_to_f16(halves: *mut u8, singles: &[f32]) {
                let (vectors, rest) = singles.as_chunks::<$lanes>();
                let whole = vectors.len() * $lanes;
                // SAFETY: the caller vouches for `halves`; any bits are valid on both sides.
                unsafe {
                    for (i, vector) in vectors.iter().enumerate() {
                        let single = vector.as_ptr().cast::<$single>().read_unaligned();
                        halves.cast::<$half>().add(i).write_unaligned($narrow::<NEAREST>($settle(single)));
                    }
                    Portable::f32_to_f16(halves.add(2 * whole), rest);
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn fold_f16<O: Op>(singles: &mut [f32], halves: *const u8) {
                let (vectors, rest) = singles.as_chunks_mut::<$lanes>();
                let whole = vectors.len() * $lanes;
                // SAFETY: the caller vouches for `halves`; any bits are valid on both sides.
                unsafe {
                    for (i, vector) in vectors.iter_mut().enumerate() {
                        let half = halves.cast::<$half>().add(i).read_unaligned();
                        let single = vector.as_mut_ptr().cast::<$single>();
                        single.write_unaligned($apply::<O>(single.read_unaligned(), $widen(half)));
                    }
                    Portable::fold_f16::<O>(rest, halves.add(2 * whole));
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn fold_f16_pair<O: Op>(output: *mut u8, a: *const u8, b: *const u8, len_elems: usize, factor: f32) {
                let whole = len_elems / $lanes * $lanes;
                let factors = $set(factor);
                // SAFETY: the caller vouches for all three; a vector is read before it is written.
                unsafe {
                    for i in 0..len_elems / $lanes {
                        let first = $widen(a.cast::<$half>().add(i).read_unaligned());
                        let second = $widen(b.cast::<$half>().add(i).read_unaligned());
                        let folded = $settle($mul($apply::<O>(first, second), factors));
                        output.cast::<$half>().add(i).write_unaligned($narrow::<NEAREST>(folded));
                    }
                    let at = 2 * whole;
                    Portable::fold_f16_pair::<O>(output.add(at), a.add(at), b.add(at), len_elems - whole, factor);
                }
            }
        }
    };
}

instructions!(
    Avx2, "avx2,f16c", 8, __m128i, __m256, select: select_avx2, apply: apply_avx2, settle: settle_avx2,
    widen: _mm256_cvtph_ps, narrow: _mm256_cvtps_ph, add: _mm256_add_ps, mul: _mm256_mul_ps, min: _mm256_min_ps,
    max: _mm256_max_ps, or: _mm256_or_ps, and: _mm256_and_ps, set: _mm256_set1_ps,
    canonical: _mm256_castsi256_ps(_mm256_set1_epi32(CANONICAL_NAN))
);
instructions!(
    Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", 16, __m256i, __m512, select: select_avx512,
    apply: apply_avx512, settle: settle_avx512, widen: _mm512_cvtph_ps, narrow: _mm512_cvtps_ph, add: _mm512_add_ps,
    mul: _mm512_mul_ps, min: _mm512_min_ps, max: _mm512_max_ps, or: _mm512_or_ps, and: _mm512_and_ps,
    set: _mm512_set1_ps, canonical: _mm512_castsi512_ps(_mm512_set1_epi32(CANONICAL_NAN))
);
