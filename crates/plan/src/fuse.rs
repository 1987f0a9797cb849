//! Which agreed items travel together, and where each lies in the common buffer.

use std::sync::Arc;

use crate::request::{Collective, Dtype, Rank};
use crate::schedule::Span;
use crate::validate::{Item, Placement};

/// One tensor of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What was agreed about it.
    pub item: Arc<Item>,
    /// Allreduce and broadcast: where its elements lie in the bucket's buffer. Otherwise empty; see
    /// [`BucketPlan::piece`].
    pub span: Span,
}

/// What a bucket consists of; equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketPlan {
    /// Which collective, with operation, factors or root. Alltoall has its splits in the item.
    pub collective: Collective,
    /// Element type of all parts.
    pub dtype: Dtype,
    /// Kind of memory of all parts.
    pub device: Placement,
    /// The tensors, in order.
    pub parts: Vec<Part>,
    /// Elements of the whole buffer, with the padding between tensors. Alltoall: zero.
    pub elems: u64,
    /// Allgather and reducescatter: the block of each rank in the buffer, one after the other. Otherwise empty.
    pub blocks: Vec<Span>,
    /// Whether the bucket must be packed into a buffer of the engine rather than run in the caller's memory.
    pub staged: bool,
    /// A hash of all of the above that does not depend on machine or run, to be carried in frames.
    pub hash: u64,
    pieces: Vec<Span>,
}

impl BucketPlan {
    /// Allgather and reducescatter: where the part of tensor `part` that belongs to `rank` lies in the buffer.
    pub fn piece(&self, part: usize, rank: Rank) -> Span {
        self.pieces[rank.index() * self.parts.len() + part]
    }
}
