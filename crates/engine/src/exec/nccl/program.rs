//! What one rank does for a bucket on NCCL: [`Program`].
//!
//! In this order: *neutral* elements are written for a rank that has joined; contributions are packed; NCCL is called,
//! with the same calls on all ranks; what stays on this rank is copied; results are unpacked. Packing multiplies by the
//! prescale, unpacking averages and multiplies by the postscale.
//!
//! - An *allreduce* of one tensor without a prescale works where it lies; others are packed and reduced as one.
//! - *Broadcast* and *reduce* work where the tensor lies. A prescale is applied in packed memory, because inputs stay.
//! - *Allgather* is NCCL's where all ranks have as much, otherwise one broadcast for each rank; *reducescatter*
//!   likewise, with a reduce for each rank. Each tensor of the bucket has its own calls.
//! - *Alltoall*, *gather* and *scatter* are sends and receives.
//!
//! Bool is a byte for NCCL, so it is always packed: that makes it zero or one. A rank that has joined has its
//! contribution, and what it would get, in packed memory.

use farandole_device::DeviceCopy;
use farandole_device::nccl::{Call, Reduction};
use farandole_plan::device::{Move, Movement};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Dtype, Rank, ReduceOp};

use super::super::device::tensors::Tensor;
use crate::bucket::GroupRank;

/// Pieces of packed memory begin at multiples of this, as drivers align what they allocate.
const ALIGN_BYTES: u64 = 256;

/// Elements that are copied, and scaled on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaled {
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) elems: u64,
    /// The element type of the tensor at one end; the other end has the one that travels.
    pub(super) dtype: Dtype,
}

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    /// Where neutral elements go, and how many.
    pub(super) neutral: Vec<(u64, u64)>,
    pub(super) packing: Vec<Scaled>,
    pub(super) calls: Vec<Call>,
    pub(super) copies: Vec<DeviceCopy>,
    pub(super) unpacking: Vec<Scaled>,
    /// Bytes of packed memory.
    pub(super) packed_bytes: u64,
}

impl Program {
    /// That of this rank, with packed memory at this address. `tensors` are in the order of the bucket's parts; a rank
    /// that has joined has none.
    pub(super) fn new(
        plan: &BucketPlan,
        movement: &Movement,
        here: GroupRank,
        tensors: &[Tensor],
        packed: u64,
    ) -> Program {
        let mut building = Building { plan, movement, here, tensors, packed, program: Program::default() };
        match plan.collective {
            Collective::Allreduce { op, prescale, .. } => building.allreduce(reduction(plan.dtype, op), prescale),
            Collective::Reduce { op, prescale, root, .. } => {
                building.reduce(reduction(plan.dtype, op), prescale, root.index());
            }
            Collective::Broadcast { root } => building.broadcast(root.index()),
            Collective::Allgather => (0..plan.parts.len()).for_each(|part| building.allgather(part)),
            Collective::ReduceScatter { op, prescale, .. } => {
                let reduction = reduction(plan.dtype, op);
                (0..plan.parts.len()).for_each(|part| building.reduce_scatter(part, reduction, prescale));
            }
            Collective::Alltoall { .. } | Collective::Gather { .. } | Collective::Scatter { .. } => building.exchange(),
            Collective::Barrier | Collective::Join => {}
        }
        building.program
    }
}

fn reduction(dtype: Dtype, op: ReduceOp) -> Reduction {
    Reduction::of(dtype, op).expect("invariant: what NCCL cannot reduce does not come to it")
}

struct Building<'a> {
    plan: &'a BucketPlan,
    movement: &'a Movement,
    here: GroupRank,
    tensors: &'a [Tensor],
    packed: u64,
    program: Program,
}

impl Building<'_> {
    fn allreduce(&mut self, reduction: Reduction, prescale: f64) {
        let (elems, parts) = (self.plan.elems, &self.plan.parts);
        if let [tensor] = self.tensors
            && parts.len() == 1
            && !self.must_pack(prescale)
            && tensor.dtype == self.plan.dtype
        {
            let (source, target) = (tensor.input.address, tensor.output.address);
            self.program.calls.push(Call::AllReduce { source, target, elems, reduction });
            self.program.unpacking.push(self.scaled(target, target, elems));
            return;
        }
        let all = self.take(self.bytes(elems));
        if self.tensors.is_empty() {
            self.program.neutral.push((all, elems));
        }
        for (part, tensor) in parts.iter().zip(self.tensors) {
            let (place, elems) = (all + self.bytes(part.span.start), part.span.len);
            let dtype = tensor.dtype;
            self.program.packing.push(Scaled { source: tensor.input.address, target: place, elems, dtype });
            self.program.unpacking.push(Scaled { source: place, target: tensor.output.address, elems, dtype });
        }
        self.program.calls.push(Call::AllReduce { source: all, target: all, elems, reduction });
    }

    fn reduce(&mut self, reduction: Reduction, prescale: f64, root: usize) {
        let elems = self.plan.elems;
        let source = self.contribution(0, elems, prescale);
        let target = match self.tensors.first() {
            Some(tensor) if root == self.me() => tensor.output.address,
            // Not written.
            _ => source,
        };
        self.program.calls.push(Call::Reduce { source, target, elems, reduction, root });
        if root == self.me() {
            self.program.unpacking.push(self.scaled(target, target, elems));
        }
    }

    fn broadcast(&mut self, root: usize) {
        let bytes = self.bytes(self.plan.elems);
        let (source, target) = match self.tensors.first() {
            Some(tensor) if root == self.me() => (tensor.input.address, tensor.output.address),
            Some(tensor) => (tensor.output.address, tensor.output.address),
            None => {
                let unused = self.take(bytes);
                (unused, unused)
            }
        };
        self.program.calls.push(Call::Broadcast { source, target, bytes, root });
    }

    fn allgather(&mut self, part: usize) {
        let of_rank = |rank: usize| self.bytes(self.movement.ends[rank][part].input);
        let lengths: Vec<u64> = (0..self.here.size).map(of_rank).collect();
        let total = lengths.iter().sum();
        if total == 0 {
            return;
        }
        let (source, target) = match self.tensors.get(part) {
            Some(tensor) => (tensor.input.address, tensor.output.address),
            None => {
                let unused = self.take(total);
                (unused, unused)
            }
        };
        if lengths.iter().all(|bytes| *bytes == lengths[0]) {
            self.program.calls.push(Call::AllGather { source, target, bytes: lengths[0] });
            return;
        }
        let mut place = target;
        for (root, &bytes) in lengths.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            let source = if root == self.me() { source } else { place };
            self.program.calls.push(Call::Broadcast { source, target: place, bytes, root });
            place += bytes;
        }
    }

    fn reduce_scatter(&mut self, part: usize, reduction: Reduction, prescale: f64) {
        let lengths: Vec<u64> = (0..self.here.size).map(|rank| self.plan.piece(part, Rank::from(rank)).len).collect();
        let (total, mine) = (lengths.iter().sum(), lengths[self.me()]);
        if total == 0 {
            return;
        }
        let source = self.contribution(part, total, prescale);
        let target = match self.tensors.get(part) {
            Some(tensor) => tensor.output.address,
            None => self.take(self.bytes(mine)),
        };
        if lengths.iter().all(|elems| *elems == mine) {
            self.program.calls.push(Call::ReduceScatter { source, target, elems: mine, reduction });
        } else {
            let mut place = source;
            for (root, &elems) in lengths.iter().enumerate().filter(|(_, elems)| **elems > 0) {
                // Only the root's is written.
                let target = if root == self.me() { target } else { place };
                self.program.calls.push(Call::Reduce { source: place, target, elems, reduction, root });
                place += self.bytes(elems);
            }
        }
        if !self.tensors.is_empty() {
            self.program.unpacking.push(self.scaled(target, target, mine));
        }
    }

    fn exchange(&mut self) {
        let me = self.me();
        for one in &self.movement.moves {
            let Move::Copy { part, from, source, to, target_start } = *one else { continue };
            let Some(tensor) = self.tensors.get(part) else { continue };
            let bytes = self.bytes(source.len);
            let source = tensor.input.address + self.bytes(source.start);
            let target = tensor.output.address + self.bytes(target_start);
            match (from == me, to == me) {
                (true, true) => self.program.copies.push(DeviceCopy { source, target, bytes }),
                (true, false) => self.program.calls.push(Call::Send { source, bytes, peer: to }),
                (false, true) => self.program.calls.push(Call::Recv { target, bytes, peer: from }),
                (false, false) => {}
            }
        }
    }

    /// Where this rank's contribution to a reduction lies: where it is, or packed.
    fn contribution(&mut self, part: usize, elems: u64, prescale: f64) -> u64 {
        let input = self.tensors.get(part).map(|tensor| tensor.input.address);
        if let Some(input) = input.filter(|_| !self.must_pack(prescale)) {
            return input;
        }
        let place = self.take(self.bytes(elems));
        match input {
            Some(source) => self.program.packing.push(self.scaled(source, place, elems)),
            None => self.program.neutral.push((place, elems)),
        }
        place
    }

    /// Elements of the type that travels at both ends.
    fn scaled(&self, source: u64, target: u64, elems: u64) -> Scaled {
        Scaled { source, target, elems, dtype: self.plan.dtype }
    }

    fn must_pack(&self, prescale: f64) -> bool {
        prescale != 1.0 || self.plan.dtype == Dtype::Bool
    }

    /// The next bytes of packed memory.
    fn take(&mut self, bytes: u64) -> u64 {
        let place = self.packed + self.program.packed_bytes;
        self.program.packed_bytes += bytes.next_multiple_of(ALIGN_BYTES);
        place
    }

    fn bytes(&self, elems: u64) -> u64 {
        elems * self.plan.dtype.size_bytes() as u64
    }

    fn me(&self) -> usize {
        self.here.me.index()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farandole_plan::fuse::{BatchFusion, FusionLimits, fuse};
    use farandole_plan::item::{Item, Placement};

    use super::super::super::device::tensors::Stretch;
    use super::*;

    /// A bucket of tensors of seven rows of so many elements, on three ranks.
    fn plan(collective: Collective, dtype: Dtype, row_elems: &[u64], joined: &[Rank]) -> Arc<BucketPlan> {
        let item = |(number, &row_elems): (usize, &u64)| {
            Arc::new(Item {
                name: format!("{number}").into(),
                collective: collective.clone(),
                dtype,
                shape: vec![7, row_elems],
                device: Placement::Gpu,
                rows: if collective == Collective::Allgather { vec![2, 0, 5] } else { vec![] },
                joined: joined.to_vec(),
                batch: None,
                priority: 0,
            })
        };
        let items: Vec<Arc<Item>> = row_elems.iter().enumerate().map(item).collect();
        let limits = FusionLimits {
            size: 3,
            threshold_bytes: 1 << 20,
            stage_below_bytes: 0,
            alone_from_bytes: u64::MAX,
            batches: BatchFusion::WithOthers,
        };
        Arc::clone(&fuse(&items, |_| 0, &limits)[0].plan)
    }

    fn program(plan: &BucketPlan, me: u32) -> Program {
        let movement = Movement::new(plan, 3);
        let here = GroupRank { me: Rank(me), size: 3 };
        let tensor = |part: usize| Tensor {
            input: Stretch { address: 1000 * (part as u64 + 1), bytes: 4 },
            output: Stretch { address: 1000 * (part as u64 + 1), bytes: 4 },
            dtype: plan.dtype,
        };
        let has_joined = plan.parts[0].item.joined.contains(&here.me);
        let tensors: Vec<Tensor> = (0..plan.parts.len()).filter(|_| !has_joined).map(tensor).collect();
        Program::new(plan, &movement, here, &tensors, 1 << 20)
    }

    fn allreduce(prescale: f64) -> Collective {
        Collective::Allreduce { op: ReduceOp::Average, prescale, postscale: 1.0 }
    }

    #[test]
    fn one_tensor_is_reduced_where_it_lies() {
        let alone = program(&plan(allreduce(1.0), Dtype::F32, &[5], &[]), 0);
        let reduction = reduction(Dtype::F32, ReduceOp::Sum);
        assert_eq!(alone.calls, [Call::AllReduce { source: 1000, target: 1000, elems: 35, reduction }]);
        assert_eq!((alone.packed_bytes, alone.packing.len()), (0, 0));
        for (packed, tensors) in [
            (plan(allreduce(0.5), Dtype::F32, &[5], &[]), 1),
            (plan(allreduce(1.0), Dtype::Bool, &[5], &[]), 1),
            (plan(allreduce(1.0), Dtype::F32, &[5, 2], &[]), 2),
        ] {
            let packed = program(&packed, 0);
            assert_eq!((packed.calls.len(), packed.packing.len(), packed.unpacking.len()), (1, tensors, tensors));
            assert!(packed.packed_bytes > 0);
        }
    }

    #[test]
    fn a_rank_that_has_joined_makes_the_same_calls_in_packed_memory() {
        let joined = plan(allreduce(1.0), Dtype::F32, &[5], &[Rank(2)]);
        let (here, there) = (program(&joined, 0), program(&joined, 2));
        assert_eq!((here.calls.len(), there.calls.len()), (1, 1));
        assert_eq!(there.neutral, [(1 << 20, 35)]);
        assert!(there.packing.is_empty() && there.unpacking.is_empty());
    }

    #[test]
    fn uneven_rows_are_one_broadcast_for_each_rank_that_has_any() {
        let gathered = program(&plan(Collective::Allgather, Dtype::F32, &[3], &[]), 2);
        let call = |source, target, bytes, root| Call::Broadcast { source, target, bytes, root };
        assert_eq!(gathered.calls, [call(1000, 1000, 24, 0), call(1000, 1024, 60, 2)]);
        let scatter = Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        let scattered = program(&plan(scatter, Dtype::F32, &[1], &[]), 0);
        let roots: Vec<_> = scattered.calls.iter().map(|call| matches!(call, Call::Reduce { .. })).collect();
        assert_eq!(roots, [true; 3], "seven rows on three ranks");
    }
}
