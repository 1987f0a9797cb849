//! The walk over memory: sources in, folded in order, outputs out.
//!
//! The common *job*, two sources and one output, is a single loop over memory. All others go tile by tile: a *tile* is
//! a piece of every source that is small enough for its intermediate result to stay in the first-level cache, so that
//! each source is still read from memory once, in runs that the processor prefetches well, and every output is written
//! once. The tile holds numbers in the precision in which they are folded, so half precision is rounded only when an
//! output is written.

use std::mem::MaybeUninit;

use farandole_plan::{Dtype, ReduceOp};
use half::{bf16, f16};

use super::block::{Flag, Lane};
use super::level::{Instructions, Level, Portable};
use super::number::{Max, Min, Number, Op, Product, Sum};
use crate::finish::Finish;

/// Elements of a tile: 4 KiB of singles, 8 KiB of doubles. With the piece of the source that is being folded it fills
/// at most half of a first-level cache of 32 KiB; shorter tiles give the prefetcher shorter runs.
pub(super) const TILE_ELEMS: usize = 1024;

/// Sources and outputs of one run of a kernel, all `len_elems` long. Made by `Streams` only, which keeps their borrows.
pub(super) struct Job<'a> {
    /// At least one.
    pub(super) sources: &'a [*const u8],
    /// Each is either one of the sources or overlaps with nothing.
    pub(super) outputs: &'a [*mut u8],
    /// More than zero.
    pub(super) len_elems: usize,
    /// What changes the result. A reference, because the compiler would compute the factors of a finish in the job
    /// before it looks which finish it is: with the bytes that lie there by chance, a division may take 50 ns.
    pub(super) finish: Option<&'a Finish>,
}

/// Runs a job.
///
/// # Safety
/// The processor must have the level `L`, and sources and outputs must be as `Job` says.
#[inline(always)]
unsafe fn run<E: Lane, O: Op, L: Instructions>(job: &Job<'_>) {
    // SAFETY: what the caller vouches for.
    unsafe {
        if let (&[a, b], &[output]) = (job.sources, job.outputs)
            && let Some(factor) = <E::Number as Number>::as_factor(job.finish)
        {
            E::fold_pair::<O, L>(output, a, b, job.len_elems, factor);
        } else {
            tiles::<E, O, L>(job);
        }
    }
}

/// Folds however many sources into however many outputs, tile by tile.
///
/// # Safety
/// As for `run`.
#[inline(always)]
unsafe fn tiles<E: Lane, O: Op, L: Instructions>(job: &Job<'_>) {
    // No more of the tile is filled than is used: filling all takes longer than a fold of a few elements.
    let mut tile = [const { MaybeUninit::<E::Number>::uninit() }; TILE_ELEMS];
    let tile = &mut tile[..job.len_elems.min(TILE_ELEMS)];
    tile.fill(MaybeUninit::new(<E::Number as Number>::ZERO));
    // SAFETY: all numbers of the tile have just been written.
    let tile = unsafe { tile.assume_init_mut() };
    let mut start = 0;
    while start < job.len_elems {
        let tile = &mut tile[..(job.len_elems - start).min(TILE_ELEMS)];
        let at_bytes = start * E::ELEM_BYTES;
        // SAFETY: the tile lies inside all sources and outputs, and all sources are read before an output is written.
        unsafe {
            match *job.sources {
                [only] => E::load::<L>(tile, only.add(at_bytes)),
                [first, second, ref others @ ..] => {
                    E::load_pair::<O, L>(tile, first.add(at_bytes), second.add(at_bytes));
                    for other in others {
                        E::fold::<O, L>(tile, other.add(at_bytes));
                    }
                }
                [] => unreachable!("a job has sources"),
            }
            if let Some(finish) = job.finish {
                finish_tile(tile, finish);
            }
            for output in job.outputs {
                E::store::<L>(tile, output.add(at_bytes));
            }
        }
        start += tile.len();
    }
}

#[inline(always)]
fn finish_tile<A: Number>(tile: &mut [A], finish: &Finish) {
    match *finish {
        Finish::Nothing => {}
        Finish::Multiply(factor) => tile.iter_mut().for_each(|number| *number = number.scale(factor)),
        Finish::Divide(ref divisor) => tile.iter_mut().for_each(|number| *number = number.divide(divisor)),
    }
}

/// Converts floats to floats by way of `W`, the wider of the two precisions in which they are folded.
///
/// # Safety
/// The processor must have the level `L`; `dst` and `src` must be valid for `len_elems` elements and not overlap.
#[inline(always)]
unsafe fn convert<F: Lane, T: Lane, W: Number, L: Instructions>(
    dst: *mut u8,
    src: *const u8,
    len_elems: usize,
    factor: W::Factor,
) where
    F::Number: Through<W>,
    T::Number: Through<W>,
{
    if !F::BULK && !T::BULK {
        for i in 0..len_elems {
            // SAFETY: element i lies inside both.
            unsafe {
                let wide = src.cast::<F>().add(i).read_unaligned().widen().into_wide().times(factor);
                dst.cast::<T>().add(i).write_unaligned(T::narrow(T::Number::from_wide(wide)));
            }
        }
        return;
    }
    let (mut from, mut to) = ([<F::Number as Number>::ZERO; TILE_ELEMS], [<T::Number as Number>::ZERO; TILE_ELEMS]);
    let mut at = 0;
    while at < len_elems {
        let count = TILE_ELEMS.min(len_elems - at);
        // SAFETY: the tile lies inside both.
        unsafe {
            F::load::<L>(&mut from[..count], src.add(at * F::ELEM_BYTES));
            for (to, from) in to[..count].iter_mut().zip(&from[..count]) {
                *to = T::Number::from_wide(from.into_wide().times(factor));
            }
            T::store::<L>(&to[..count], dst.add(at * T::ELEM_BYTES));
        }
        at += count;
    }
}

/// A number that can go through a wider one.
pub(super) trait Through<W>: Number {
    fn into_wide(self) -> W;
    fn from_wide(wide: W) -> Self;
}

macro_rules! through {
    ($narrow:ident, $wide:ident) => {
        impl Through<$wide> for $narrow {
            #[inline(always)]
            fn into_wide(self) -> $wide {
                self as $wide
            }
            #[inline(always)]
            fn from_wide(wide: $wide) -> Self {
                wide as $narrow
            }
        }
    };
}

through!(f32, f32);
through!(f32, f64);
through!(f64, f64);

/// The entry points: the same bodies compiled for each level.
mod entry {
    use super::{Job, Lane, Level, Number, Op, Portable, Through, convert, run};

    pub(super) type Run = unsafe fn(&Job<'_>);
    pub(super) type RunConvert = unsafe fn(*mut u8, *const u8, usize, f64);

    macro_rules! level {
        ($run:ident, $convert:ident, $instructions:ty $(, $features:literal)?) => {
            $(#[target_feature(enable = $features)])?
            unsafe fn $run<E: Lane, O: Op>(job: &Job<'_>) {
                // SAFETY: this function is compiled for the level; the caller vouches for the rest.
                unsafe { run::<E, O, $instructions>(job) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn $convert<F: Lane, T: Lane, W: Number>(dst: *mut u8, src: *const u8, len_elems: usize, factor: f64)
            where
                F::Number: Through<W>,
                T::Number: Through<W>,
            {
                // SAFETY: this function is compiled for the level; the caller vouches for the rest.
                unsafe { convert::<F, T, W, $instructions>(dst, src, len_elems, W::factor(factor)) }
            }
        };
    }

    level!(portable, convert_portable, Portable);
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    level!(avx2, convert_avx2, crate::simd::x86::Avx2, "avx2,f16c");
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    level!(avx512, convert_avx512, crate::simd::x86::Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");

    pub(super) fn fold<E: Lane, O: Op>(level: Level) -> Run {
        match level {
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx512 => avx512::<E, O>,
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx2 => avx2::<E, O>,
            _ => portable::<E, O>,
        }
    }

    pub(super) fn conversion<F: Lane, T: Lane, W: Number>(level: Level) -> RunConvert
    where
        F::Number: Through<W>,
        T::Number: Through<W>,
    {
        match level {
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx512 => convert_avx512::<F, T, W>,
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx2 => convert_avx2::<F, T, W>,
            _ => convert_portable::<F, T, W>,
        }
    }
}

/// The entry point for a fold; `None` for Adasum.
#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
pub(super) fn select(dtype: Dtype, op: ReduceOp, level: Level) -> Option<entry::Run> {
    if dtype == Dtype::Bool {
        return match op {
            ReduceOp::Sum | ReduceOp::Max => Some(entry::fold::<Flag, Max>(level)),
            ReduceOp::Average | ReduceOp::Min | ReduceOp::Product => Some(entry::fold::<Flag, Min>(level)),
            ReduceOp::Adasum => None,
            _ => unreachable!("invariant: every operation has an arm"),
        };
    }
    match op {
        ReduceOp::Sum | ReduceOp::Average => Some(of_type::<Sum>(dtype, level)),
        ReduceOp::Product => Some(of_type::<Product>(dtype, level)),
        ReduceOp::Min => Some(of_type::<Min>(dtype, level)),
        ReduceOp::Max => Some(of_type::<Max>(dtype, level)),
        ReduceOp::Adasum => None,
        _ => unreachable!("invariant: every operation has an arm"),
    }
}

#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
fn of_type<O: Op>(dtype: Dtype, level: Level) -> entry::Run {
    match dtype {
        Dtype::Bool => unreachable!("bool has operations of its own"),
        Dtype::U8 => entry::fold::<u8, O>(level),
        Dtype::I8 => entry::fold::<i8, O>(level),
        Dtype::U16 => entry::fold::<u16, O>(level),
        Dtype::I16 => entry::fold::<i16, O>(level),
        Dtype::U32 => entry::fold::<u32, O>(level),
        Dtype::I32 => entry::fold::<i32, O>(level),
        Dtype::U64 => entry::fold::<u64, O>(level),
        Dtype::I64 => entry::fold::<i64, O>(level),
        Dtype::F16 => entry::fold::<f16, O>(level),
        Dtype::BF16 => entry::fold::<bf16, O>(level),
        Dtype::F32 => entry::fold::<f32, O>(level),
        Dtype::F64 => entry::fold::<f64, O>(level),
        _ => unreachable!("invariant: every element type has an arm"),
    }
}

/// The entry point for a conversion; `None` unless both are floats.
pub(super) fn select_convert(from: Dtype, to: Dtype, level: Level) -> Option<entry::RunConvert> {
    match from {
        Dtype::F16 => to_type::<f16>(to, level),
        Dtype::BF16 => to_type::<bf16>(to, level),
        Dtype::F32 => to_type::<f32>(to, level),
        Dtype::F64 => match to {
            Dtype::F16 => Some(entry::conversion::<f64, f16, f64>(level)),
            Dtype::BF16 => Some(entry::conversion::<f64, bf16, f64>(level)),
            Dtype::F32 => Some(entry::conversion::<f64, f32, f64>(level)),
            Dtype::F64 => Some(entry::conversion::<f64, f64, f64>(level)),
            _ => None,
        },
        _ => None,
    }
}

fn to_type<F: Lane>(to: Dtype, level: Level) -> Option<entry::RunConvert>
where
    F::Number: Through<f32> + Through<f64>,
{
    match to {
        Dtype::F16 => Some(entry::conversion::<F, f16, f32>(level)),
        Dtype::BF16 => Some(entry::conversion::<F, bf16, f32>(level)),
        Dtype::F32 => Some(entry::conversion::<F, f32, f32>(level)),
        Dtype::F64 => Some(entry::conversion::<F, f64, f64>(level)),
        _ => None,
    }
}
