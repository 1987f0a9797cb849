//! Conversion between float types: what wire compression is made of.
//!
//! Every pair of f16, bf16, f32 and f64 converts, rounding to nearest even; f64 goes to f16 and bf16 by way of f32. A
//! factor is applied in the wider of the two (f32 between half precisions) before the result is rounded. NaN becomes
//! the canonical NaN of its new type. The instruction for f32 to bf16 is not used, because it flushes subnormal numbers
//! to zero.

use farandole_plan::Dtype;

use crate::simd::{Convert, Level};

/// Whether [`cast`] knows the pair.
pub fn is_supported(from: Dtype, to: Dtype) -> bool {
    from.is_float() && to.is_float()
}

/// Converts all elements of `src` into `dst`, multiplied by `factor` on the way.
///
/// # Panics
/// If the pair is not supported or the number of elements differs.
pub fn cast(dst: &mut [u8], to: Dtype, src: &[u8], from: Dtype, factor: f64) {
    cast_at_level(dst, to, src, from, factor, Level::current());
}

/// The same on a given level of instruction set; all levels give the same bits.
///
/// # Panics
/// As [`cast`], and if this processor does not have the level.
pub fn cast_at_level(dst: &mut [u8], to: Dtype, src: &[u8], from: Dtype, factor: f64, level: Level) {
    let convert = Convert::new(from, to, level).unwrap_or_else(|| panic!("{from} does not travel as {to}"));
    convert.run(dst, src, factor);
}
