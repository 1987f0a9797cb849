//! What is done to a result before it is stored: [`Finish`]; and the scaling of contributions before they are folded.
//!
//! The rules, the same on every level of SIMD:
//! * floats are multiplied by one factor, in the precision in which they are folded (f64 for f64, f32 for the others);
//! * integers are multiplied in f64, cut off towards zero and held within the range of their type. Above 2⁵³ the
//!   product therefore carries the precision of an f64;
//! * the average of integers is an exact division by the number of ranks, cut off towards zero;
//! * bool is never scaled.
//!
//! Which operation wants which finish is decided in [`Finish::new`]. Folding itself is in `reduce`.
//!
//! A tensor is copied into a bucket and out of it once ([`copy_finished`]), so whatever is done to every element
//! (prescale, conversion to the wire type, average, postscale) is done in that copy.

use farandole_plan::{Dtype, ReduceOp};

use crate::cast;
use crate::simd::{self, Level, Streams};

/// What to do to a result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish {
    /// Store it as it is.
    Nothing,
    /// Multiply by this factor.
    Multiply(f64),
    /// Divide integers exactly, cutting off towards zero; multiply floats by the inverse.
    Divide(Divisor),
}

impl Finish {
    /// The finish of a reduction over this many ranks.
    ///
    /// An average of integers with a postscale other than one is a single multiplication by `postscale / ranks`, so
    /// that it is cut off only once. Where that is one, nothing is done: integers keep all their bits.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn new(dtype: Dtype, op: ReduceOp, ranks: u64, postscale: f64) -> Finish {
        assert!(ranks > 0, "a reduction has at least one rank");
        let averages = op == ReduceOp::Average && ranks > 1;
        match dtype {
            Dtype::Bool => Finish::Nothing,
            _ if averages && !dtype.is_float() && postscale == 1.0 => Finish::Divide(Divisor::new(ranks)),
            _ if averages => Finish::factor(postscale / ranks as f64),
            _ => Finish::factor(postscale),
        }
    }

    /// Multiplication by this factor, or nothing if it is one.
    pub fn factor(factor: f64) -> Finish {
        if factor == 1.0 { Finish::Nothing } else { Finish::Multiply(factor) }
    }

    /// The finish, if it changes elements of this type. Bool is never scaled.
    #[inline]
    pub(crate) fn of(&self, dtype: Dtype) -> Option<&Finish> {
        (*self != Finish::Nothing && dtype != Dtype::Bool).then_some(self)
    }

    /// Applies the finish to data in place.
    pub fn apply(&self, dtype: Dtype, data: &mut [u8]) {
        if self.of(dtype).is_some() {
            simd::Kernel::pass(dtype, Level::current()).run(Streams::new(dtype).update(data), self);
        }
    }
}

/// Multiplies data by a factor in place, as a contribution is before it is folded.
pub fn scale(dtype: Dtype, data: &mut [u8], factor: f64) {
    Finish::factor(factor).apply(dtype, data);
}

/// Copies data of one element type and multiplies it by a factor on the way. With factor one it is a plain copy.
///
/// # Panics
/// If `dst` and `src` differ in length.
pub fn copy_scaled(dst: &mut [u8], src: &[u8], dtype: Dtype, factor: f64) {
    copy_finished(dst, dtype, src, dtype, Finish::factor(factor));
}

/// Copies elements of the type `from` to memory of the type `to`, finished on the way. With equal types and nothing to
/// do to them it is a plain copy.
///
/// # Panics
/// If `dst` and `src` differ in their number of elements, or the types differ and are not both floats.
pub fn copy_finished(dst: &mut [u8], to: Dtype, src: &[u8], from: Dtype, finish: Finish) {
    if from != to {
        let factor = match finish {
            Finish::Nothing => 1.0,
            Finish::Multiply(factor) => factor,
            // Only floats change their type, and for them a division is a multiplication by the inverse.
            Finish::Divide(divisor) => 1.0 / divisor.value() as f64,
        };
        cast::cast(dst, to, src, from, factor);
    } else if finish.of(to).is_none() {
        dst.copy_from_slice(src);
    } else {
        simd::Kernel::pass(to, Level::current()).run(Streams::new(to).read(src).write(dst), &finish);
    }
}

/// An integer to divide by, with what makes dividing by it fast.
///
/// Dividing a 64-bit number x by the same d again and again is a multiplication: with `shift` = ⌈log₂ d⌉ and
/// `magic` = ⌊2⁶⁴·(2^shift − d)/d⌋ + 1, the upper half t of magic·x gives ⌊x/d⌋ = (t + (x − t)/2) / 2^(shift−1), where
/// each division by a power of two is a shift. Narrower integers are divided as floats, which is exact for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divisor {
    value: u64,
    /// The value as a float. Kept, because converting an unsigned 64-bit number takes a branch.
    float: f64,
    magic: u64,
    shift: u32,
}

impl Divisor {
    /// A divisor.
    ///
    /// # Panics
    /// If it is zero.
    pub fn new(value: u64) -> Divisor {
        assert!(value > 0, "nothing can be divided by zero");
        let shift = u64::BITS - (value - 1).leading_zeros();
        let magic = (((1u128 << shift) - u128::from(value)) << 64) / u128::from(value) + 1;
        Divisor { value, float: value as f64, magic: magic as u64, shift }
    }

    /// The number itself.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// The number as a float, rounded if it has more than 53 bits.
    #[inline(always)]
    pub(crate) fn float(&self) -> f64 {
        self.float
    }

    /// ⌊x / d⌋.
    #[inline(always)]
    pub(crate) fn divide_u64(&self, x: u64) -> u64 {
        if self.shift == 0 {
            return x;
        }
        let t = ((u128::from(self.magic) * u128::from(x)) >> 64) as u64;
        (t + ((x - t) >> 1)) >> (self.shift - 1)
    }

    /// x / d, cut off towards zero.
    #[inline(always)]
    pub(crate) fn divide_i64(&self, x: i64) -> i64 {
        // The magnitude of the smallest i64 divided by one does not fit an i64, but wraps to the right answer.
        let quotient = self.divide_u64(x.unsigned_abs()) as i64;
        if x < 0 { quotient.wrapping_neg() } else { quotient }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::element::{as_bytes, as_bytes_mut};

    #[test]
    fn division_by_multiplication_is_exact() {
        let interesting =
            [0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 63, 64, 65, 255, 641, 1000, 65537, u64::from(u32::MAX), 1 << 33];
        let near_ends = [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) + 1, (1 << 63) - 1, u64::MAX / 3, u64::MAX / 3 * 2];
        for d in interesting.into_iter().chain(near_ends).filter(|&d| d > 0) {
            let divisor = Divisor::new(d);
            for x in interesting
                .into_iter()
                .chain(near_ends)
                .flat_map(|x| [x, x.wrapping_mul(d), x.wrapping_mul(d).wrapping_sub(1)])
            {
                assert_eq!(divisor.divide_u64(x), x / d, "{x} / {d}");
                if let Ok(signed) = i64::try_from(d) {
                    assert_eq!(divisor.divide_i64(x as i64), (x as i64).wrapping_div(signed), "{} / {d}", x as i64);
                }
            }
        }
    }

    #[test]
    fn the_finish_follows_from_operation_and_type() {
        use Dtype::{Bool, F32, I32};
        assert_eq!(Finish::new(F32, ReduceOp::Sum, 4, 1.0), Finish::Nothing);
        assert_eq!(Finish::new(F32, ReduceOp::Average, 4, 1.0), Finish::Multiply(0.25));
        assert_eq!(Finish::new(F32, ReduceOp::Average, 4, 2.0), Finish::Multiply(0.5));
        assert_eq!(Finish::new(I32, ReduceOp::Average, 4, 1.0), Finish::Divide(Divisor::new(4)));
        assert_eq!(Finish::new(I32, ReduceOp::Average, 1, 1.0), Finish::Nothing);
        assert_eq!(Finish::new(I32, ReduceOp::Average, 4, 2.0), Finish::Multiply(0.5));
        assert_eq!(Finish::new(I32, ReduceOp::Average, 4, 4.0), Finish::Nothing);
        assert_eq!(Finish::new(Bool, ReduceOp::Average, 4, 2.0), Finish::Nothing);
        assert_eq!(Finish::new(F32, ReduceOp::Max, 4, 3.0), Finish::Multiply(3.0));
    }

    #[test]
    fn integers_are_cut_off_and_held_in_range() {
        let mut data = [-7i8, 7, 100, -100, 0, 1];
        scale(Dtype::I8, as_bytes_mut(&mut data), 1.5);
        assert_eq!(data, [-10, 10, 127, -128, 0, 1]);
        let mut data = [0u64, 3, u64::MAX];
        scale(Dtype::U64, as_bytes_mut(&mut data), -1.0);
        assert_eq!(data, [0, 0, 0]);
        let mut data = [5i64, -5];
        scale(Dtype::I64, as_bytes_mut(&mut data), f64::NAN);
        assert_eq!(data, [0, 0]);
    }

    #[test]
    fn copies_scale_on_the_way() {
        let src = [1.0f32, -2.0, f32::INFINITY];
        let mut dst = [0.0f32; 3];
        copy_scaled(as_bytes_mut(&mut dst), as_bytes(&src), Dtype::F32, 0.5);
        assert_eq!(dst, [0.5, -1.0, f32::INFINITY]);
        let mut flags = [0u8, 1, 1];
        scale(Dtype::Bool, &mut flags, 0.0);
        assert_eq!(flags, [0, 1, 1]);
    }

    #[test]
    fn a_conversion_scales_before_it_rounds() {
        let src = [1.0f32, 3.0, -256.0, 1e-3];
        let mut halves = [bf16::ZERO; 4];
        copy_finished(as_bytes_mut(&mut halves), Dtype::BF16, as_bytes(&src), Dtype::F32, Finish::Multiply(0.1));
        assert_eq!(halves, src.map(|x| bf16::from_f32(x * 0.1)));
        let mut back = [0.0f32; 4];
        let half = Finish::Divide(Divisor::new(2));
        copy_finished(as_bytes_mut(&mut back), Dtype::F32, as_bytes(&halves), Dtype::BF16, half);
        assert_eq!(back, halves.map(|x| x.to_f32() * 0.5));
    }

    #[test]
    #[should_panic(expected = "int32 does not travel as float16")]
    fn integers_are_not_converted() {
        copy_finished(&mut [0; 8], Dtype::F16, &[0u8; 16], Dtype::I32, Finish::Nothing);
    }
}
