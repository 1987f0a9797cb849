//! The memory of a bucket: from the callers' regions into the buffer that the ranks work on, and back.
//!
//! Where the ranks work, and in which element type, is the bucket's [`Layout`]. It follows from the bucket's plan and
//! plane. The [`Memory`] of one run is one of these:
//! - the *fusion buffer* of the group, for requests that travel together and for small ones. Packing copies the tensors
//!   in with the prescale applied, unpacking copies them out with average and postscale applied; both copies were
//!   needed anyway.
//! - the *mapped* fusion buffer, the same in memory that all ranks of the host see.
//! - the *caller's* memory, for a large tensor that travels alone: no copy at all. If the result is to lie elsewhere
//!   than the input, windows read the one and write the other; other planes, and a prescale, need a copy of the input.
//! - *fresh* memory, for results whose size only the agreement tells. It becomes the caller's result as it is. A caller
//!   that knows the size, and has brought an output of it, has its result there.
//!
//! Tensors in device memory have none of these: ranks work there (`exec::device`), and the host touches nothing.
//!
//! The elements in it have the type of the reduction's *carrier* (`plan::plane`), which is wider than the callers'
//! where half precision is added over links or has a prescale; then the callers' memory is not worked in. Over links
//! results are finished (average, postscale) as they are unloaded; in shared memory whoever folds has finished them.
//!
//! A rank that has joined has no regions. It contributes what changes nothing, and drops what it gets.
//!
//! [`Layout::load`] reads the callers' memory, and writes it too if the ranks work there, so the driver runs the entry
//! barrier of a bucket that has one before it loads. Until then a bucket can be abandoned without a trace.

use std::ops::Range;

use farandole_plan::agree::{Bucket, RequestId};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::plane::Plane;
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Span};
use farandole_tensor::{Finish, Fold, OwnedBytes, Region, copy_finished, copy_scaled, scale};

use crate::exec::fusion_buffer::FusionBuffer;
use crate::exec::{Buffers, Halves};
use crate::pending::{Pending, PendingTable};
use crate::submission::Outcome;

/// This rank's place in the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRank {
    pub(crate) me: Rank,
    pub(crate) size: usize,
}

/// Where the ranks work on a bucket, and in which element type.
#[derive(Debug)]
pub(crate) struct Layout {
    here: GroupRank,
    place: Place,
    /// Bytes of the work buffer.
    bytes: usize,
    /// Whether the fusion buffer may grow to as many.
    fits_fusion: bool,
    /// The element type of what lies in the work buffer.
    carrier: Dtype,
    /// How contributions are folded, if they are.
    fold: Option<Fold>,
    /// What is done to results as they are folded: by windows, where one fold takes all contributions.
    finish_in_fold: Finish,
    /// What is done to results as they are unloaded.
    finish_in_unload: Finish,
    /// Whether the input of a request that has an output is read where it lies, and not copied to the output first.
    reads_input: bool,
    /// Whether the tensors lie on devices, where the ranks work.
    on_device: bool,
    /// If results are halves and partial results are not, what lies behind them in the work buffer: the halves.
    halves: Option<Behind>,
}

/// Where the ranks work, whatever requests are in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: there are no elements.
    Nowhere,
    /// In a fusion buffer, or in memory made for the bucket if that is too small.
    Staging,
    /// In the mapped fusion buffer.
    Mapped,
    /// In the memory of the only request; a rank that has joined has none and works as in [`Place::Staging`].
    Caller,
    /// In memory made for the bucket, or in the output of the only request if that is as large.
    Fresh,
}

/// Results of half precision behind partial results in single precision.
#[derive(Clone, Copy, Debug)]
struct Behind {
    /// Where they begin in this memory.
    offset: usize,
    dtype: Dtype,
    /// Applied before they are rounded.
    finish: Finish,
}

/// Where one run of a bucket works.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Nowhere: there are no elements.
    Nothing,
    /// In the group's own fusion buffer.
    Fusion,
    /// In the mapped one.
    Mapped,
    /// In the memory of this request.
    Caller(RequestId),
    /// In the output of this request, which is as large as its result.
    Output(RequestId),
    /// In memory made for this run.
    Fresh(OwnedBytes),
}

impl Layout {
    /// Decides where to work on buckets of this plan.
    pub(crate) fn new(plan: &BucketPlan, plane: Plane, here: GroupRank, fusion_limit_bytes: usize) -> Layout {
        let carrier = plane.carrier(plan);
        let offset = bytes_of(carrier, plan.elems);
        let apart = plane.rounds_results(plan);
        let bytes = offset + if apart { bytes_of(plan.dtype, plan.elems) } else { 0 };
        let (place, bytes) = match &plan.collective {
            _ if plane == Plane::Mapped => (Place::Mapped, bytes),
            _ if plane.is_on_devices() => (Place::Nowhere, 0),
            Collective::Barrier | Collective::Join => (Place::Nowhere, 0),
            // One half is combined with the other.
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => (Place::Staging, 2 * bytes),
            Collective::Allreduce { .. } | Collective::Broadcast { .. } => {
                let in_place = plan.parts.len() == 1 && !plan.staged && carrier == plan.dtype;
                (if in_place { Place::Caller } else { Place::Staging }, bytes)
            }
            Collective::Allgather if plan.parts.len() == 1 => (Place::Fresh, bytes),
            Collective::Allgather | Collective::ReduceScatter { .. } => (Place::Staging, bytes),
            // Others than the root keep their tensors. Windows only read them; over links they take partial results.
            Collective::Reduce { root, prescale, .. } => {
                let only_reads = plane == Plane::Windows && *prescale == 1.0;
                let in_place = carrier == plan.dtype && (*root == here.me || only_reads);
                (if in_place { Place::Caller } else { Place::Staging }, bytes)
            }
            Collective::Alltoall { .. } | Collective::Gather { .. } | Collective::Scatter { .. } => {
                let received = plan.parts[0].item.exchange(here.me, here.size).received_elems();
                (Place::Fresh, bytes_of(carrier, received))
            }
        };
        // A bucket that is wider than the callers' memory may be kept like any other of as many elements.
        let kept_bytes = if carrier == plan.dtype { fusion_limit_bytes } else { 3 * fusion_limit_bytes };
        let finish = match plan.collective.reduction() {
            Some((op, _, postscale)) if gets_reduction(plan, here) => {
                Finish::new(plan.dtype, op, here.size as u64, postscale)
            }
            _ => Finish::Nothing,
        };
        let (finish_in_fold, finish_in_unload) = match plane {
            _ if apart => (Finish::Nothing, Finish::Nothing),
            Plane::Links | Plane::Added(_) => (Finish::Nothing, finish),
            Plane::Windows | Plane::Mapped => (finish, Finish::Nothing),
            Plane::Device | Plane::Nccl => (Finish::Nothing, Finish::Nothing),
        };
        let halves = apart.then_some(Behind { offset, dtype: plan.dtype, finish });
        let reads_input = plane == Plane::Windows
            && prescale_of(plan) == 1.0
            && matches!(plan.collective, Collective::Allreduce { .. } | Collective::Reduce { .. });
        let (fold, fits_fusion) = (fold_of(plan, carrier), bytes <= kept_bytes);
        Layout {
            here,
            place,
            bytes,
            fits_fusion,
            carrier,
            fold,
            finish_in_fold,
            finish_in_unload,
            reads_input,
            on_device: plane.is_on_devices(),
            halves,
        }
    }

    /// The element type in which the bucket is reduced.
    pub(crate) fn carrier(&self) -> Dtype {
        self.carrier
    }

    /// Whether partial results are singles and results halves.
    pub(crate) fn rounds_results(&self) -> bool {
        self.halves.is_some()
    }

    /// The memory of one run. Nothing is read or written.
    pub(crate) fn memory(&self, bucket: &Bucket, table: &PendingTable) -> Memory {
        let has_output = |id: RequestId| {
            let output = table.get(id).output.as_ref();
            output.is_some_and(|output| output.len_bytes() == self.bytes)
        };
        match (self.place, &bucket.requests[..]) {
            (Place::Nowhere, _) => Memory::Nothing,
            (Place::Mapped, _) => Memory::Mapped,
            (Place::Caller, [Some(id)]) => Memory::Caller(*id),
            (Place::Caller | Place::Staging, _) if self.fits_fusion => Memory::Fusion,
            (Place::Fresh, [Some(id)]) if has_output(*id) => Memory::Output(*id),
            _ => Memory::Fresh(OwnedBytes::zeroed(self.bytes)),
        }
    }

    /// Lends everything that the bucket's execution works on.
    pub(crate) fn buffers<'a>(
        &self,
        memory: &'a mut Memory,
        bucket: &Bucket,
        table: &'a mut PendingTable,
        fusion: &'a mut FusionBuffer,
    ) -> Buffers<'a> {
        let mut buffers = Buffers::new(&mut [], self.carrier);
        (buffers.fold, buffers.finish) = (self.fold, self.finish_in_fold);
        match memory {
            Memory::Nothing => {}
            Memory::Fusion => buffers.work = fusion.own(self.bytes),
            Memory::Mapped => buffers.mapped = Some(fusion.mapped()),
            Memory::Caller(id) => {
                let (input, target) = table.get_mut(*id).apart();
                (buffers.contribution, buffers.work) = (input.filter(|_| self.reads_input), target);
            }
            Memory::Output(id) => {
                let (input, output) = table.get_mut(*id).apart();
                (buffers.source, buffers.work) = (input.unwrap_or_default(), output);
            }
            Memory::Fresh(bytes) => {
                buffers.work = bytes;
                // What a rank sends in an alltoall, gather or scatter lies in its input, which stays as it is.
                if let [Some(id)] = bucket.requests[..] {
                    buffers.source = table.input(id);
                }
            }
        }
        if let Some(Behind { offset, dtype, finish }) = self.halves {
            let (work, results) = std::mem::take(&mut buffers.work).split_at_mut(offset);
            buffers.work = work;
            buffers.halves = Some(Halves { results, dtype, finish });
        }
        buffers
    }

    /// Brings this rank's contribution in.
    pub(crate) fn load(
        &self,
        memory: &mut Memory,
        bucket: &Bucket,
        table: &mut PendingTable,
        fusion: &mut FusionBuffer,
    ) {
        let (plan, carrier) = (&*bucket.plan, self.carrier);
        let work = match memory {
            Memory::Nothing => return,
            Memory::Caller(_) if self.reads_input => return,
            Memory::Caller(id) => return load_in_place(plan, self.here, table.get_mut(*id)),
            Memory::Output(id) => {
                let (input, output) = table.get_mut(*id).apart();
                return load_part(plan, 0, self.here, carrier, output, input.unwrap_or_default());
            }
            Memory::Fusion => fusion.own(self.bytes),
            Memory::Mapped => &mut fusion.mapped().own_mut()[..self.bytes],
            Memory::Fresh(bytes) => &mut bytes[..],
        };
        for (part, id) in bucket.requests.iter().enumerate() {
            match id {
                Some(id) => load_part(plan, part, self.here, carrier, work, table.input(*id)),
                None => load_neutral(plan, part, carrier, work),
            }
        }
    }

    /// Takes the results out and makes the outcome of every request, for its promise.
    pub(crate) fn unload(
        &self,
        memory: Memory,
        bucket: &Bucket,
        table: &mut PendingTable,
        fusion: &mut FusionBuffer,
        done: &mut Vec<(Pending, Outcome)>,
    ) {
        let (plan, here, finish) = (&*bucket.plan, self.here, self.finish_in_unload);
        if let Memory::Caller(id) = &memory {
            finish.apply(plan.dtype, table.get_mut(*id).target());
        }
        let work: &[u8] = match &memory {
            Memory::Fusion => fusion.own(self.bytes),
            Memory::Mapped => &fusion.mapped().own()[..self.bytes],
            Memory::Fresh(bytes) => bytes,
            Memory::Nothing | Memory::Caller(_) | Memory::Output(_) => &[],
        };
        let (work, carrier) = match self.halves {
            Some(behind) => (&work[behind.offset..], behind.dtype),
            None => (work, self.carrier),
        };
        let in_place = self.on_device || matches!(memory, Memory::Caller(_) | Memory::Output(_));
        for (part, id) in bucket.requests.iter().enumerate() {
            let Some(id) = *id else { continue };
            let item = &*plan.parts[part].item;
            let mut outcome = Outcome { shape: item.result_shape(here.me, here.size), ..Outcome::default() };
            // It stays in the table, where a failure finds it, until its result is there.
            let pending = table.get_mut(id);
            match plan.collective {
                Collective::Barrier | Collective::Join => {}
                _ if plan.collective.exchanges() => {
                    outcome.received_splits = item.exchange(here.me, here.size).received_rows;
                }
                // On a device the plane has made what memory results need.
                _ if in_place => {}
                _ => unload_part(plan, part, here, carrier, work, finish, pending),
            }
            let mut pending = table.take(id);
            outcome.input = pending.input.take();
            outcome.output = pending.output.take();
            done.push((pending, outcome));
        }
        memory.hand_over(plan, done.last_mut());
    }
}

impl Memory {
    /// Fresh memory becomes the result where nothing was copied out of it.
    fn hand_over(self, plan: &BucketPlan, last: Option<&mut (Pending, Outcome)>) {
        let is_result = match plan.collective {
            Collective::Allgather => plan.parts.len() == 1,
            _ => plan.collective.exchanges(),
        };
        if let (Memory::Fresh(bytes), Some((_, outcome)), true) = (self, last, is_result) {
            outcome.output = Some(Region::from_owned_bytes(bytes, plan.dtype));
        }
    }
}

/// How a bucket is folded, with elements of this type. Adasum is no fold.
fn fold_of(plan: &BucketPlan, dtype: Dtype) -> Option<Fold> {
    let (op, ..) = plan.collective.reduction()?;
    (op != ReduceOp::Adasum).then(|| Fold::new(dtype, op))
}

/// Whether this rank gets the result of a reduction.
fn gets_reduction(plan: &BucketPlan, here: GroupRank) -> bool {
    plan.collective.root().is_none_or(|root| root == here.me)
}

fn bytes_of(dtype: Dtype, elems: u64) -> usize {
    elems as usize * dtype.size_bytes()
}

fn range(dtype: Dtype, span: Span) -> Range<usize> {
    bytes_of(dtype, span.start)..bytes_of(dtype, span.end())
}

fn prescale_of(plan: &BucketPlan) -> f64 {
    plan.collective.reduction().map_or(1.0, |(_, prescale, _)| prescale)
}

fn load_in_place(plan: &BucketPlan, here: GroupRank, pending: &mut Pending) {
    let Pending { input, output, .. } = pending;
    let input = input.as_mut().expect("invariant: a collective on tensors has an input");
    match (&plan.collective, output) {
        (Collective::Broadcast { root }, Some(output)) if *root == here.me => {
            output.as_bytes_mut().copy_from_slice(input.as_bytes());
        }
        (Collective::Broadcast { .. }, _) => {}
        (_, Some(output)) => copy_scaled(output.as_bytes_mut(), input.as_bytes(), plan.dtype, prescale_of(plan)),
        (_, None) => scale(plan.dtype, input.as_bytes_mut(), prescale_of(plan)),
    }
}

fn load_part(plan: &BucketPlan, part: usize, here: GroupRank, carrier: Dtype, work: &mut [u8], input: &[u8]) {
    match plan.collective {
        Collective::Allreduce { prescale, .. } | Collective::Reduce { prescale, .. } => {
            let target = &mut work[range(carrier, plan.parts[part].span)];
            copy_finished(target, carrier, input, plan.dtype, Finish::factor(prescale));
        }
        Collective::Broadcast { root } if root == here.me => {
            work[range(carrier, plan.parts[part].span)].copy_from_slice(input);
        }
        Collective::Allgather => work[range(carrier, plan.piece(part, here.me))].copy_from_slice(input),
        Collective::ReduceScatter { prescale, .. } => {
            let mut rest = input;
            for rank in 0..here.size {
                let piece = plan.piece(part, Rank::from(rank));
                let (rows, after) = rest.split_at(bytes_of(plan.dtype, piece.len));
                let target = &mut work[range(carrier, piece)];
                copy_finished(target, carrier, rows, plan.dtype, Finish::factor(prescale));
                rest = after;
            }
        }
        _ => {}
    }
}

/// The contribution of a rank that has joined. It is not scaled: what changes nothing has no factor.
fn load_neutral(plan: &BucketPlan, part: usize, carrier: Dtype, work: &mut [u8]) {
    let (op, work) = match plan.collective {
        Collective::Allreduce { op, .. } | Collective::Reduce { op, .. } => {
            (op, &mut work[range(carrier, plan.parts[part].span)])
        }
        // All pieces of all parts are neutral, so the first part may fill everything.
        Collective::ReduceScatter { op, .. } if part == 0 => (op, work),
        _ => return,
    };
    match op {
        ReduceOp::Adasum => work.fill(0),
        _ => Fold::new(carrier, op).neutral(work),
    }
}

fn unload_part(
    plan: &BucketPlan,
    part: usize,
    here: GroupRank,
    carrier: Dtype,
    work: &[u8],
    finish: Finish,
    pending: &mut Pending,
) {
    match plan.collective {
        Collective::Reduce { .. } if !gets_reduction(plan, here) => {}
        Collective::Allreduce { .. } | Collective::Reduce { .. } => {
            let result = &work[range(carrier, plan.parts[part].span)];
            copy_finished(pending.target(), plan.dtype, result, carrier, finish);
        }
        Collective::Broadcast { .. } => {
            pending.target().copy_from_slice(&work[range(carrier, plan.parts[part].span)]);
        }
        Collective::Allgather if plan.parts.len() > 1 => {
            let pieces = || (0..here.size).map(|rank| &work[range(carrier, plan.piece(part, Rank::from(rank)))]);
            let mut rest = output_of(pending, plan.dtype, pieces().map(<[u8]>::len).sum()).as_bytes_mut();
            for piece in pieces() {
                let (target, after) = rest.split_at_mut(piece.len());
                target.copy_from_slice(piece);
                rest = after;
            }
        }
        Collective::ReduceScatter { .. } => {
            let piece = plan.piece(part, here.me);
            let output = output_of(pending, plan.dtype, bytes_of(plan.dtype, piece.len));
            copy_finished(output.as_bytes_mut(), plan.dtype, &work[range(carrier, piece)], carrier, finish);
        }
        _ => {}
    }
}

/// Where a result of this size goes: the caller's output if it has that size, or memory of its own.
fn output_of(pending: &mut Pending, dtype: Dtype, len_bytes: usize) -> &mut Region {
    let output = pending.output.take().filter(|output| output.len_bytes() == len_bytes);
    let output = output.unwrap_or_else(|| Region::from_owned_bytes(OwnedBytes::zeroed(len_bytes), dtype));
    pending.output.insert(output)
}
