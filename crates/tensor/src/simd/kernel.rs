//! The walk over memory: sources in, folded in order, outputs out.
//!
//! With one or two sources a *job* is a single pass, block by block, through registers. With more, the sources are
//! folded tile by tile: a *tile* is a piece of every source that is small enough for its intermediate result to stay in the
//! first-level cache, so that each source is still read from memory once, in long runs that the processor prefetches well, and
//! every output is written once. The intermediate result has the precision in which numbers are folded, so half precision is rounded
//! only when an output is written.

use std::mem::MaybeUninit;

use farandole_plan::{Dtype, ReduceOp};

use super::block::{Block, Brain, Flag, Half, Lane};
use super::level::{Instructions, Level, Portable};
use super::number::{Max, Min, Number, Op, Product, Sum};
use crate::finish::Finish;
use crate::owned::LINE_BYTES;

/// Blocks of a tile: 8 KiB of singles. With the piece of the source that is being folded it fills half of a first-level cache of
/// 32 KiB; shorter tiles give the prefetcher shorter runs.
const TILE_BLOCKS: usize = 64;

/// Sources and outputs of one run of a kernel, all `len_bytes` long. Made by `Streams` only, which keeps their borrows.
pub(super) struct Job<'a> {
    /// At least one.
    pub(super) sources: &'a [*const u8],
    /// Each is either one of the sources or overlaps with nothing.
    pub(super) outputs: &'a [*mut u8],
    /// How many outputs, counted from the front, may be stored around the caches.
    pub(super) streamed: usize,
    /// More than zero.
    pub(super) len_bytes: usize,
    pub(super) elem_bytes: usize,
    pub(super) finish: Finish,
}

/// Runs a job.
///
/// # Safety
/// The processor must have the level `L`, and sources and outputs must be as `Job` says.
#[inline(always)]
unsafe fn run<E: Lane, O: Op, L: Instructions>(job: &Job<'_>) {
    let block_bytes = size_of::<E::Stored>();
    let (head_bytes, streams) = streaming(job);
    let whole = (job.len_bytes - head_bytes) / block_bytes * block_bytes;
    let (body, tail) = (head_bytes..head_bytes + whole, head_bytes + whole..job.len_bytes);
    // SAFETY: all ranges lie inside the job's length; the rest is what the caller vouches for.
    unsafe {
        if head_bytes > 0 {
            partial::<E, O, L>(job, 0, head_bytes);
        }
        match *job.sources {
            [only] => each::<E, L>(job, body, streams, |at| E::load::<L>(only.add(at), block_bytes)),
            [first, second] => each::<E, L>(job, body, streams, |at| {
                let first = E::load::<L>(first.add(at), block_bytes);
                first.fold::<O>(E::load::<L>(second.add(at), block_bytes))
            }),
            [first, second, ref middle @ .., last] => {
                tiles::<E, O, L>(job, body, streams, [first, second, last], middle);
            }
            [] => unreachable!("a job has sources"),
        }
        if !tail.is_empty() {
            partial::<E, O, L>(job, tail.start, tail.len());
        }
        if streams {
            L::fence();
        }
    }
}

/// How many bytes come before the first line of the outputs that are to be streamed, and whether they can be streamed:
/// all of them must reach a line boundary at the same whole element.
#[inline(always)]
fn streaming(job: &Job<'_>) -> (usize, bool) {
    let mut heads = job.outputs[..job.streamed].iter().map(|output| output.addr().wrapping_neg() % LINE_BYTES);
    let Some(head_bytes) = heads.next() else { return (0, false) };
    let possible = heads.all(|other| other == head_bytes)
        && head_bytes.is_multiple_of(job.elem_bytes)
        && job.len_bytes >= head_bytes + 2 * LINE_BYTES;
    if possible { (head_bytes, true) } else { (0, false) }
}

/// Makes every block of a range and stores it finished.
#[inline(always)]
unsafe fn each<E: Lane, L: Instructions>(
    job: &Job<'_>,
    range: std::ops::Range<usize>,
    streams: bool,
    block: impl Fn(usize) -> E::Block,
) {
    let block_bytes = size_of::<E::Stored>();
    let mut at = range.start;
    // SAFETY: every block of the range lies inside the outputs.
    unsafe {
        match *job.outputs {
            // The common case without the loop over outputs.
            [output] if !streams => {
                while at < range.end {
                    let stored = E::narrow::<L>(E::finish(block(at), &job.finish));
                    output.add(at).cast::<E::Stored>().write_unaligned(stored);
                    at += block_bytes;
                }
            }
            _ => {
                while at < range.end {
                    store::<E, L>(job, at, block(at), streams);
                    at += block_bytes;
                }
            }
        }
    }
}

/// Finishes a block and stores it in every output.
#[inline(always)]
unsafe fn store<E: Lane, L: Instructions>(job: &Job<'_>, at: usize, block: E::Block, streams: bool) {
    // SAFETY: the block lies inside the outputs; streamed outputs are aligned to a line at every block (`streaming`).
    unsafe {
        let stored = E::narrow::<L>(E::finish(block, &job.finish));
        let (streamed, cached) = job.outputs.split_at(if streams { job.streamed } else { 0 });
        for output in streamed {
            L::stream(output.add(at).cast::<E::Stored>(), stored);
        }
        for output in cached {
            output.add(at).cast::<E::Stored>().write_unaligned(stored);
        }
    }
}

/// Folds three sources or more, tile by tile.
#[inline(always)]
unsafe fn tiles<E: Lane, O: Op, L: Instructions>(
    job: &Job<'_>,
    range: std::ops::Range<usize>,
    streams: bool,
    [first, second, last]: [*const u8; 3],
    middle: &[*const u8],
) {
    let block_bytes = size_of::<E::Stored>();
    let mut tile = [const { MaybeUninit::<E::Block>::uninit() }; TILE_BLOCKS];
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + TILE_BLOCKS * block_bytes);
        let tile = &mut tile[..(end - start) / block_bytes];
        // SAFETY: every block of the tile lies inside the job, and the first loop initialises the tile.
        unsafe {
            for (i, slot) in tile.iter_mut().enumerate() {
                let at = start + i * block_bytes;
                let first = E::load::<L>(first.add(at), block_bytes);
                slot.write(first.fold::<O>(E::load::<L>(second.add(at), block_bytes)));
            }
            for source in middle {
                for (i, slot) in tile.iter_mut().enumerate() {
                    let next = E::load::<L>(source.add(start + i * block_bytes), block_bytes);
                    slot.write(slot.assume_init_read().fold::<O>(next));
                }
            }
            let offset = start;
            each::<E, L>(job, start..end, streams, |at| {
                let folded = tile.get_unchecked((at - offset) / block_bytes).assume_init_read();
                folded.fold::<O>(E::load::<L>(last.add(at), block_bytes))
            });
        }
        start = end;
    }
}

/// Folds less than a block, from however many sources.
///
/// # Safety
/// As for `run`, and the part lies inside the job.
#[inline(always)]
unsafe fn partial<E: Lane, O: Op, L: Instructions>(job: &Job<'_>, at: usize, len_bytes: usize) {
    // SAFETY: the part lies inside all sources and outputs, and all sources are read before an output is written.
    unsafe {
        let mut block = E::load::<L>(job.sources[0].add(at), len_bytes);
        for source in &job.sources[1..] {
            block = block.fold::<O>(E::load::<L>(source.add(at), len_bytes));
        }
        let stored = E::narrow::<L>(E::finish(block, &job.finish));
        for output in job.outputs {
            output.add(at).copy_from_nonoverlapping((&raw const stored).cast(), len_bytes);
        }
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
    factor: Option<f64>,
) where
    F::Block: Through<W>,
    T::Block: Through<W>,
{
    let elems = <F::Block as Through<W>>::ELEMS;
    let (from_bytes, to_bytes) = (size_of::<F::Stored>() / elems, size_of::<T::Stored>() / elems);
    let mut at = 0;
    while at < len_elems {
        let count = elems.min(len_elems - at);
        // SAFETY: elements `at` to `at + count` lie inside both.
        unsafe {
            let mut wide = F::load::<L>(src.add(at * from_bytes), count * from_bytes).into_wide();
            if let Some(factor) = factor {
                wide = Block::map(wide, |number| number.scale(factor));
            }
            let stored = T::narrow::<L>(T::Block::from_wide(wide));
            let to = dst.add(at * to_bytes);
            if count == elems {
                to.cast::<T::Stored>().write_unaligned(stored);
            } else {
                to.copy_from_nonoverlapping((&raw const stored).cast(), count * to_bytes);
            }
        }
        at += count;
    }
}

/// A block that can go through a wider one of as many numbers.
pub(super) trait Through<W: Number>: Block {
    const ELEMS: usize = 32;
    fn into_wide(self) -> [W; 32];
    fn from_wide(wide: [W; 32]) -> Self;
}

macro_rules! through {
    ($narrow:ident, $wide:ident) => {
        impl Through<$wide> for [$narrow; 32] {
            #[inline(always)]
            fn into_wide(self) -> [$wide; 32] {
                let mut wide = [0.0; 32];
                for i in 0..32 {
                    wide[i] = self[i] as $wide;
                }
                wide
            }
            #[inline(always)]
            fn from_wide(wide: [$wide; 32]) -> Self {
                let mut narrow = [0.0; 32];
                for i in 0..32 {
                    narrow[i] = wide[i] as $narrow;
                }
                narrow
            }
        }
    };
}

through!(f32, f32);
through!(f32, f64);
through!(f64, f64);

/// The entry points: the same bodies compiled for each level.
mod entry {
    use super::{Instructions, Job, Lane, Level, Number, Op, Portable, Through, convert, run};

    pub(super) type Run = unsafe fn(&Job<'_>);
    pub(super) type RunConvert = unsafe fn(*mut u8, *const u8, usize, Option<f64>);

    macro_rules! level {
        ($run:ident, $convert:ident, $instructions:ty $(, $features:literal)?) => {
            $(#[target_feature(enable = $features)])?
            unsafe fn $run<E: Lane, O: Op>(job: &Job<'_>) {
                // SAFETY: this function is compiled for the level; the caller vouches for the rest.
                unsafe { run::<E, O, $instructions>(job) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn $convert<F: Lane, T: Lane, W: Number>(dst: *mut u8, src: *const u8, len_elems: usize, factor: Option<f64>)
            where
                F::Block: Through<W>,
                T::Block: Through<W>,
            {
                // SAFETY: this function is compiled for the level; the caller vouches for the rest.
                unsafe { convert::<F, T, W, $instructions>(dst, src, len_elems, factor) }
            }
        };
    }

    level!(portable, convert_portable, Portable);
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    level!(avx2, convert_avx2, crate::simd::level::Avx2, "avx2,f16c");
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    level!(avx512, convert_avx512, crate::simd::level::Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");

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
        F::Block: Through<W>,
        T::Block: Through<W>,
    {
        match level {
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx512 => convert_avx512::<F, T, W>,
            #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
            Level::Avx2 => convert_avx2::<F, T, W>,
            _ => convert_portable::<F, T, W>,
        }
    }

    /// Keeps the trait in use where only the portable level exists.
    const _: fn() = || {
        fn instructions<L: Instructions>() {}
        instructions::<Portable>();
    };
}

/// The entry point for a fold; `None` for Adasum.
pub(super) fn select(dtype: Dtype, op: ReduceOp, level: Level) -> Option<entry::Run> {
    if dtype == Dtype::Bool {
        return match op {
            ReduceOp::Sum | ReduceOp::Max => Some(entry::fold::<Flag, Max>(level)),
            ReduceOp::Average | ReduceOp::Min | ReduceOp::Product => Some(entry::fold::<Flag, Min>(level)),
            ReduceOp::Adasum => None,
        };
    }
    match op {
        ReduceOp::Sum | ReduceOp::Average => Some(of_type::<Sum>(dtype, level)),
        ReduceOp::Product => Some(of_type::<Product>(dtype, level)),
        ReduceOp::Min => Some(of_type::<Min>(dtype, level)),
        ReduceOp::Max => Some(of_type::<Max>(dtype, level)),
        ReduceOp::Adasum => None,
    }
}

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
        Dtype::F16 => entry::fold::<Half, O>(level),
        Dtype::BF16 => entry::fold::<Brain, O>(level),
        Dtype::F32 => entry::fold::<f32, O>(level),
        Dtype::F64 => entry::fold::<f64, O>(level),
    }
}

/// The entry point for a conversion; `None` unless both are floats.
pub(super) fn select_convert(from: Dtype, to: Dtype, level: Level) -> Option<entry::RunConvert> {
    match from {
        Dtype::F16 => to_type::<Half>(to, level),
        Dtype::BF16 => to_type::<Brain>(to, level),
        Dtype::F32 => to_type::<f32>(to, level),
        Dtype::F64 => match to {
            Dtype::F16 => Some(entry::conversion::<f64, Half, f64>(level)),
            Dtype::BF16 => Some(entry::conversion::<f64, Brain, f64>(level)),
            Dtype::F32 => Some(entry::conversion::<f64, f32, f64>(level)),
            Dtype::F64 => Some(entry::conversion::<f64, f64, f64>(level)),
            _ => None,
        },
        _ => None,
    }
}

fn to_type<F: Lane>(to: Dtype, level: Level) -> Option<entry::RunConvert>
where
    F::Block: Through<f32> + Through<f64>,
{
    match to {
        Dtype::F16 => Some(entry::conversion::<F, Half, f32>(level)),
        Dtype::BF16 => Some(entry::conversion::<F, Brain, f32>(level)),
        Dtype::F32 => Some(entry::conversion::<F, f32, f32>(level)),
        Dtype::F64 => Some(entry::conversion::<F, f64, f64>(level)),
        _ => None,
    }
}
