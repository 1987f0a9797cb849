//! What adding, multiplying, comparing and finishing mean for the numbers that are folded.
//!
//! Integers wrap. Floats round to nearest even. The smaller of two floats is −0 when they are −0 and +0, the larger is
//! +0, and both are NaN when one of the two is: the order of contributions then never matters for minimum and maximum.
//! Which NaN comes out of a calculation is unspecified in Rust and differs between instructions, so [`Number::settle`]
//! replaces every NaN by the canonical one when a result is stored.

use crate::finish::{Divisor, Finish};

/// A number in the form in which it is folded.
pub(super) trait Number: Copy {
    /// What a number is multiplied by on the fly: a float for floats, nothing for integers.
    type Factor: Copy;
    const ZERO: Self;

    /// This factor in the precision of the number.
    fn factor(factor: f64) -> Self::Factor;
    /// The finish as a factor, if it is one. Multiplying a float by one changes nothing.
    fn as_factor(finish: Option<&Finish>) -> Option<Self::Factor>;
    fn times(self, factor: Self::Factor) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    /// Multiplies by a factor from outside, as `finish` explains.
    fn scale(self, factor: f64) -> Self;
    /// Divides by a number of ranks, as `finish` explains.
    fn divide(self, divisor: &Divisor) -> Self;
    /// Replaces any NaN by the canonical one.
    fn settle(self) -> Self;
}

macro_rules! integer {
    ($type:ty, $divide:expr) => {
        impl Number for $type {
            type Factor = ();
            const ZERO: Self = 0;
            #[inline(always)]
            fn factor(_: f64) {}
            #[inline(always)]
            fn as_factor(finish: Option<&Finish>) -> Option<()> {
                finish.is_none().then_some(())
            }
            #[inline(always)]
            fn times(self, (): ()) -> Self {
                self
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                (self as f64 * factor) as $type
            }
            #[inline(always)]
            fn divide(self, divisor: &Divisor) -> Self {
                let divide: fn($type, &Divisor) -> $type = $divide;
                divide(self, divisor)
            }
            #[inline(always)]
            fn settle(self) -> Self {
                self
            }
        }
    };
}

/// Divides a narrow integer as a float that holds it exactly. The rounded quotient of two integers below 2^p, where p
/// is the precision of the float, reaches the next integer only if the exact quotient does; a divisor that the float
/// does not hold exactly is larger than any dividend and gives zero either way.
macro_rules! divide_as {
    ($float:ty, $type:ty) => {
        |dividend, divisor| {
            let quotient = dividend as $float / divisor.float() as $float;
            // SAFETY: the divisor is at least one, so the quotient lies between zero and the dividend.
            unsafe { quotient.to_int_unchecked::<$type>() }
        }
    };
}

integer!(u8, divide_as!(f32, u8));
integer!(i8, divide_as!(f32, i8));
integer!(u16, divide_as!(f32, u16));
integer!(i16, divide_as!(f32, i16));
integer!(u32, divide_as!(f64, u32));
integer!(i32, divide_as!(f64, i32));
integer!(u64, |dividend, divisor| divisor.divide_u64(dividend));
integer!(i64, |dividend, divisor| divisor.divide_i64(dividend));

macro_rules! float {
    ($type:ident) => {
        impl Number for $type {
            type Factor = $type;
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn factor(factor: f64) -> $type {
                factor as $type
            }
            #[inline(always)]
            fn as_factor(finish: Option<&Finish>) -> Option<$type> {
                Some(match finish {
                    None | Some(Finish::Nothing) => 1.0,
                    Some(Finish::Multiply(factor)) => *factor as $type,
                    Some(Finish::Divide(divisor)) => (1.0 / divisor.value() as f64) as $type,
                })
            }
            #[inline(always)]
            fn times(self, factor: $type) -> Self {
                self * factor
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                // Equal numbers have equal bits unless they are zeros, where the sign bit has to survive.
                let equal = $type::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self == other { equal } else { smaller };
                if self.is_nan() { self } else { ordered }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                let equal = $type::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self == other { equal } else { larger };
                if self.is_nan() { self } else { ordered }
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                self * factor as $type
            }
            #[inline(always)]
            fn divide(self, divisor: &Divisor) -> Self {
                self.scale(1.0 / divisor.float())
            }
            #[inline(always)]
            fn settle(self) -> Self {
                // The bits of `NAN` are not guaranteed either; these are the quiet NaN without sign and payload.
                let canonical = $type::from_bits($type::INFINITY.to_bits() | 1 << ($type::MANTISSA_DIGITS - 2));
                if self.is_nan() { canonical } else { self }
            }
        }
    };
}

float!(f32);
float!(f64);

/// Which operation it is, for code that is written once for vectors.
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OpKind {
    Sum,
    Product,
    Min,
    Max,
}

/// How two numbers become one.
pub(super) trait Op {
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    const KIND: OpKind;
    fn apply<A: Number>(a: A, b: A) -> A;
}

macro_rules! op {
    ($name:ident, $method:ident, $doc:literal) => {
        #[doc = $doc]
        pub(super) struct $name;
        impl Op for $name {
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            const KIND: OpKind = OpKind::$name;
            #[inline(always)]
            fn apply<A: Number>(a: A, b: A) -> A {
                a.$method(b)
            }
        }
    };
}

op!(Sum, add, "The sum.");
op!(Product, multiply, "The product.");
op!(Min, smaller, "The smaller one.");
op!(Max, larger, "The larger one.");
