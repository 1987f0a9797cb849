//! The calls: each checks its arguments, chooses the path and drives the operation to its end.

use std::cell::RefCell;
use std::sync::Arc;

use farandole_plan::algorithm::{self, Algorithm};
use farandole_plan::plane::{Folding, Movement, Plane, carrier};
use farandole_plan::{Dtype, Rank, ReduceOp, Schedule, Span};
use farandole_tensor::element::{as_bytes, with_bytes_mut};
use farandole_tensor::{Element, Finish, Fold, OwnedBytes, copy_finished, scale};
use farandole_transport::shm::Windows;

use super::descriptor::Detail;
use super::exchange::Exchange;
use super::small::{self, Parts};
use super::{Call, Communicator, Descriptor, Kind};
use crate::error::{Error, Result};
use crate::exec::buffers::{scaled, widened};
use crate::exec::links::LinkRun;
use crate::exec::windows::WindowRun;
use crate::exec::{Buffers, Execution, Halves};

impl Communicator {
    /// Combines the data of all ranks, element by element; all ranks get the result.
    pub fn allreduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        with_bytes_mut(data, |bytes| self.allreduce_bytes(bytes, T::DTYPE, op, 1.0, 1.0))
    }

    /// As [`Communicator::allreduce`], on bytes, with a factor for each contribution and one for the result.
    pub fn allreduce_bytes(
        &mut self,
        data: &mut [u8],
        dtype: Dtype,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
    ) -> Result<()> {
        let elems = reducible_elements(data.len(), dtype, op)?;
        let descriptor = Descriptor::new(Kind::Allreduce, dtype, Some(op), Detail::Nothing, elems);
        self.allreduce_described(descriptor, data, dtype, op, [prescale, postscale])
    }

    /// An allreduce that the ranks take to be this. `factors` are for each contribution and for the result.
    pub(super) fn allreduce_described(
        &mut self,
        descriptor: Descriptor,
        data: &mut [u8],
        dtype: Dtype,
        op: ReduceOp,
        factors: [f64; 2],
    ) -> Result<()> {
        let [prescale, postscale] = factors;
        let number = self.next_operation()?;
        if self.size() > 1 && data.is_empty() {
            return self.meet_at(number, descriptor);
        }
        let finish = Finish::new(dtype, op, self.size() as u64, postscale);
        let call = Reduction { number, descriptor, op, finish };
        if carrier(dtype, op, prescale, Folding::AllAtOnce) != dtype {
            let mut wide = widened(data, dtype, prescale);
            self.reduce(call, &mut wide, Dtype::F32)?;
            copy_finished(data, dtype, &wide, Dtype::F32, Finish::Nothing);
            return Ok(());
        }
        if prescale != 1.0 {
            scale(dtype, data, prescale);
        }
        self.reduce(call, data, dtype)
    }

    /// Combines the data of all ranks, which is scaled, and finishes the result.
    #[inline]
    fn reduce(&mut self, call: Reduction, data: &mut [u8], dtype: Dtype) -> Result<()> {
        let Reduction { number, descriptor, op, finish } = call;
        let elems = (data.len() / dtype.size_bytes()) as u64;
        let fold = Fold::new(dtype, op);
        let one_host = self.is_one_host();
        let forced = self.settings.algorithm.filter(|algorithm| {
            algorithm.fits(self.topology())
                && (!algorithm.needs_windows() || one_host)
                && *algorithm != Algorithm::Mapped
        });
        if self.size() == 1 {
            finish.apply(dtype, data);
            return Ok(());
        }
        if one_host && forced.is_none() && self.chooser.is_small(data.len()) {
            let (word, bytes) = (descriptor.word(), data.len());
            // Both have the data in turn: it is shown before anything is folded into it.
            let data = RefCell::new(data);
            let begin = |windows: &mut Windows| windows.begin(number, word, &data.borrow());
            let read = |windows: &Windows| small::fold_all_shown(windows, &mut data.borrow_mut(), &fold, finish);
            return self.hand_over(number, descriptor, bytes, begin, read);
        }
        let algorithm = forced.unwrap_or_else(|| self.chooser.allreduce(data.len()));
        let by_windows = algorithm.needs_windows() && one_host && algorithm != Algorithm::HierarchicalWindow;
        let folding = if by_windows { Folding::AllAtOnce } else { Folding::OneByOne };
        let travels_as = carrier(dtype, op, 1.0, folding);
        let call =
            Call { kind: algorithm as u8 | 0x80, dtype: travels_as, root: 0, counts: vec![elems], more_counts: vec![] };
        let plane = if by_windows { Plane::Windows } else { Plane::Links };
        let schedule = self.schedule(call, plane, Movement::Allreduce { algorithm, elems });
        let fold = Some(Fold::new(travels_as, op));
        let task = Task { number, descriptor, schedule };
        if by_windows {
            return self.through_windows(task, Buffers { fold, finish, ..Buffers::new(data, dtype) });
        }
        if travels_as == dtype {
            return self.over_links(task, Buffers { fold, ..Buffers::new(data, dtype) }, finish);
        }
        let mut wide = widened(data, dtype, 1.0);
        if task.schedule.slots == 0 {
            let halves = Some(Halves { results: data, dtype, finish });
            let buffers = Buffers { fold, halves, ..Buffers::new(&mut wide, travels_as) };
            return self.over_links(task, buffers, Finish::Nothing);
        }
        self.over_links(task, Buffers { fold, ..Buffers::new(&mut wide, travels_as) }, Finish::Nothing)?;
        copy_finished(data, dtype, &wide, travels_as, finish);
        Ok(())
    }

    /// All ranks get the root's data.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        with_bytes_mut(data, |bytes| self.broadcast_bytes(bytes, T::DTYPE, root))
    }

    /// As [`Communicator::broadcast`], on bytes.
    pub fn broadcast_bytes(&mut self, data: &mut [u8], dtype: Dtype, root: Rank) -> Result<()> {
        if root.index() >= self.size() {
            return Err(wrong(format!("there is no rank {root} in a world of {}", self.size())));
        }
        let elems = whole_elements(data.len(), dtype)?;
        let descriptor = Descriptor::new(Kind::Broadcast, dtype, None, Detail::Root(root.index()), elems);
        let number = self.next_operation()?;
        if self.shows_all(data.len()) {
            let (word, is_root, bytes) = (descriptor.word(), root == self.rank(), data.len());
            let data = RefCell::new(data);
            let begin = |windows: &mut Windows| {
                let data = data.borrow();
                windows.begin(number, word, if is_root { &data } else { &[] });
            };
            let read = |windows: &Windows| {
                if !is_root {
                    small::copy_shown(windows, windows.local_rank(root), &mut data.borrow_mut());
                }
            };
            return self.hand_over(number, descriptor, bytes, begin, read);
        }
        let call =
            Call { kind: Kind::Broadcast as u8, dtype, root: root.index(), counts: vec![elems], more_counts: vec![] };
        let schedule = self.schedule(call, self.plane(), Movement::Broadcast { root, elems });
        self.move_bytes(Task { number, descriptor, schedule }, Buffers::new(data, dtype))
    }

    /// All ranks get the data of all, one after the other; `counts[r]` elements come from rank `r`.
    pub fn allgather<T: Element>(&mut self, own: &[T], counts: &[usize], all: &mut [T]) -> Result<()> {
        with_bytes_mut(all, |all| self.allgather_bytes(as_bytes(own), counts, all, T::DTYPE))
    }

    /// As [`Communicator::allgather`], on bytes; `counts` are elements.
    pub fn allgather_bytes(&mut self, own: &[u8], counts: &[usize], all: &mut [u8], dtype: Dtype) -> Result<()> {
        let blocks = self.blocks(counts)?;
        let (mine, elem_bytes) = (blocks[self.rank().index()], dtype.size_bytes());
        let elems = blocks[blocks.len() - 1].end();
        if own.len() as u64 != mine.len * elem_bytes as u64 || all.len() as u64 != elems * elem_bytes as u64 {
            return Err(wrong("the counts do not add up to the lengths of the buffers"));
        }
        let descriptor = Descriptor::new(Kind::Allgather, dtype, None, Detail::Counts(counts), elems);
        all[scaled(mine, elem_bytes)].copy_from_slice(own);
        if self.gathers_by_reads(descriptor, &blocks, elem_bytes)? {
            let blocks: Vec<_> = blocks.iter().map(|&block| scaled(block, elem_bytes)).collect();
            return self.gather_by_reads(descriptor, own, all, &blocks);
        }
        let number = self.next_operation()?;
        if self.shows_all(all.len()) {
            let (word, bytes) = (descriptor.word(), all.len());
            let begin = |windows: &mut Windows| windows.begin(number, word, own);
            let read = |windows: &Windows| {
                for local_rank in windows.peers() {
                    let block = blocks[windows.rank(local_rank).index()];
                    small::copy_shown(windows, local_rank, &mut all[scaled(block, elem_bytes)]);
                }
            };
            return self.hand_over(number, descriptor, bytes, begin, read);
        }
        let call = self.call(Kind::Allgather, dtype, counts, &[]);
        let schedule = self.schedule(call, self.plane(), Movement::Allgather { blocks: &blocks });
        self.move_bytes(Task { number, descriptor, schedule }, Buffers::new(all, dtype))
    }

    /// Combines the data of all ranks; rank `r` gets the `counts[r]` elements of the result that are its own.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        data: &[T],
        counts: &[usize],
        own: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        with_bytes_mut(own, |own| self.reduce_scatter_bytes(as_bytes(data), counts, own, T::DTYPE, op))
    }

    /// As [`Communicator::reduce_scatter`], on bytes; `counts` are elements.
    pub fn reduce_scatter_bytes(
        &mut self,
        source: &[u8],
        counts: &[usize],
        own: &mut [u8],
        dtype: Dtype,
        op: ReduceOp,
    ) -> Result<()> {
        let blocks = self.blocks(counts)?;
        let (mine, elem_bytes) = (blocks[self.rank().index()], dtype.size_bytes());
        let elems = blocks[blocks.len() - 1].end();
        if own.len() as u64 != mine.len * elem_bytes as u64 || source.len() as u64 != elems * elem_bytes as u64 {
            return Err(wrong("the counts do not add up to the lengths of the buffers"));
        }
        if op == ReduceOp::Adasum {
            return Err(wrong("reducescatter cannot be combined with Adasum"));
        }
        let descriptor = Descriptor::new(Kind::ReduceScatter, dtype, Some(op), Detail::Counts(counts), elems);
        let number = self.next_operation()?;
        let (fold, finish) = (Fold::new(dtype, op), Finish::new(dtype, op, self.size() as u64, 1.0));
        let place = scaled(mine, elem_bytes);
        if self.is_one_host() {
            own.copy_from_slice(&source[place.clone()]);
        }
        if self.shows_all(source.len()) {
            let word = descriptor.word();
            let begin = |windows: &mut Windows| windows.begin(number, word, source);
            let read = |windows: &Windows| {
                small::fold_chunk_shown(windows, own, source.len(), place.start, &fold, finish);
            };
            return self.hand_over(number, descriptor, source.len(), begin, read);
        }
        let one_host = self.is_one_host();
        let folding = if one_host { Folding::AllAtOnce } else { Folding::OneByOne };
        let travels_as = carrier(dtype, op, 1.0, folding);
        let call = self.call(Kind::ReduceScatter, travels_as, counts, &[]);
        let schedule = self.schedule(call, self.plane(), Movement::ReduceScatterApart { blocks: &blocks });
        let task = Task { number, descriptor, schedule };
        if one_host {
            let fold = Some(fold);
            return self.through_windows(task, Buffers { source, fold, finish, ..Buffers::new(own, travels_as) });
        }
        // By messages the contributions of others are folded into a copy: the caller's data stays as it is. Which fold
        // is the last is not known there, so the result is finished afterwards.
        let mut work = if travels_as == dtype { OwnedBytes::from_slice(source) } else { widened(source, dtype, 1.0) };
        let buffers = Buffers { fold: Some(Fold::new(travels_as, op)), ..Buffers::new(&mut work, travels_as) };
        self.over_links(task, buffers, Finish::Nothing)?;
        let mine = scaled(mine, travels_as.size_bytes());
        copy_finished(own, dtype, &work[mine], travels_as, finish);
        Ok(())
    }

    /// Sends `send_counts[r]` elements to rank `r` and gets `recv_counts[r]` from it.
    pub fn alltoall<T: Element>(
        &mut self,
        data: &[T],
        send_counts: &[usize],
        received: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        with_bytes_mut(received, |received| {
            self.alltoall_bytes(as_bytes(data), send_counts, received, recv_counts, T::DTYPE)
        })
    }

    /// As [`Communicator::alltoall`], on bytes; the counts are elements.
    pub fn alltoall_bytes(
        &mut self,
        source: &[u8],
        send_counts: &[usize],
        received: &mut [u8],
        recv_counts: &[usize],
        dtype: Dtype,
    ) -> Result<()> {
        let (send, recv) = (self.blocks(send_counts)?, self.blocks(recv_counts)?);
        let (sent, got, elem_bytes) = (send[send.len() - 1].end(), recv[recv.len() - 1].end(), dtype.size_bytes());
        if source.len() as u64 != sent * elem_bytes as u64 || received.len() as u64 != got * elem_bytes as u64 {
            return Err(wrong("the counts do not add up to the lengths of the buffers"));
        }
        if send[self.rank().index()].len != recv[self.rank().index()].len {
            return Err(wrong("what a rank sends to itself it also receives"));
        }
        let descriptor = Descriptor::new(Kind::Alltoall, dtype, None, Detail::Nothing, 0);
        if self.all_show_parts() {
            let (send, recv) = (&send, &recv);
            return self.exchange(Exchange { descriptor, data: source, send, received, recv, dtype });
        }
        let number = self.next_operation()?;
        let call = self.call(Kind::Alltoall, dtype, send_counts, recv_counts);
        let schedule = self.schedule(call, Plane::Links, Movement::Alltoall { send: &send, recv: &recv });
        let buffers = Buffers { source, ..Buffers::new(received, dtype) };
        self.over_links(Task { number, descriptor, schedule }, buffers, Finish::Nothing)
    }

    /// Nobody returns before everybody has called.
    pub fn barrier(&mut self) -> Result<()> {
        self.meet(Descriptor::new(Kind::Barrier, Dtype::U8, None, Detail::Nothing, 0))
    }

    /// Waits until all ranks have come to this operation.
    pub(super) fn meet(&mut self, descriptor: Descriptor) -> Result<()> {
        let number = self.next_operation()?;
        self.meet_at(number, descriptor)
    }

    pub(super) fn meet_at(&mut self, number: u64, descriptor: Descriptor) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        if self.is_one_host() {
            let begin = |windows: &mut Windows| windows.begin(number, descriptor.word(), &[]);
            return self.hand_over(number, descriptor, 0, begin, |_| ());
        }
        let schedule = Arc::new(algorithm::barrier(self.size(), self.rank()));
        self.over_links(Task { number, descriptor, schedule }, Buffers::none(), Finish::Nothing)
    }

    /// Whether a collective of so many bytes in all takes a single hand-over.
    fn shows_all(&self, bytes: usize) -> bool {
        self.size() > 1 && self.is_one_host() && self.chooser.fits_one_hand_over(bytes)
    }

    /// Whether alltoall goes through windows: all ranks share memory, and the lengths of their parts fit the small
    /// slots.
    fn all_show_parts(&self) -> bool {
        let slot_bytes = self.mesh.windows.as_ref().map_or(0, |windows| windows.layout().small_bytes);
        self.size() > 1 && self.is_one_host() && Parts::lengths_fit(self.size(), slot_bytes)
    }

    fn call(&self, kind: Kind, dtype: Dtype, counts: &[usize], more: &[usize]) -> Call {
        let widen = |counts: &[usize]| counts.iter().map(|&count| count as u64).collect();
        Call { kind: kind as u8, dtype, root: 0, counts: widen(counts), more_counts: widen(more) }
    }

    /// Blocks of these lengths, one for each rank, one after the other.
    fn blocks(&self, counts: &[usize]) -> Result<Vec<Span>> {
        if counts.len() != self.size() {
            return Err(wrong(format!("{} counts for {} ranks", counts.len(), self.size())));
        }
        let mut start = 0;
        Ok(counts
            .iter()
            .map(|&count| {
                let block = Span { start, len: count as u64 };
                start = block.end();
                block
            })
            .collect())
    }

    /// Carries out a schedule that folds nothing, on whichever path its steps need.
    fn move_bytes(&mut self, task: Task, buffers: Buffers<'_>) -> Result<()> {
        match self.is_one_host() {
            true => self.through_windows(task, buffers),
            false => self.over_links(task, buffers, Finish::Nothing),
        }
    }

    fn through_windows(&mut self, task: Task, buffers: Buffers<'_>) -> Result<()> {
        let Task { number, descriptor, schedule } = task;
        if schedule.steps.is_empty() {
            return self.meet_at(number, descriptor);
        }
        self.windows().begin(number, descriptor.word(), &[]);
        self.record.started(number, descriptor, buffers.len_bytes());
        self.run_windows(descriptor, schedule, buffers)?;
        self.record.finished();
        Ok(())
    }

    /// Advances an operation through windows that has begun to its end.
    pub(super) fn run_windows(
        &mut self,
        descriptor: Descriptor,
        schedule: Arc<Schedule>,
        mut buffers: Buffers<'_>,
    ) -> Result<()> {
        let kind = descriptor.kind().map_or(0, |kind| kind as u8);
        let stores = self.store_policies.begin(kind, buffers.len_bytes());
        self.run(descriptor, &mut Execution::Windows(WindowRun::new(schedule, stores)), &mut buffers)?;
        self.store_policies.end(stores);
        Ok(())
    }

    /// Carries out a schedule of messages. Which fold is the last is not known there, so results are finished
    /// afterwards, unless they are rounded on the way.
    fn over_links(&mut self, task: Task, mut buffers: Buffers<'_>, finish: Finish) -> Result<()> {
        let Task { number, descriptor, schedule } = task;
        // Windows count on every operation being begun on them, and not being finished before all have begun it.
        if let Some(windows) = &mut self.mesh.windows {
            windows.begin(number, descriptor.word(), &[]);
        }
        let mut run = LinkRun::new(schedule, self.size(), number, descriptor.word());
        if buffers.halves.is_some() {
            run.round_results((buffers.work.len() / buffers.elem_bytes()) as u64);
        }
        self.record.started(number, descriptor, buffers.work.len());
        self.run(descriptor, &mut Execution::Links(run), &mut buffers)?;
        if self.mesh.windows.is_some() {
            self.gather(descriptor)?;
        }
        finish.apply(buffers.dtype, buffers.work);
        self.record.finished();
        Ok(())
    }
}

/// An allreduce whose contributions have been scaled.
struct Reduction {
    /// Number of the operation.
    number: u64,
    descriptor: Descriptor,
    op: ReduceOp,
    /// Applied to the result.
    finish: Finish,
}

/// A schedule, and what the ranks take its operation to be.
struct Task {
    /// Number of the operation.
    number: u64,
    descriptor: Descriptor,
    schedule: Arc<Schedule>,
}

pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::WrongMemory { name: "direct call".into(), what: what.into().into() }
}

/// The number of elements, if they can be reduced by a direct call.
pub(super) fn reducible_elements(bytes: usize, dtype: Dtype, op: ReduceOp) -> Result<u64> {
    if op == ReduceOp::Adasum {
        return Err(wrong("Adasum works on named tensors; submit it to the engine"));
    }
    whole_elements(bytes, dtype)
}

/// The number of elements in so many bytes, if it is a whole one.
fn whole_elements(bytes: usize, dtype: Dtype) -> Result<u64> {
    if !bytes.is_multiple_of(dtype.size_bytes()) {
        return Err(wrong(format!("{bytes} bytes are not a whole number of {dtype}")));
    }
    Ok((bytes / dtype.size_bytes()) as u64)
}
