//! The levels of instruction set, and which of them this processor has.
//!
//! The level is found once per process. The environment variable `FARANDOLE_SIMD` (`portable`, `avx2` or `avx512`)
//! holds it down, for tests and for finding out whether a level is at fault; it never raises it above what the
//! processor has. A build with `--cfg farandole_portable` knows only the portable level.

use std::fmt;
use std::sync::OnceLock;

use half::f16;

use super::block::fold_straight;
use super::half_float;
use super::number::{Number, Op};

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
            let ceiling = farandole_settings::SIMD.in_environment();
            Level::wished(ceiling.as_deref()).unwrap_or_else(|problem| panic!("{problem}"))
        })
    }

    /// The best level up to the one with this name, or the best of all.
    ///
    /// # Errors
    /// If there is no level of this name.
    pub fn wished(ceiling: Option<&str>) -> Result<Level, String> {
        let ceiling = ceiling.map_or(Ok(Level::Avx512), |name| {
            let farandole_settings::Setting { name: variable, kind, .. } = farandole_settings::SIMD;
            Level::from_name(name).ok_or_else(|| format!("{variable} is {name}, but must be {kind}"))
        })?;
        Ok(Level::available().filter(|&level| level <= ceiling).max().unwrap_or(Level::Portable))
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

/// What a level does by hand.
///
/// # Safety
/// All functions may only be called on a processor that has the level. Memory need not be aligned.
pub(super) trait Instructions {
    /// Fills `singles` from as many halves at `halves`.
    unsafe fn f16_to_f32(singles: &mut [f32], halves: *const u8) {
        for (i, single) in singles.iter_mut().enumerate() {
            // SAFETY: the caller vouches for `halves`.
            *single = half_float::f16_to_f32(unsafe { halves.cast::<u16>().add(i).read_unaligned() });
        }
    }

    /// Writes `singles`, with NaN made canonical, as so many halves to `halves`.
    unsafe fn f32_to_f16(halves: *mut u8, singles: &[f32]) {
        for (i, single) in singles.iter().enumerate() {
            let half = half_float::f32_to_f16(single.settle());
            // SAFETY: the caller vouches for `halves`.
            unsafe { halves.cast::<u16>().add(i).write_unaligned(half) };
        }
    }

    /// Folds as many halves at `halves` into `singles`.
    unsafe fn fold_f16<O: Op>(singles: &mut [f32], halves: *const u8) {
        for (i, single) in singles.iter_mut().enumerate() {
            // SAFETY: the caller vouches for `halves`.
            let half = unsafe { halves.cast::<u16>().add(i).read_unaligned() };
            *single = O::apply(*single, half_float::f16_to_f32(half));
        }
    }

    /// output = (a ∘ b) · factor for so many halves. The output may be `a` or `b`, but may not overlap with them
    /// otherwise.
    unsafe fn fold_f16_pair<O: Op>(output: *mut u8, a: *const u8, b: *const u8, len_elems: usize, factor: f32) {
        // SAFETY: the caller vouches for all three.
        unsafe { fold_straight::<f16, O>(output, a, b, len_elems, factor) }
    }
}

/// Plain Rust.
pub(super) struct Portable;

impl Instructions for Portable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_level_is_one_that_is_there() {
        assert!(Level::current().is_available());
        assert!(Level::Portable.is_available());
        assert!(Level::ALL.into_iter().all(|level| Level::from_name(level.name()) == Some(level)));
        assert_eq!(Level::from_name("sse9"), None);
    }
}
