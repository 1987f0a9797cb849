//! Half precision to single precision and back, in integer arithmetic that vectorises and without branches.
//!
//! Both directions give what IEEE 754 prescribes: widening is exact, narrowing rounds to nearest even, overflows to
//! infinity and keeps subnormal numbers. NaN becomes NaN; callers settle which one, except that bfloat16 has only the
//! canonical one. `level` replaces the IEEE half conversions by instructions where they exist; the instruction for
//! bfloat16 is of no use because it flushes subnormal numbers.

/// An IEEE half as single. The exponent moves from bias 15 to bias 127.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    // Infinity and NaN: the largest exponent of the half becomes the largest of the single.
    let bias = if exponent == 0x0f80_0000 { (127 - 15 + 128 - 16) << 23 } else { (127 - 15) << 23 };
    let ordinary = magnitude + bias;
    // Subnormal: read the fraction as that of a number in [2⁻¹⁴, 2⁻¹³) and take the 2⁻¹⁴ off again.
    let subnormal = (f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    f32::from_bits(sign | if exponent == 0 { subnormal } else { ordinary })
}

/// A single rounded to an IEEE half.
#[inline(always)]
pub(super) fn f32_to_f16(single: f32) -> u16 {
    let bits = single.to_bits();
    let sign = (bits >> 16) & 0x8000;
    // Signed, because vector units compare signed integers best; it is never negative.
    let magnitude = (bits & 0x7fff_ffff) as i32;
    // Ordinary: move the exponent to the other bias and round the lower 13 bits away; a carry runs into the
    // exponent, which is right, up to infinity.
    let odd = (magnitude >> 13) & 1;
    let ordinary = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0x0fff + odd) >> 13;
    // Subnormal half: adding one half makes the addition itself round at 2⁻²⁴, the unit of subnormal halves.
    let subnormal = (f32::from_bits(magnitude as u32) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as i32;
    let finite = if magnitude < 113 << 23 { subnormal } else { ordinary };
    // From 65520 on the half is infinite; that is caught at 65536 and by the carry below it.
    let unbounded = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    (sign | if magnitude >= 143 << 23 { unbounded } else { finite } as u32) as u16
}

/// A bfloat16 as single: its upper half.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// A single rounded to bfloat16.
#[inline(always)]
pub(super) fn f32_to_bf16(single: f32) -> u16 {
    let bits = single.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    // Rounding could carry a NaN into infinity or lose its fraction, so it is replaced by the canonical one.
    (if single.is_nan() { 0x7fc0 } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Miri is three orders of magnitude slower.
    const STRIDE: usize = if cfg!(miri) { 251 } else { 1 };

    #[test]
    fn every_half_widens_exactly_and_comes_back() {
        for bits in (0..=u16::MAX).step_by(STRIDE) {
            let (ieee, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            if ieee.is_nan() {
                assert!(f16_to_f32(bits).is_nan());
            } else {
                assert_eq!(f16_to_f32(bits).to_bits(), ieee.to_f32_const().to_bits(), "{bits:#x}");
                assert_eq!(f32_to_f16(f16_to_f32(bits)), bits);
            }
            if brain.is_nan() {
                assert!(bf16_to_f32(bits).is_nan());
            } else {
                assert_eq!(bf16_to_f32(bits).to_bits(), brain.to_f32_const().to_bits(), "{bits:#x}");
                assert_eq!(f32_to_bf16(bf16_to_f32(bits)), bits);
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // All upper halves, with lower bits at and around every tie of both formats.
        let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
        for upper in (0..=0xffffu32).step_by(STRIDE) {
            for lower in lower {
                let single = f32::from_bits(upper << 16 | lower);
                if single.is_nan() {
                    assert!(
                        f16::from_bits(f32_to_f16(single)).is_nan() && bf16::from_bits(f32_to_bf16(single)).is_nan()
                    );
                } else {
                    assert_eq!(f32_to_f16(single), f16::from_f32_const(single).to_bits(), "{single:e}");
                    assert_eq!(f32_to_bf16(single), bf16::from_f32_const(single).to_bits(), "{single:e}");
                }
            }
        }
    }
}
