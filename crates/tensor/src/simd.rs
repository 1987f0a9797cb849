//! The vector kernels, one body of code compiled once for each level of instruction set.
//!
//! A kernel is ordinary Rust over fixed-size blocks (`block`), which the compiler turns into vector instructions; the
//! entry points here compile it with and without AVX2 and AVX-512 (`#[target_feature]`), and the best level that the
//! processor has is chosen at run time. Hand-written instructions remain for what the compiler cannot find by itself:
//! half-precision conversion (`x86`). Because all levels share one body, and because Rust never
//! contracts `a * b + c`, all levels give the same bits.
//!
//! The modules: `number` says what adding, multiplying and comparing mean; `block` how memory becomes blocks of numbers
//! and back; `half_float` converts half precision; `kernel` walks over the memory; `streams` holds what a kernel reads
//! and writes, so that callers need no unsafe code.

mod block;
mod half_float;
mod kernel;
mod level;
mod number;
mod streams;
mod vectors;
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
mod x86;

use farandole_plan::{Dtype, ReduceOp};

use crate::finish::Finish;

pub use level::Level;
pub(crate) use streams::Streams;
pub(crate) use vectors::Vectors;

/// The code that folds one element type with one operation on one level of instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    run: unsafe fn(&kernel::Job<'_>),
}

impl Kernel {
    /// The kernel for a fold, or `None` for Adasum, which is no fold of elements.
    pub(crate) fn fold(dtype: Dtype, op: ReduceOp, level: Level) -> Option<Kernel> {
        assert!(level.is_available(), "this processor has no {level}");
        kernel::select(dtype, op, level).map(|run| Kernel { run })
    }

    /// A kernel for passing a single source through, finished but not folded.
    pub(crate) fn pass(dtype: Dtype, level: Level) -> Kernel {
        Kernel::fold(dtype, ReduceOp::Max, level).expect("invariant: every element type has a maximum")
    }

    /// own = own ∘ other, finished: what two ranks do, without the bookkeeping that more need. No operation depends on
    /// the order of two operands.
    pub(crate) fn run_pair(&self, dtype: Dtype, own: &mut [u8], other: &[u8], finish: Finish) {
        assert!(own.len() == other.len(), "contributions of {} and {} bytes cannot be folded", own.len(), other.len());
        if own.is_empty() {
            return;
        }
        let output = own.as_mut_ptr();
        let job = kernel::Job {
            sources: &[output.cast_const(), other.as_ptr()],
            outputs: &[output],
            len_elems: own.len() / dtype.size_bytes(),
            finish: finish.of(dtype),
        };
        // SAFETY: the processor has the level (checked in `fold`); `own` and `other` are borrowed for the call, equally
        // long (asserted), and the output is the first source.
        unsafe { (self.run)(&job) }
    }

    /// Folds the sources of `streams` in order and stores the finished result in all its outputs.
    pub(crate) fn run(&self, streams: &Streams<'_>, finish: &Finish) {
        if let Some(job) = streams.job(finish) {
            // SAFETY: the processor has the level (checked in `fold`), and the streams hold borrows of
            // sources and outputs of the job's length that overlap only where a source is an output.
            unsafe { (self.run)(&job) }
        }
    }
}

/// The code that converts one float type to another, or `None` if one of the types is not a float.
#[derive(Clone, Copy)]
pub(crate) struct Convert {
    run: unsafe fn(dst: *mut u8, src: *const u8, len_elems: usize, factor: f64),
    from_bytes: usize,
    to_bytes: usize,
}

impl Convert {
    /// The conversion between two float types.
    pub(crate) fn new(from: Dtype, to: Dtype, level: Level) -> Option<Convert> {
        assert!(level.is_available(), "this processor has no {level}");
        let run = kernel::select_convert(from, to, level)?;
        Some(Convert { run, from_bytes: from.size_bytes(), to_bytes: to.size_bytes() })
    }

    /// Converts all of `src`, multiplied by `factor`.
    pub(crate) fn run(&self, dst: &mut [u8], src: &[u8], factor: f64) {
        let len_elems = src.len() / self.from_bytes;
        assert!(
            src.len() == len_elems * self.from_bytes && dst.len() == len_elems * self.to_bytes,
            "a conversion has as many elements after it as before"
        );
        // SAFETY: the processor has the level (checked in `new`), and both slices hold `len_elems` elements.
        unsafe { (self.run)(dst.as_mut_ptr(), src.as_ptr(), len_elems, factor) }
    }
}
