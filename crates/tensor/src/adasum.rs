//! Adaptive summation of two gradients.
//!
//! Where two gradients point the same way their mean is taken, where they are orthogonal their sum, and in between what
//! lies between: with the inner product *dot* of both,
//!
//! > low · (1 − dot / (2 |low|²)) + high · (1 − dot / (2 |high|²)).
//!
//! A zero vector contributes nothing and has factor one. Everything is calculated in f64, the inner products in a fixed
//! order that devices have, too (`simd/vectors.rs`), and the result is rounded to the element type (half precision by
//! way of f32). Sums and products of two numbers do not depend on their order, so adasum(low, high) and adasum(high,
//! low) are the same bits and both partners of an exchange may combine in place. Combining three or more does depend on
//! the order of pairs, which `plan::adasum` fixes.
//!
//! This combines two vectors of one tensor. A bucket is combined tensor by tensor.

use farandole_plan::Dtype;

use crate::simd::{Level, Vectors};

/// Whether the element type can be combined: only floats can.
pub fn is_supported(dtype: Dtype) -> bool {
    dtype.is_float()
}

/// a = adasum(a, b).
///
/// # Panics
/// If the type is not a float or the lengths differ.
pub fn combine(dtype: Dtype, a: &mut [u8], b: &[u8]) {
    combine_at_level(dtype, a, b, Level::current());
}

/// [`combine`] on a given level of instruction set; all levels give the same bits.
///
/// # Panics
/// As [`combine`], and if this processor does not have the level.
pub fn combine_at_level(dtype: Dtype, a: &mut [u8], b: &[u8], level: Level) {
    let vectors = Vectors::new(dtype, level).unwrap_or_else(|| panic!("Adasum of {dtype} is not defined"));
    let dots = vectors.dots(a, b);
    vectors.weigh(a, b, [factor(dots.both, dots.first), factor(dots.both, dots.second)]);
}

fn factor(dot: f64, square: f64) -> f64 {
    if square == 0.0 { 1.0 } else { 1.0 - dot / (2.0 * square) }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::element::{Plain, as_bytes, as_bytes_mut};

    fn adasum<T: Plain>(a: &[T], b: &[T]) -> Vec<T> {
        let mut out = a.to_vec();
        combine(T::DTYPE, as_bytes_mut(&mut out), as_bytes(b));
        let mut swapped = b.to_vec();
        combine(T::DTYPE, as_bytes_mut(&mut swapped), as_bytes(a));
        assert_eq!(as_bytes(&out), as_bytes(&swapped), "both partners get the same bits");
        out
    }

    #[test]
    fn equal_vectors_average_and_orthogonal_ones_add() {
        assert_eq!(adasum(&[1.0f32, 2.0, -3.0], &[1.0, 2.0, -3.0]), [1.0, 2.0, -3.0]);
        assert_eq!(adasum(&[1.0f64, 0.0], &[0.0, 5.0]), [1.0, 5.0]);
        let half = [1.5f32, -0.25, 64.0].map(f16::from_f32);
        assert_eq!(adasum(&half, &half), half);
        let brain = [1.5f32, -0.25, 64.0].map(bf16::from_f32);
        assert_eq!(adasum(&brain, &brain), brain);
    }

    #[test]
    fn a_zero_vector_contributes_nothing() {
        assert_eq!(adasum(&[0.0f32; 5], &[1.0, -2.0, 3.0, 4.0, 0.5]), [1.0, -2.0, 3.0, 4.0, 0.5]);
        assert_eq!(adasum(&[0.0f64; 2], &[0.0; 2]), [0.0; 2]);
        assert_eq!(adasum::<f32>(&[], &[]), []);
    }

    #[test]
    fn the_formula_holds_and_all_levels_agree() {
        for len in [1usize, 2, 31, 32, 33, 100, 257] {
            let a: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7 + 0.3).sin()).collect();
            let b: Vec<f32> = (0..len).map(|i| (i as f32 * 1.3).cos()).collect();
            let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
            let (fa, fb) = (1.0 - dot(&a, &b) / 2.0 / dot(&a, &a), 1.0 - dot(&a, &b) / 2.0 / dot(&b, &b));
            let out = adasum(&a, &b);
            for i in 0..len {
                let expected = f64::from(a[i]) * fa + f64::from(b[i]) * fb;
                assert!((f64::from(out[i]) - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{len} {i}");
            }
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64] {
                let bytes = len * 4 / dtype.size_bytes() * dtype.size_bytes();
                let results: Vec<Vec<u8>> = Level::available()
                    .map(|level| {
                        let mut out = as_bytes(&a)[..bytes].to_vec();
                        combine_at_level(dtype, &mut out, &as_bytes(&b)[..bytes], level);
                        out
                    })
                    .collect();
                assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{dtype} {len}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "Adasum of int32 is not defined")]
    fn integers_are_refused() {
        combine(Dtype::I32, &mut [0; 4], &[0; 4]);
    }
}
