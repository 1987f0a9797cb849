//! Data whose reduction is exact in any order, and what it must come to.
//!
//! Floating-point sums depend on the order of their terms, so a wrong bit could hide among rounding errors. The values
//! made here leave no room for that: every partial result of every order is exact in the element type, so a
//! collective is right if and only if its bits are those of [`expected`].
//!
//! * Sum and Average of floats: small integers, so small that the sum of their magnitudes stays within the integers
//!   that the type holds exactly (256 for bf16). With more ranks than that, most of them contribute zero.
//! * Product of floats: powers of two and signs, with at most five ranks doubling and five halving, within the
//!   exponents of f16.
//! * Min and Max of floats, and everything of integers and bool: any finite value, since no order matters.
//!
//! Values depend on (seed, rank, element) alone and cost a few instructions each. The arithmetic of [`expected`] is
//! deliberately plain and shares nothing with the kernels but the definition of [`Finish`]. Adasum is never exact and
//! is not covered.

use farandole_plan::{Dtype, ReduceOp};
use half::{bf16, f16};

use crate::finish::Finish;

/// At most this many ranks double an element, and as many halve it: 2⁵·… stays far inside f16.
const PRODUCT_RANKS: u64 = 5;

/// Fills `out` with the contribution of `rank` out of `ranks`.
///
/// # Panics
/// For Adasum.
pub fn fill(dtype: Dtype, op: ReduceOp, rank: u64, ranks: u64, seed: u64, out: &mut [u8]) {
    let size = dtype.size_bytes();
    for (index, slot) in out.chunks_exact_mut(size).enumerate() {
        Value::contribution(dtype, op, rank, ranks, seed, index as u64).store(dtype, slot);
    }
}

/// Fills `out` with the result that all ranks must hold.
///
/// # Panics
/// For Adasum.
pub fn expected(dtype: Dtype, op: ReduceOp, ranks: u64, seed: u64, finish: Finish, out: &mut [u8]) {
    let size = dtype.size_bytes();
    for (index, slot) in out.chunks_exact_mut(size).enumerate() {
        let contribution = |rank| Value::contribution(dtype, op, rank, ranks, seed, index as u64);
        let folded = (1..ranks).fold(contribution(0), |acc, rank| acc.fold(op, contribution(rank)));
        folded.finish(dtype, &finish).store(dtype, slot);
    }
}

/// One number, wide enough for every element type: integers keep their low bits when they wrap.
#[derive(Clone, Copy, Debug)]
enum Value {
    Flag(bool),
    Integer(i128),
    Float(f64),
}

impl Value {
    fn contribution(dtype: Dtype, op: ReduceOp, rank: u64, ranks: u64, seed: u64, index: u64) -> Value {
        let random = mix(seed ^ mix(index ^ mix(rank + 1)));
        if dtype == Dtype::Bool {
            // One rank in `ranks` differs from the others, so that "any" and "all" are decided by few of them.
            let odd_one = mix(index ^ seed) % (ranks + 1) == rank;
            return Value::Flag(odd_one == matches!(op, ReduceOp::Sum | ReduceOp::Max));
        }
        if !dtype.is_float() {
            return Value::Integer(wrap(dtype, i128::from(random)));
        }
        match op {
            ReduceOp::Sum | ReduceOp::Average => Value::Float(summand(dtype, rank, ranks, random, mix(index ^ seed))),
            ReduceOp::Product => Value::Float(factor(rank, ranks, random, mix(index ^ seed))),
            ReduceOp::Min | ReduceOp::Max => Value::Float(((random % 257) as f64 - 128.0) / 4.0),
            ReduceOp::Adasum => panic!("Adasum is never exact"),
            _ => unreachable!("invariant: every operation has an arm"),
        }
    }

    fn fold(self, op: ReduceOp, other: Value) -> Value {
        match (self, other) {
            (Value::Flag(a), Value::Flag(b)) => {
                Value::Flag(if matches!(op, ReduceOp::Sum | ReduceOp::Max) { a | b } else { a & b })
            }
            (Value::Integer(a), Value::Integer(b)) => Value::Integer(match op {
                ReduceOp::Sum | ReduceOp::Average => a + b,
                // Only the low 64 bits matter, and both factors are cut to them so that nothing overflows here.
                ReduceOp::Product => i128::from((a as u64).wrapping_mul(b as u64)),
                ReduceOp::Min => a.min(b),
                _ => a.max(b),
            }),
            (Value::Float(a), Value::Float(b)) => Value::Float(match op {
                ReduceOp::Sum | ReduceOp::Average => a + b,
                ReduceOp::Product => a * b,
                ReduceOp::Min => a.min(b),
                _ => a.max(b),
            }),
            _ => unreachable!("all contributions have one type"),
        }
    }

    fn finish(self, dtype: Dtype, finish: &Finish) -> Value {
        match (self, *finish) {
            (Value::Flag(_), _) | (_, Finish::Nothing) => self,
            (Value::Integer(a), Finish::Divide(divisor)) => {
                Value::Integer(wrap(dtype, a) / i128::from(divisor.value()))
            }
            (Value::Integer(a), Finish::Multiply(factor)) => {
                let (low, high) = limits(dtype);
                Value::Integer(((wrap(dtype, a) as f64 * factor) as i128).clamp(low, high))
            }
            (Value::Float(a), Finish::Multiply(factor)) => Value::Float(scaled(dtype, a, factor)),
            (Value::Float(a), Finish::Divide(divisor)) => Value::Float(scaled(dtype, a, 1.0 / divisor.value() as f64)),
        }
    }

    fn store(self, dtype: Dtype, slot: &mut [u8]) {
        match (self, dtype) {
            (Value::Flag(a), _) => slot[0] = u8::from(a),
            (Value::Integer(a), _) => store_integer(a, slot),
            (Value::Float(a), Dtype::F16) => slot.copy_from_slice(&f16::from_f32(a as f32).to_ne_bytes()),
            (Value::Float(a), Dtype::BF16) => slot.copy_from_slice(&bf16::from_f32(a as f32).to_ne_bytes()),
            (Value::Float(a), Dtype::F32) => slot.copy_from_slice(&(a as f32).to_ne_bytes()),
            (Value::Float(a), _) => slot.copy_from_slice(&a.to_ne_bytes()),
        }
    }
}

/// An integer in −limit..=limit, where limit shares the exactly held integers among the ranks.
fn summand(dtype: Dtype, rank: u64, ranks: u64, random: u64, shared: u64) -> f64 {
    let exact = match dtype {
        Dtype::BF16 => 1u64 << 8,
        Dtype::F16 => 1 << 11,
        Dtype::F32 => 1 << 24,
        _ => 1 << 53,
    };
    // With more ranks than exact integers a window of ranks, elsewhere for each element, contributes ones.
    let contributes = (rank + shared) % ranks < exact;
    let limit = (exact / ranks).clamp(1, 1 << 20);
    let magnitude = if contributes { random % (limit + 1) } else { 0 };
    // Zero has no sign, so that neutral contributions of absent ranks change nothing.
    if random >> 63 == 0 || magnitude == 0 { magnitude as f64 } else { -(magnitude as f64) }
}

/// A power of two with a sign: five ranks double, five halve, the others only turn the sign.
fn factor(rank: u64, ranks: u64, random: u64, shared: u64) -> f64 {
    let place = rank.wrapping_add(shared % ranks) % ranks;
    let power = match place {
        _ if place < PRODUCT_RANKS => 2.0,
        _ if place < 2 * PRODUCT_RANKS => 0.5,
        _ => 1.0,
    };
    if random >> 63 == 0 { power } else { -power }
}

/// What a factor does to a float: rounded in the precision in which the type is folded.
fn scaled(dtype: Dtype, a: f64, factor: f64) -> f64 {
    if dtype == Dtype::F64 { a * factor } else { f64::from(a as f32 * factor as f32) }
}

/// The value that an integer has after wrapping to its type.
fn wrap(dtype: Dtype, a: i128) -> i128 {
    match dtype {
        Dtype::U8 => i128::from(a as u8),
        Dtype::I8 => i128::from(a as i8),
        Dtype::U16 => i128::from(a as u16),
        Dtype::I16 => i128::from(a as i16),
        Dtype::U32 => i128::from(a as u32),
        Dtype::I32 => i128::from(a as i32),
        Dtype::U64 => i128::from(a as u64),
        _ => i128::from(a as i64),
    }
}

fn limits(dtype: Dtype) -> (i128, i128) {
    let bits = dtype.size_bytes() * 8;
    match dtype {
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => (0, (1 << bits) - 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

fn store_integer(a: i128, slot: &mut [u8]) {
    match slot.len() {
        1 => slot.copy_from_slice(&(a as u8).to_ne_bytes()),
        2 => slot.copy_from_slice(&(a as u16).to_ne_bytes()),
        4 => slot.copy_from_slice(&(a as u32).to_ne_bytes()),
        _ => slot.copy_from_slice(&(a as u64).to_ne_bytes()),
    }
}

/// Spreads the bits of a counter (an xor-shift-multiply hash with two rounds).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xd1b5_4a32_d192_ed03);
    x ^ (x >> 32)
}
