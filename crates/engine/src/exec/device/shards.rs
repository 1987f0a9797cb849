//! The shards of an allreduce between hosts: which elements belong to whose, and what is folded into them and out of
//! them.
//!
//! The elements of a bucket, tensor after tensor, are cut into one shard for each rank of a host. Elements of a shard
//! lie one behind another, in the type of partial results.

use farandole_device::DeviceFold;
use farandole_plan::algorithm::{Tuning, allreduce_across};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::plane::{self, Folding};
use farandole_plan::slices::Sliced;
use farandole_plan::{Dtype, Rank, ReduceOp, Span, Topology, device};
use farandole_tensor::Finish;

use super::work::{Places, Share};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Shards {
    /// For each rank of a host, the pieces of tensors in its shard.
    pieces: Vec<Vec<(usize, Span)>>,
    /// The element type of the tensors.
    dtype: Dtype,
    /// That of the shards.
    pub(super) carrier: Dtype,
}

impl Shards {
    /// Those of an allreduce between hosts of so many ranks each.
    pub(super) fn new(plan: &BucketPlan, holders: usize) -> Shards {
        let lengths: Vec<u64> = plan.parts.iter().map(|part| part.span.len).collect();
        let pieces = (0..holders).map(|holder| device::share(&lengths, holders, holder)).collect();
        let (op, prescale, _) = plan.collective.reduction().expect("invariant: only allreduces cross hosts in shards");
        let carrier = plane::carrier(plan.dtype, op, prescale, Folding::OneByOne);
        Shards { pieces, dtype: plan.dtype, carrier }
    }

    /// Bytes of the shard of a local rank.
    pub(super) fn bytes(&self, local_rank: usize) -> u64 {
        self.elems(local_rank) * self.carrier.size_bytes() as u64
    }

    /// Folds the contributions of a host into the shards whose holders this rank works for.
    pub(super) fn fold(&self, places: &[Places], shards: &[u64], share: &Share) -> Segments {
        let sources: Vec<&Vec<(u64, u64)>> = places.iter().flatten().collect();
        let mut segments = Segments::new(sources.len(), 1);
        for holder in (0..self.pieces.len()).filter(|&holder| share.serves(holder) && !sources.is_empty()) {
            for (part, span, at) in self.pieces(holder) {
                let start = span.start * self.dtype.size_bytes() as u64;
                let contributions = sources.iter().map(|tensors| tensors[part].0 + start);
                segments.add(span.len, contributions, std::iter::once(shards[holder] + at));
            }
        }
        segments
    }

    /// Stores all shards with the ranks that this one works for.
    pub(super) fn spread(&self, places: &[Places], shards: &[u64], share: &Share) -> Segments {
        let served = places.iter().enumerate().filter(|(local_rank, _)| share.serves(*local_rank));
        let receivers: Vec<&Vec<(u64, u64)>> = served.filter_map(|(_, places)| places.as_ref()).collect();
        let mut segments = Segments::new(1, receivers.len());
        for holder in (0..self.pieces.len()).filter(|_| !receivers.is_empty()) {
            for (part, span, at) in self.pieces(holder) {
                let start = span.start * self.dtype.size_bytes() as u64;
                let targets = receivers.iter().map(|tensors| tensors[part].1 + start);
                segments.add(span.len, std::iter::once(shards[holder] + at), targets);
            }
        }
        segments
    }

    fn elems(&self, local_rank: usize) -> u64 {
        self.pieces[local_rank].iter().map(|(_, span)| span.len).sum()
    }

    /// The pieces of a shard, each with where it lies in it in bytes.
    fn pieces(&self, holder: usize) -> impl Iterator<Item = (usize, Span, u64)> + '_ {
        let (mut at, elem_bytes) = (0, self.carrier.size_bytes() as u64);
        self.pieces[holder].iter().map(move |&(part, span)| {
            let start = at;
            at += span.len * elem_bytes;
            (part, span, start)
        })
    }
}

/// The steps of a rank's shard across the hosts, in slices of so many bytes; zero: in one.
pub(crate) fn sliced(plan: &BucketPlan, topology: &Topology, me: Rank, slice_bytes: u64) -> Sliced {
    let shards = Shards::new(plan, topology.local_size(me));
    let (elems, elem_bytes) = (shards.elems(topology.local_rank(me)), shards.carrier.size_bytes() as u64);
    let slice_elems = if slice_bytes == 0 { 0 } else { (slice_bytes / elem_bytes).max(1) };
    allreduce_across(elems, slice_elems, topology, me, &Tuning::for_dtype(shards.carrier))
}

/// Segments of a fold.
#[derive(Debug)]
pub(super) struct Segments {
    sources: usize,
    targets: usize,
    elems: Vec<u64>,
    addresses: Vec<u64>,
}

impl Segments {
    fn new(sources: usize, targets: usize) -> Segments {
        Segments { sources, targets, elems: Vec::new(), addresses: Vec::new() }
    }

    fn add(&mut self, elems: u64, sources: impl Iterator<Item = u64>, targets: impl Iterator<Item = u64>) {
        self.elems.push(elems);
        self.addresses.extend(sources.chain(targets));
    }

    /// The fold of all of them.
    pub(super) fn as_fold(
        &self,
        dtype: Dtype,
        stored: Dtype,
        op: ReduceOp,
        prescale: f64,
        finish: Finish,
    ) -> DeviceFold<'_> {
        let Segments { sources: ranks, targets, ref elems, ref addresses } = *self;
        DeviceFold { dtype, stored, op, prescale, finish, ranks, targets, elems, addresses }
    }
}
