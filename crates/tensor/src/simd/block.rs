//! How memory becomes numbers, and back.
//!
//! A [`Lane`] is an element type as kernels see it. Its loops run over elements at any address, in a form that the
//! compiler vectorises for the level that an entry point is compiled for. IEEE half precision alone is converted by
//! instructions, because the compiler does not find them.

use half::{bf16, f16};

use super::half_float;
use super::level::Instructions;
use super::number::{Number, Op};

/// An element as it lies in memory: any bits are valid.
pub(super) trait Lane: Copy {
    /// The form in which it is folded.
    type Number: Number;
    /// Bytes of one element in memory.
    const ELEM_BYTES: usize = size_of::<Self>();
    /// Whether elements are converted in bulk by instructions of the level, and so cannot be converted one by one.
    const BULK: bool = false;

    fn widen(self) -> Self::Number;

    /// Rounds where that is needed; NaN becomes the canonical one.
    fn narrow(number: Self::Number) -> Self;

    /// Fills the tile from memory.
    ///
    /// # Safety
    /// Here and below: the processor has the level `L`, and pointers are valid for as many elements as the tile has and
    /// do not overlap with it.
    #[inline(always)]
    unsafe fn load<L: Instructions>(tile: &mut [Self::Number], from: *const u8) {
        for (i, number) in tile.iter_mut().enumerate() {
            // SAFETY: the caller vouches for `from`.
            *number = unsafe { from.cast::<Self>().add(i).read_unaligned() }.widen();
        }
    }

    /// Folds memory into the tile.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    unsafe fn fold<O: Op, L: Instructions>(tile: &mut [Self::Number], other: *const u8) {
        for (i, number) in tile.iter_mut().enumerate() {
            // SAFETY: the caller vouches for `other`.
            *number = O::apply(*number, unsafe { other.cast::<Self>().add(i).read_unaligned() }.widen());
        }
    }

    /// Fills the tile with the fold of two sources.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    unsafe fn load_pair<O: Op, L: Instructions>(tile: &mut [Self::Number], a: *const u8, b: *const u8) {
        for (i, number) in tile.iter_mut().enumerate() {
            // SAFETY: the caller vouches for `a` and `b`.
            let (a, b) =
                unsafe { (a.cast::<Self>().add(i).read_unaligned(), b.cast::<Self>().add(i).read_unaligned()) };
            *number = O::apply(a.widen(), b.widen());
        }
    }

    /// output = (a ∘ b) · factor, straight in memory.
    ///
    /// # Safety
    /// The processor has the level `L`, and all pointers are valid for `len_elems` elements. The output is `a` or `b`,
    /// or overlaps with neither.
    #[inline(always)]
    unsafe fn fold_pair<O: Op, L: Instructions>(
        output: *mut u8,
        a: *const u8,
        b: *const u8,
        len_elems: usize,
        factor: <Self::Number as Number>::Factor,
    ) {
        // SAFETY: the caller vouches for all of it.
        unsafe { fold_straight::<Self, O>(output, a, b, len_elems, factor) }
    }

    /// Stores the tile.
    ///
    /// # Safety
    /// As for `load`, for writing.
    #[inline(always)]
    unsafe fn store<L: Instructions>(tile: &[Self::Number], to: *mut u8) {
        for (i, &number) in tile.iter().enumerate() {
            // SAFETY: the caller vouches for `to`.
            unsafe { to.cast::<Self>().add(i).write_unaligned(Self::narrow(number)) };
        }
    }
}

/// output = (a ∘ b) · factor, element by element.
///
/// # Safety
/// As for `Lane::fold_pair`.
#[inline(always)]
pub(super) unsafe fn fold_straight<E: Lane, O: Op>(
    output: *mut u8,
    a: *const u8,
    b: *const u8,
    len_elems: usize,
    factor: <E::Number as Number>::Factor,
) {
    // No operation depends on the order of two numbers, so whichever is the output can come first. The loops differ for
    // the compiler, which has to see that an element is read and written at one place.
    // SAFETY: the caller vouches for all of it.
    unsafe {
        if output.cast_const() == a {
            fold_in_place::<E, O>(output, b, len_elems, factor);
        } else if output.cast_const() == b {
            fold_in_place::<E, O>(output, a, len_elems, factor);
        } else {
            fold_apart::<E, O>(output, a, b, len_elems, factor);
        }
    }
}

/// acc = (acc ∘ other) · factor.
///
/// # Safety
/// Both must be valid for `len_elems` elements and not overlap.
#[inline(always)]
unsafe fn fold_in_place<E: Lane, O: Op>(
    acc: *mut u8,
    other: *const u8,
    len_elems: usize,
    factor: <E::Number as Number>::Factor,
) {
    let (acc, other) = (acc.cast::<E>(), other.cast::<E>());
    for i in 0..len_elems {
        // SAFETY: element i lies inside both.
        unsafe {
            let folded = O::apply(acc.add(i).read_unaligned().widen(), other.add(i).read_unaligned().widen());
            acc.add(i).write_unaligned(E::narrow(folded.times(factor)));
        }
    }
}

/// output = (a ∘ b) · factor.
///
/// # Safety
/// All must be valid for `len_elems` elements, and the output must not overlap with the others.
#[inline(always)]
unsafe fn fold_apart<E: Lane, O: Op>(
    output: *mut u8,
    a: *const u8,
    b: *const u8,
    len_elems: usize,
    factor: <E::Number as Number>::Factor,
) {
    let (output, a, b) = (output.cast::<E>(), a.cast::<E>(), b.cast::<E>());
    for i in 0..len_elems {
        // SAFETY: element i lies inside all of them.
        unsafe {
            let folded = O::apply(a.add(i).read_unaligned().widen(), b.add(i).read_unaligned().widen());
            output.add(i).write_unaligned(E::narrow(folded.times(factor)));
        }
    }
}

/// Integers and floats that are folded as they are.
macro_rules! plain_lane {
    ($($type:ident),*) => {$(
        impl Lane for $type {
            type Number = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(number: $type) -> $type {
                number.settle()
            }
        }
    )*};
}

plain_lane!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Bool: a byte that counts as one unless it is zero. "All" is the smaller one and "any" is the larger one.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Flag(u8);

impl Lane for Flag {
    type Number = u8;
    #[inline(always)]
    fn widen(self) -> u8 {
        u8::from(self.0 != 0)
    }
    #[inline(always)]
    fn narrow(number: u8) -> Flag {
        Flag(number)
    }
}

/// bfloat16, folded in single precision.
impl Lane for bf16 {
    type Number = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        half_float::bf16_to_f32(self.to_bits())
    }
    #[inline(always)]
    fn narrow(number: f32) -> bf16 {
        bf16::from_bits(half_float::f32_to_bf16(number))
    }
}

/// IEEE half precision, folded in single precision.
impl Lane for f16 {
    type Number = f32;
    const BULK: bool = true;

    #[inline(always)]
    fn widen(self) -> f32 {
        half_float::f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn narrow(number: f32) -> f16 {
        f16::from_bits(half_float::f32_to_f16(number.settle()))
    }

    #[inline(always)]
    unsafe fn load<L: Instructions>(tile: &mut [f32], from: *const u8) {
        // SAFETY: the caller vouches for the level and for `from`.
        unsafe { L::f16_to_f32(tile, from) }
    }

    #[inline(always)]
    unsafe fn fold<O: Op, L: Instructions>(tile: &mut [f32], other: *const u8) {
        // SAFETY: the caller vouches for the level and for `other`.
        unsafe { L::fold_f16::<O>(tile, other) }
    }

    #[inline(always)]
    unsafe fn load_pair<O: Op, L: Instructions>(tile: &mut [f32], a: *const u8, b: *const u8) {
        // SAFETY: the caller vouches for all of it.
        unsafe {
            Self::load::<L>(tile, a);
            Self::fold::<O, L>(tile, b);
        }
    }

    #[inline(always)]
    unsafe fn fold_pair<O: Op, L: Instructions>(
        output: *mut u8,
        a: *const u8,
        b: *const u8,
        len_elems: usize,
        factor: f32,
    ) {
        // SAFETY: the caller vouches for all of it.
        unsafe { L::fold_f16_pair::<O>(output, a, b, len_elems, factor) }
    }

    #[inline(always)]
    unsafe fn store<L: Instructions>(tile: &[f32], to: *mut u8) {
        // SAFETY: the caller vouches for the level and for `to`.
        unsafe { L::f32_to_f16(to, tile) }
    }
}
