//! The last pass: bytes of pixels become numbers of the wanted kind and order, mirrored on the way.
//!
//! A number is `byte * scale + bias` with a scale and bias for each band, which is what dividing by 255, subtracting a
//! mean and dividing by a deviation come to. Rows go one by one from pixels to the output, so each byte is read once
//! and each number written once. Parts to be erased are written over afterwards.
//!
//! **Invariant:** the output depends on pixels and [`Target`] alone, not on the processor: rounding is that of IEEE 754
//! for a multiplication and an addition, and to the nearest even number where a number becomes shorter.

use std::marker::PhantomData;

use pulp::{Arch, NullaryFnOnce};

use super::step::Fill;
use super::{Element, Layout};
use crate::chance::Chance;
use crate::decode::{Picture, Pixel, Rect, Size};

/// How numbers are made of bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) bands: usize,
    pub(super) element: Element,
    pub(super) layout: Layout,
    /// For each band.
    pub(super) scale: [f32; 3],
    pub(super) bias: [f32; 3],
}

/// Which way pictures are mirrored on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    pub(super) columns: bool,
    pub(super) rows: bool,
}

/// A part to be erased.
#[derive(Clone, Debug)]
pub(super) struct Erasure {
    pub(super) part: Rect,
    pub(super) fill: Fill,
    /// For noise.
    pub(super) chance: Chance,
    /// Whether the numbers are still to be normalised: 0 is black, and 1 is white.
    pub(super) before_normalize: bool,
}

/// A number as it lies in memory.
trait Number: Copy {
    type Bytes: Copy;

    fn of(byte: u8, scale: f32, bias: f32) -> Self::Bytes;
    fn of_float(number: f32) -> Self::Bytes;
}

#[derive(Clone, Copy)]
struct Byte;
#[derive(Clone, Copy)]
struct Half;
#[derive(Clone, Copy)]
struct Brain;
#[derive(Clone, Copy)]
struct Single;

impl Number for Byte {
    type Bytes = [u8; 1];

    #[inline(always)]
    fn of(byte: u8, _: f32, _: f32) -> [u8; 1] {
        [byte]
    }

    fn of_float(number: f32) -> [u8; 1] {
        [(number * 255.0).round_ties_even() as u8]
    }
}

impl Number for Single {
    type Bytes = [u8; 4];

    #[inline(always)]
    fn of(byte: u8, scale: f32, bias: f32) -> [u8; 4] {
        Single::of_float(f32::from(byte) * scale + bias)
    }

    #[inline(always)]
    fn of_float(number: f32) -> [u8; 4] {
        number.to_ne_bytes()
    }
}

impl Number for Half {
    type Bytes = [u8; 2];

    #[inline(always)]
    fn of(byte: u8, scale: f32, bias: f32) -> [u8; 2] {
        Half::of_float(f32::from(byte) * scale + bias)
    }

    #[inline(always)]
    fn of_float(number: f32) -> [u8; 2] {
        half_bits(number).to_ne_bytes()
    }
}

impl Number for Brain {
    type Bytes = [u8; 2];

    #[inline(always)]
    fn of(byte: u8, scale: f32, bias: f32) -> [u8; 2] {
        Brain::of_float(f32::from(byte) * scale + bias)
    }

    #[inline(always)]
    fn of_float(number: f32) -> [u8; 2] {
        let bits = number.to_bits();
        // Half of the last bit that stays, less one where that bit is even: ties go to even. Numbers here are finite.
        (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_ne_bytes()
    }
}

/// The bits of the nearest binary16, without a branch, so that many can be made at once. Not for NaN.
#[inline(always)]
fn half_bits(number: f32) -> u16 {
    let sign = number.to_bits() >> 16 & 0x8000;
    let bits = number.to_bits() & 0x7fff_ffff;
    // The exponent's bias goes from 127 to 15, and 13 bits are rounded away, ties to even.
    let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xfff + (bits >> 13 & 1)) >> 13;
    // Numbers below 2^-14 lose more bits: adding 2^-1 puts the last one that stays at the end of the fraction.
    let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // From 65520 on they round to infinity.
    let infinite = 0x7c00;
    let size = if bits < 113 << 23 {
        small
    } else if bits >= 0x477f_f000 {
        infinite
    } else {
        normal
    };
    (sign | size) as u16
}

/// Writes a picture and erases parts of it. The output has room for exactly the picture; parts lie within it as it is
/// after mirroring.
pub(super) fn store(
    picture: &Picture,
    mirror: Mirror,
    target: &Target,
    erasures: &mut [Erasure],
    row: &mut Vec<Pixel>,
    out: &mut [u8],
) {
    match target.element {
        Element::U8 => write::<Byte, 1>(picture, mirror, target, erasures, row, out.as_chunks_mut().0),
        Element::F16 => write::<Half, 2>(picture, mirror, target, erasures, row, out.as_chunks_mut().0),
        Element::BF16 => write::<Brain, 2>(picture, mirror, target, erasures, row, out.as_chunks_mut().0),
        Element::F32 => write::<Single, 4>(picture, mirror, target, erasures, row, out.as_chunks_mut().0),
    }
}

fn write<N: Number<Bytes = [u8; BYTES]>, const BYTES: usize>(
    picture: &Picture,
    mirror: Mirror,
    target: &Target,
    erasures: &mut [Erasure],
    buffer: &mut Vec<Pixel>,
    out: &mut [[u8; BYTES]],
) {
    Arch::new().dispatch(Write::<N, BYTES> { picture, mirror, target, buffer, out, number: PhantomData });
    for erasure in erasures {
        erase::<N, BYTES>(erasure, target, picture.size(), out);
    }
}

/// The loop over all pixels. A type of its own, because a closure would not be inlined where vectors are on.
struct Write<'a, N, const BYTES: usize> {
    picture: &'a Picture,
    mirror: Mirror,
    target: &'a Target,
    buffer: &'a mut Vec<Pixel>,
    out: &'a mut [[u8; BYTES]],
    number: PhantomData<N>,
}

impl<N: Number<Bytes = [u8; BYTES]>, const BYTES: usize> NullaryFnOnce for Write<'_, N, BYTES> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { picture, mirror, target, buffer, out, .. } = self;
        let Size { height, width } = picture.size();
        let Target { bands, layout, scale, bias, .. } = *target;
        buffer.resize(width, [0; 4]);
        for row in 0..height {
            let mut pixels = picture.row(if mirror.rows { height - 1 - row } else { row });
            if mirror.columns {
                for (to, pixel) in buffer.iter_mut().zip(pixels.iter().rev()) {
                    *to = *pixel;
                }
                pixels = buffer;
            }
            if layout == Layout::Nhwc && bands == 3 {
                let numbers = out[row * width * 3..][..width * 3].as_chunks_mut::<3>().0;
                for (number, pixel) in numbers.iter_mut().zip(pixels) {
                    for band in 0..3 {
                        number[band] = N::of(pixel[band], scale[band], bias[band]);
                    }
                }
                continue;
            }
            for band in 0..bands {
                let (scale, bias) = (scale[band], bias[band]);
                let numbers = &mut out[(band * height + row) * width..][..width];
                for (number, pixel) in numbers.iter_mut().zip(pixels) {
                    // The pixel as one word: a shift is cheaper than picking bytes.
                    let byte = (u32::from_le_bytes(*pixel) >> (8 * band)) as u8;
                    *number = N::of(byte, scale, bias);
                }
            }
        }
    }
}

fn erase<N: Number<Bytes = [u8; BYTES]>, const BYTES: usize>(
    erasure: &mut Erasure,
    target: &Target,
    size: Size,
    out: &mut [[u8; BYTES]],
) {
    let Erasure { part, fill, chance, before_normalize } = erasure;
    let Target { bands, layout, scale, bias, .. } = *target;
    for band in 0..bands {
        for row in part.top..part.bottom() {
            for column in part.left..part.right() {
                let number = match *fill {
                    Fill::Constant(number) => number,
                    Fill::Noise => chance.normal(),
                };
                // A scale is for bytes.
                let number = if *before_normalize { number * 255.0 * scale[band] + bias[band] } else { number };
                let at = match layout {
                    Layout::Nchw => (band * size.height + row) * size.width + column,
                    Layout::Nhwc => (row * size.width + column) * bands + band,
                };
                out[at] = N::of_float(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_as_the_standard_says() {
        let mut number = 1e-9f32;
        while number < 70_000.0 {
            for signed in [number, -number] {
                assert_eq!(half_bits(signed), half::f16::from_f32(signed).to_bits(), "{signed:e}");
                let brain = u16::from_ne_bytes(Brain::of_float(signed));
                assert_eq!(brain, half::bf16::from_f32(signed).to_bits(), "{signed:e}");
            }
            number *= 1.000_37;
        }
        // Ties, the ends of the range, and zero.
        for bits in [0x3f80_1000u32, 0x3f80_3000, 0x477f_efff, 0x477f_f000, 0x3380_0000, 0x3300_0000, 0x387f_ffff, 0] {
            let number = f32::from_bits(bits);
            assert_eq!(half_bits(number), half::f16::from_f32(number).to_bits(), "{number:e}");
        }
    }
}
