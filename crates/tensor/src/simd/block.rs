//! How memory becomes blocks of numbers, and back.
//!
//! A *block* is a fixed number of elements that fills a few vector registers: long enough to keep them busy, short enough to stay in
//! them. Blocks are read and written as whole values at any address, so a kernel needs no proof that its inputs and outputs are
//! apart: all of a block is read before any of it is written. A *partial block* at the end of the memory goes through a zeroed
//! block of its own and the same arithmetic.

use super::half_float;
use super::level::{HALF_BLOCK, Instructions};
use super::number::{Number, Op};
use crate::finish::Finish;

/// A block of numbers in registers.
pub(super) trait Block: Copy {
    type Number: Number;
    fn map(self, f: impl Fn(Self::Number) -> Self::Number) -> Self;
    fn fold<O: Op>(self, other: Self) -> Self;
}

impl<A: Number, const N: usize> Block for [A; N] {
    type Number = A;

    #[inline(always)]
    fn map(mut self, f: impl Fn(A) -> A) -> Self {
        for number in &mut self {
            *number = f(*number);
        }
        self
    }

    #[inline(always)]
    fn fold<O: Op>(mut self, other: Self) -> Self {
        for i in 0..N {
            self[i] = O::apply(self[i], other[i]);
        }
        self
    }
}

/// An element type as kernels see it: a block as it lies in memory, and as it is folded.
pub(super) trait Lane {
    /// A block in memory: an array for which any bits are valid.
    type Stored: Copy;
    /// The same block as numbers.
    type Block: Block;

    /// # Safety
    /// The processor must have the level `L`.
    unsafe fn widen<L: Instructions>(stored: Self::Stored) -> Self::Block;

    /// Rounds where that is needed; NaN becomes the canonical one.
    ///
    /// # Safety
    /// The processor must have the level `L`.
    unsafe fn narrow<L: Instructions>(block: Self::Block) -> Self::Stored;

    /// Applies a finish.
    #[inline(always)]
    fn finish(block: Self::Block, finish: &Finish) -> Self::Block {
        match *finish {
            Finish::Nothing => block,
            Finish::Multiply(factor) => block.map(|number| number.scale(factor)),
            Finish::Divide(ref divisor) => block.map(|number| number.divide(divisor)),
        }
    }

    /// Reads `len_bytes` bytes, at most a whole block; what is missing is zero.
    ///
    /// # Safety
    /// The processor must have the level `L`, and `from` must be valid for reads of `len_bytes`.
    #[inline(always)]
    unsafe fn load<L: Instructions>(from: *const u8, len_bytes: usize) -> Self::Block {
        if len_bytes == size_of::<Self::Stored>() {
            // SAFETY: valid for the block, as the caller vouches; any bits are valid.
            return unsafe { Self::widen::<L>(from.cast::<Self::Stored>().read_unaligned()) };
        }
        let mut stored = std::mem::MaybeUninit::<Self::Stored>::zeroed();
        // SAFETY: the caller vouches for `from`; at most a block is copied; zero bits and copied bits are valid.
        unsafe {
            from.copy_to_nonoverlapping(stored.as_mut_ptr().cast(), len_bytes);
            Self::widen::<L>(stored.assume_init())
        }
    }
}

/// Integers and floats that are folded as they are.
macro_rules! plain_lane {
    ($type:ident, $elems:literal) => {
        impl Lane for $type {
            type Stored = [$type; $elems];
            type Block = [$type; $elems];
            #[inline(always)]
            unsafe fn widen<L: Instructions>(stored: Self::Stored) -> Self::Block {
                stored
            }
            #[inline(always)]
            unsafe fn narrow<L: Instructions>(block: Self::Block) -> Self::Stored {
                Block::map(block, Number::settle)
            }
        }
    };
}

// 128 bytes each: two of the widest registers or four of AVX2. All floats have 32 elements, so that a block of one
// converts to a block of any other.
plain_lane!(u8, 128);
plain_lane!(i8, 128);
plain_lane!(u16, 64);
plain_lane!(i16, 64);
plain_lane!(u32, 32);
plain_lane!(i32, 32);
plain_lane!(u64, 16);
plain_lane!(i64, 16);
plain_lane!(f32, 32);
plain_lane!(f64, 32);

/// Bool: a byte that counts as one unless it is zero. "All" is the smaller one and "any" is the larger one.
pub(super) struct Flag;

impl Lane for Flag {
    type Stored = [u8; 128];
    type Block = [u8; 128];
    #[inline(always)]
    unsafe fn widen<L: Instructions>(stored: Self::Stored) -> Self::Block {
        Block::map(stored, |byte| u8::from(byte != 0))
    }
    #[inline(always)]
    unsafe fn narrow<L: Instructions>(block: Self::Block) -> Self::Stored {
        block
    }
    #[inline(always)]
    fn finish(block: Self::Block, _: &Finish) -> Self::Block {
        block
    }
}

/// IEEE half precision, folded in single precision.
pub(super) struct Half;

impl Lane for Half {
    type Stored = [u16; HALF_BLOCK];
    type Block = [f32; HALF_BLOCK];
    #[inline(always)]
    unsafe fn widen<L: Instructions>(stored: Self::Stored) -> Self::Block {
        // SAFETY: the caller has the level.
        unsafe { L::f16_to_f32(stored) }
    }
    #[inline(always)]
    unsafe fn narrow<L: Instructions>(block: Self::Block) -> Self::Stored {
        // SAFETY: the caller has the level.
        unsafe { L::f32_to_f16(Block::map(block, Number::settle)) }
    }
}

/// bfloat16, folded in single precision.
pub(super) struct Brain;

impl Lane for Brain {
    type Stored = [u16; HALF_BLOCK];
    type Block = [f32; HALF_BLOCK];
    #[inline(always)]
    unsafe fn widen<L: Instructions>(stored: Self::Stored) -> Self::Block {
        let mut block = [0.0; HALF_BLOCK];
        for i in 0..HALF_BLOCK {
            block[i] = half_float::bf16_to_f32(stored[i]);
        }
        block
    }
    #[inline(always)]
    unsafe fn narrow<L: Instructions>(block: Self::Block) -> Self::Stored {
        let mut stored = [0; HALF_BLOCK];
        for i in 0..HALF_BLOCK {
            stored[i] = half_float::f32_to_bf16(block[i].settle());
        }
        stored
    }
}
