//! Folding contributions: [`Fold`].
//!
//! A fold is an element type and an operation with the kernel that this processor runs for them. Contributions are
//! combined strictly in the order given, left to right, and everything is deterministic, so that ranks which fold the
//! same contributions in the same order hold the same bits.
//!
//! | | Sum, Average | Product | Min | Max |
//! |---|---|---|---|---|
//! | bool | any (Sum), all (Average) | all | all | any |
//! | integers | wraps | wraps | smallest | largest |
//! | f16, bf16 | in f32, rounded once per call | same | exact | exact |
//! | f32, f64 | rounded at each contribution | same | exact | exact |
//!
//! A NaN among the contributions makes the result NaN, in Min and Max too, and −0 is smaller than +0. The result is
//! always the canonical quiet NaN. Bool bytes other than zero count as true and results are zero or one.
//!
//! Adasum is no fold of elements: it needs inner products of whole tensors and lives in `adasum`.

use farandole_plan::{Dtype, ReduceOp};

use crate::finish::Finish;
use crate::simd::{Kernel, Level, Streams};

/// How to fold one element type with one operation on this processor. Cheap to make and to copy.
#[derive(Clone, Copy)]
pub struct Fold {
    kernel: Kernel,
    dtype: Dtype,
    op: ReduceOp,
}

impl Fold {
    /// The fold for this element type and operation. Average folds as Sum (bool: as "all"); its division is in
    /// [`Finish`].
    ///
    /// # Panics
    /// For Adasum, which is not a fold.
    pub fn new(dtype: Dtype, op: ReduceOp) -> Fold {
        Fold::at_level(dtype, op, Level::current())
    }

    /// The same on a given level of instruction set; all levels give the same bits.
    ///
    /// # Panics
    /// For Adasum, and if this processor does not have the level.
    pub fn at_level(dtype: Dtype, op: ReduceOp, level: Level) -> Fold {
        let kernel = Kernel::fold(dtype, op, level).unwrap_or_else(|| panic!("{op} is not a fold of elements"));
        Fold { kernel, dtype, op }
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The operation.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// acc = acc ∘ other.
    ///
    /// # Panics
    /// Here and below: if slices differ in length.
    pub fn fold(&self, acc: &mut [u8], other: &[u8]) {
        self.kernel.run_pair(self.dtype, acc, other, Finish::Nothing);
    }

    /// `own = before[0] ∘ … ∘ own ∘ after[0] ∘ …`, finished; the same goes to `copy`.
    ///
    /// Reads every contribution once and writes `own` and `copy` once each.
    pub fn fold_ranks(
        &self,
        own: &mut [u8],
        before: &[&[u8]],
        after: &[&[u8]],
        copy: Option<&mut [u8]>,
        finish: Finish,
    ) {
        if let (([other], []) | ([], [other]), None) = ((before, after), &copy) {
            return self.kernel.run_pair(self.dtype, own, other, finish);
        }
        let mut streams = Streams::new(self.dtype);
        streams.read_all(before).update(own).read_all(after);
        if let Some(copy) = copy {
            streams.write(copy);
        }
        self.run(&streams, finish);
    }

    /// Folds all parts in order and stores the finished result in each of them.
    pub fn fold_all(&self, parts: &mut [&mut [u8]], finish: Finish) {
        self.run(Streams::new(self.dtype).update_all(parts), finish);
    }

    /// Folds the parts in order, with `own` between `before` and `after`, and stores the finished result in each part
    /// and in `out`. What is in `own` stays.
    pub fn fold_apart(
        &self,
        out: &mut [u8],
        before: &mut [&mut [u8]],
        own: &[u8],
        after: &mut [&mut [u8]],
        finish: Finish,
    ) {
        self.run(Streams::new(self.dtype).update_all(before).read(own).update_all(after).write(out), finish);
    }

    /// `out = sources[0] ∘ sources[1] ∘ …`, finished. Without any source it is the neutral element.
    pub fn fold_many(&self, out: &mut [u8], sources: &[&[u8]], finish: Finish) {
        if sources.is_empty() {
            return self.neutral(out);
        }
        self.run(Streams::new(self.dtype).read_all(sources).write(out), finish);
    }

    /// Fills `out` with the element that changes nothing: zero for a sum, one for a product, the largest value (or
    /// infinity) for a minimum.
    pub fn neutral(&self, out: &mut [u8]) {
        let (element, len_bytes) = neutral_element(self.dtype, self.op);
        for slot in out.chunks_exact_mut(len_bytes) {
            slot.copy_from_slice(&element[..len_bytes]);
        }
    }

    fn run(&self, streams: &Streams<'_>, finish: Finish) {
        self.kernel.run(streams, &finish);
    }
}

impl std::fmt::Debug for Fold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fold({} {})", self.op, self.dtype)
    }
}

/// The bytes of the neutral element, and how many of them count.
#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
fn neutral_element(dtype: Dtype, op: ReduceOp) -> ([u8; 8], usize) {
    macro_rules! bytes {
        ($zero:expr, $one:expr, $largest:expr, $smallest:expr) => {
            match op {
                ReduceOp::Sum | ReduceOp::Average | ReduceOp::Adasum => $zero.to_ne_bytes().to_vec(),
                ReduceOp::Product => $one.to_ne_bytes().to_vec(),
                ReduceOp::Min => $largest.to_ne_bytes().to_vec(),
                ReduceOp::Max => $smallest.to_ne_bytes().to_vec(),
                _ => unreachable!("invariant: every operation has an arm"),
            }
        };
    }
    macro_rules! integer {
        ($type:ident) => {
            bytes!(0 as $type, 1 as $type, $type::MAX, $type::MIN)
        };
    }
    macro_rules! float {
        ($type:ty) => {
            bytes!(<$type>::from(0i8), <$type>::from(1i8), <$type>::INFINITY, <$type>::NEG_INFINITY)
        };
    }
    let bytes = match dtype {
        Dtype::Bool => vec![u8::from(!matches!(op, ReduceOp::Sum | ReduceOp::Max))],
        Dtype::U8 => integer!(u8),
        Dtype::I8 => integer!(i8),
        Dtype::U16 => integer!(u16),
        Dtype::I16 => integer!(i16),
        Dtype::U32 => integer!(u32),
        Dtype::I32 => integer!(i32),
        Dtype::U64 => integer!(u64),
        Dtype::I64 => integer!(i64),
        Dtype::F16 => float!(half::f16),
        Dtype::BF16 => float!(half::bf16),
        Dtype::F32 => float!(f32),
        Dtype::F64 => float!(f64),
        _ => unreachable!("invariant: every element type has an arm"),
    };
    let mut element = [0; 8];
    element[..bytes.len()].copy_from_slice(&bytes);
    (element, bytes.len())
}
