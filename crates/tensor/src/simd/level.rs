//! The levels of instruction set, which of them this processor has, and the few things written with instructions by hand.
//!
//! The level is found once per process. The environment variable `FARANDOLE_SIMD` (`portable`, `avx2` or
//! `avx512`) holds it down, for tests and for finding out whether a level is at fault; it never raises it above what the processor has.
//! A build with `--cfg farandole_portable` knows only the portable level.

use std::fmt;
use std::sync::OnceLock;

use super::half_float;
use crate::owned::LINE_BYTES;

/// Half-precision blocks have this many elements on all levels.
pub(super) const HALF_BLOCK: usize = 32;

/// A level of instruction set. Higher levels include the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What the compiler makes of plain Rust for the target.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// The level that folds use in this process.
    ///
    /// # Panics
    /// If `FARANDOLE_SIMD` is set to something that is not the name of a level.
    pub fn current() -> Level {
        // Written once by whichever thread folds first; afterwards a plain load.
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let ceiling = match std::env::var("FARANDOLE_SIMD") {
                Ok(name) if !name.is_empty() => Level::from_name(&name).unwrap_or_else(|| {
                    panic!("FARANDOLE_SIMD is {name:?}, but must be portable, avx2 or avx512 (or not set)")
                }),
                _ => Level::Avx512,
            };
            Level::available().filter(|&level| level <= ceiling).max().unwrap_or(Level::Portable)
        })
    }

    /// The levels that this build and this processor have, lowest first.
    pub fn available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Whether this build and this processor have the level.
    pub fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(all(target_arch = "x86_64", not(farandole_portable), not(miri))))]
            _ => false,
        }
    }

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }

    /// The name that `FARANDOLE_SIMD` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a level does by hand. All functions are inlined into an entry point that is compiled for the level.
///
/// # Safety
/// All functions may only be called on a processor that has the level.
pub(super) trait Instructions {
    unsafe fn f16_to_f32(halves: [u16; HALF_BLOCK]) -> [f32; HALF_BLOCK] {
        halves.map(half_float::f16_to_f32)
    }

    unsafe fn f32_to_f16(singles: [f32; HALF_BLOCK]) -> [u16; HALF_BLOCK] {
        singles.map(half_float::f32_to_f16)
    }

    /// Stores `value` around the caches if the level can. `to` is aligned to a line and valid for writes, and
    /// `V` consists of whole lines.
    unsafe fn stream<V: Copy>(to: *mut V, value: V) {
        // SAFETY: the caller vouches for `to`.
        unsafe { to.write_unaligned(value) }
    }

    /// Orders streamed stores before everything that this thread stores later, such as the flag that tells a peer that the data
    /// is there.
    unsafe fn fence() {}
}

/// Plain Rust.
pub(super) struct Portable;

impl Instructions for Portable {
    #[inline(always)]
    unsafe fn f16_to_f32(halves: [u16; HALF_BLOCK]) -> [f32; HALF_BLOCK] {
        halves.map(half_float::f16_to_f32)
    }

    #[inline(always)]
    unsafe fn f32_to_f16(singles: [f32; HALF_BLOCK]) -> [u16; HALF_BLOCK] {
        singles.map(half_float::f32_to_f16)
    }
}

#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
pub(super) use x86::{Avx2, Avx512};

#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256, __m256i, __m512, __m512i, _MM_FROUND_TO_NEAREST_INT, _mm_sfence, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_stream_si512,
    };
    use std::mem::transmute;

    use super::{HALF_BLOCK, Instructions};

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

    /// AVX2 and F16C.
    pub(in crate::simd) struct Avx2;

    impl Instructions for Avx2 {
        #[inline(always)]
        unsafe fn f16_to_f32(halves: [u16; HALF_BLOCK]) -> [f32; HALF_BLOCK] {
            // SAFETY: arrays and vectors have the same size and any bits are valid; the caller has F16C.
            unsafe {
                let [a, b, c, d] = transmute::<[u16; HALF_BLOCK], [__m128i; 4]>(halves);
                let singles = [_mm256_cvtph_ps(a), _mm256_cvtph_ps(b), _mm256_cvtph_ps(c), _mm256_cvtph_ps(d)];
                transmute::<[__m256; 4], [f32; HALF_BLOCK]>(singles)
            }
        }

        #[inline(always)]
        unsafe fn f32_to_f16(singles: [f32; HALF_BLOCK]) -> [u16; HALF_BLOCK] {
            // SAFETY: as above.
            unsafe {
                let [a, b, c, d] = transmute::<[f32; HALF_BLOCK], [__m256; 4]>(singles);
                transmute::<[__m128i; 4], [u16; HALF_BLOCK]>([
                    _mm256_cvtps_ph::<NEAREST>(a),
                    _mm256_cvtps_ph::<NEAREST>(b),
                    _mm256_cvtps_ph::<NEAREST>(c),
                    _mm256_cvtps_ph::<NEAREST>(d),
                ])
            }
        }

        #[inline(always)]
        unsafe fn stream<V: Copy>(to: *mut V, value: V) {
            let from = (&raw const value).cast::<__m256i>();
            for i in 0..size_of::<V>() / size_of::<__m256i>() {
                // SAFETY: `value` and the memory at `to`, which is aligned to a line, consist of whole vectors.
                unsafe { _mm256_stream_si256(to.cast::<__m256i>().add(i), from.add(i).read_unaligned()) }
            }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has the fence.
            unsafe { _mm_sfence() };
        }
    }

    /// AVX-512 F, BW, DQ and VL.
    pub(in crate::simd) struct Avx512;

    impl Instructions for Avx512 {
        #[inline(always)]
        unsafe fn f16_to_f32(halves: [u16; HALF_BLOCK]) -> [f32; HALF_BLOCK] {
            // SAFETY: arrays and vectors have the same size and any bits are valid; the caller has AVX-512 F.
            unsafe {
                let [a, b] = transmute::<[u16; HALF_BLOCK], [__m256i; 2]>(halves);
                transmute::<[__m512; 2], [f32; HALF_BLOCK]>([_mm512_cvtph_ps(a), _mm512_cvtph_ps(b)])
            }
        }

        #[inline(always)]
        unsafe fn f32_to_f16(singles: [f32; HALF_BLOCK]) -> [u16; HALF_BLOCK] {
            // SAFETY: as above.
            unsafe {
                let [a, b] = transmute::<[f32; HALF_BLOCK], [__m512; 2]>(singles);
                let halves = [_mm512_cvtps_ph::<NEAREST>(a), _mm512_cvtps_ph::<NEAREST>(b)];
                transmute::<[__m256i; 2], [u16; HALF_BLOCK]>(halves)
            }
        }

        #[inline(always)]
        unsafe fn stream<V: Copy>(to: *mut V, value: V) {
            let from = (&raw const value).cast::<__m512i>();
            for i in 0..size_of::<V>() / size_of::<__m512i>() {
                // SAFETY: `value` and the memory at `to`, which is aligned to a line, consist of whole vectors.
                unsafe { _mm512_stream_si512(to.cast::<__m512i>().add(i), from.add(i).read_unaligned()) }
            }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has the fence.
            unsafe { _mm_sfence() };
        }
    }
}

/// Copies around the caches: for copies far larger than them whose destination is not read soon. Where the processor
/// or the build has no such stores it is an ordinary copy.
///
/// # Panics
/// If the slices differ in length.
pub fn copy_streaming(dst: &mut [u8], src: &[u8]) {
    assert!(dst.len() == src.len(), "a copy of {} bytes does not fit {} bytes", src.len(), dst.len());
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    if Level::current() >= Level::Avx2 {
        let head = dst.as_ptr().align_offset(LINE_BYTES).min(dst.len());
        let (dst_head, dst_rest) = dst.split_at_mut(head);
        let (src_head, src_rest) = src.split_at(head);
        dst_head.copy_from_slice(src_head);
        let whole = dst_rest.len() / LINE_BYTES * LINE_BYTES;
        // SAFETY: the processor has AVX2; the destination is aligned to a line and both are `whole` bytes long.
        unsafe { copy_lines_avx2(dst_rest.as_mut_ptr().cast(), src_rest.as_ptr().cast(), whole / LINE_BYTES) };
        dst_rest[whole..].copy_from_slice(&src_rest[whole..]);
        return;
    }
    let _ = LINE_BYTES;
    dst.copy_from_slice(src);
}

/// # Safety
/// `dst` must be aligned to a line, both must be valid for `lines` lines, and they must not overlap.
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
#[target_feature(enable = "avx2")]
unsafe fn copy_lines_avx2(dst: *mut [u8; LINE_BYTES], src: *const [u8; LINE_BYTES], lines: usize) {
    for line in 0..lines {
        // SAFETY: inside both, as the caller vouches; this function is compiled for AVX2.
        unsafe { Avx2::stream(dst.add(line), src.add(line).read_unaligned()) };
    }
    // SAFETY: every x86-64 processor has the fence.
    unsafe { Avx2::fence() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::OwnedBytes;

    #[test]
    fn the_current_level_is_one_that_is_there() {
        assert!(Level::current().is_available());
        assert!(Level::Portable.is_available());
        assert!(Level::ALL.into_iter().all(|level| Level::from_name(level.name()) == Some(level)));
        assert_eq!(Level::from_name("sse9"), None);
    }

    #[test]
    fn streaming_copies_every_byte_and_no_other() {
        let src: Vec<u8> = (0..700).map(|i| (i % 251) as u8).collect();
        for start in [0, 1, 63] {
            for len in [0, 1, 63, 64, 65, 127, 128, 300, 513] {
                let mut dst = OwnedBytes::zeroed(640);
                copy_streaming(&mut dst[start..start + len], &src[7..7 + len]);
                assert_eq!(dst[start..start + len], src[7..7 + len]);
                assert!(dst[..start].iter().chain(&dst[start + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
