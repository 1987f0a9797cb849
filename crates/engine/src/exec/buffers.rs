//! The memory that one collective works on, lent to every call of its execution.
//!
//! An execution holds no memory of its own, which is why nothing in this module is unsafe and why an execution can be
//! dropped at any step.

use std::ops::Range;

use farandole_plan::{Dtype, Span};
use farandole_tensor::cast::cast;
use farandole_tensor::{Finish, Fold, OwnedBytes};
use farandole_transport::shm::Mapped;

use super::device::DevicePlane;
use super::nccl::NcclPlane;
use super::store_policy::Stores;

/// Why a schedule with folds may expect an operation.
pub(super) const FOLDS: &str = "invariant: a schedule that folds comes with an operation";

/// See the module's text. Fields that a path does not use are empty.
pub(crate) struct Buffers<'a> {
    /// What the ranks work on; empty where they work in a mapped buffer.
    pub(crate) work: &'a mut [u8],
    /// This rank's contribution to an allreduce through windows that does not work in place: as long as `work`, which
    /// holds nothing yet. Without it the contribution lies in `work`.
    pub(crate) contribution: Option<&'a [u8]>,
    /// What an alltoall sends, and what `Buffer::Source` stands for.
    pub(crate) source: &'a [u8],
    /// The group's devices, for a bucket whose memory lies there.
    pub(crate) device: Option<&'a mut DevicePlane>,
    /// The group's NCCL, for a bucket that goes through it.
    pub(crate) nccl: Option<&'a mut NcclPlane>,
    /// The buffer that all ranks map, for mapped steps.
    pub(crate) mapped: Option<&'a mut Mapped>,
    /// The element type of all of them.
    pub(crate) dtype: Dtype,
    /// Combines contributions. Only collectives that copy do without.
    pub(crate) fold: Option<Fold>,
    /// Applied to results where windows store them.
    pub(crate) finish: Finish,
    /// Where results of half precision go, if `work` holds singles and messages carry the two apart.
    pub(crate) halves: Option<Halves<'a>>,
    /// How contributions and results leave for other cores to read. Set by the execution.
    pub(crate) stores: Stores,
}

/// Results of half precision.
pub(crate) struct Halves<'a> {
    /// As many elements as are worked on.
    pub(crate) results: &'a mut [u8],
    pub(crate) dtype: Dtype,
    /// Applied to a result before it is rounded.
    pub(crate) finish: Finish,
}

impl<'a> Buffers<'a> {
    /// Elements of this type in `work`, and nothing else.
    pub(crate) fn new(work: &'a mut [u8], dtype: Dtype) -> Buffers<'a> {
        Buffers {
            work,
            contribution: None,
            source: &[],
            device: None,
            nccl: None,
            mapped: None,
            dtype,
            fold: None,
            finish: Finish::Nothing,
            halves: None,
            stores: Stores::Cached,
        }
    }

    /// No memory, for collectives in which ranks only meet.
    pub(crate) fn none() -> Buffers<'static> {
        Buffers::new(&mut [], Dtype::U8)
    }

    /// Bytes that the collective works on.
    pub(crate) fn len_bytes(&self) -> usize {
        self.mapped.as_ref().map_or(self.work.len().max(self.source.len()), |mapped| mapped.own().len())
    }

    pub(crate) fn elem_bytes(&self) -> usize {
        self.dtype.size_bytes()
    }

    pub(crate) fn range(&self, span: Span) -> Range<usize> {
        scaled(span, self.elem_bytes())
    }

    /// This rank's contribution, where nothing has been folded yet.
    pub(crate) fn own(&self) -> &[u8] {
        self.contribution.unwrap_or(&*self.work)
    }

    pub(crate) fn fold(&self) -> Fold {
        self.fold.expect(FOLDS)
    }
}

/// The bytes of a span of elements.
pub(crate) fn scaled(span: Span, elem_bytes: usize) -> Range<usize> {
    span.start as usize * elem_bytes..span.end() as usize * elem_bytes
}

/// The same elements as singles, each multiplied by the factor.
pub(crate) fn widened(data: &[u8], dtype: Dtype, factor: f64) -> OwnedBytes {
    let mut wide = OwnedBytes::zeroed(data.len() / dtype.size_bytes() * Dtype::F32.size_bytes());
    cast(&mut wide, Dtype::F32, data, dtype, factor);
    wide
}
