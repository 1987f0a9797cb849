//! The reorder buffer: which parts are to be made, and finished batches until their turn comes.
//!
//! Parts are handed out in order and come back in any. A step becomes *pending* when its first part is wanted, if it is
//! below the limit that the consumer sets, and *ready* when its last piece was joined.
//!
//! **Invariant:** at most `prefetch` steps are pending or ready. After a failure nothing behind it is started or kept;
//! parts before it are in the hands of workers and come back.
//!
//! What is deliberately not here: threads and locks (`worker_pool`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::task::BatchTask;

pub(super) type Made<T> = Result<<T as BatchTask>::Batch, <T as BatchTask>::Error>;
pub(super) type MadePiece<T> = Result<<T as BatchTask>::Piece, <T as BatchTask>::Error>;

/// A part of a step, by its number.
pub(super) struct QueuedPart<T: BatchTask> {
    pub(super) step: usize,
    pub(super) number: usize,
    pub(super) part: T::Part,
}

/// A step with parts that are not made.
struct Pending<T: BatchTask> {
    /// By the parts' numbers.
    pieces: Vec<Option<MadePiece<T>>>,
    /// Parts that a worker will still bring.
    missing: usize,
}

/// What [`ReorderBuffer::next_part`] found.
pub(super) enum NextPart<T: BatchTask> {
    Part(QueuedPart<T>),
    /// Enough was made ahead: wait for the consumer.
    Wait,
    /// All parts were handed out, or a step has failed.
    End,
}

/// See the module's text.
pub(super) struct ReorderBuffer<T: BatchTask> {
    /// The first step that was not started.
    next: usize,
    /// One behind the last step.
    end: usize,
    /// Steps below this one may be started.
    limit: usize,
    prefetch: usize,
    /// Parts of started steps that no worker has, in order.
    queue: VecDeque<QueuedPart<T>>,
    pending: BTreeMap<usize, Pending<T>>,
    ready: BTreeMap<usize, Made<T>>,
    failed: bool,
}

impl<T: BatchTask> ReorderBuffer<T> {
    pub(super) fn new(steps: Range<usize>, prefetch: usize) -> ReorderBuffer<T> {
        ReorderBuffer {
            next: steps.start,
            end: steps.end,
            limit: steps.start.saturating_add(prefetch),
            prefetch,
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            ready: BTreeMap::new(),
            failed: false,
        }
    }

    /// The next part for a worker. Starts a step if all parts of those before it were handed out.
    pub(super) fn next_part(&mut self, task: &T) -> NextPart<T> {
        if self.queue.is_empty() && !self.failed && self.next < self.end && self.next < self.limit {
            let step = self.next;
            self.next += 1;
            let parts = task.cut(step);
            self.pending.insert(step, Pending { pieces: parts.iter().map(|_| None).collect(), missing: parts.len() });
            let parts = parts.into_iter().enumerate();
            self.queue.extend(parts.map(|(number, part)| QueuedPart { step, number, part }));
        }
        match self.queue.pop_front() {
            Some(part) => NextPart::Part(part),
            None if self.failed || self.next >= self.end => NextPart::End,
            None => NextPart::Wait,
        }
    }

    /// Takes a piece in. With the last one of its step all pieces come out, or the first error among them.
    pub(super) fn bring(
        &mut self,
        step: usize,
        number: usize,
        piece: MadePiece<T>,
    ) -> Option<Result<Vec<T::Piece>, T::Error>> {
        // A step behind one that has failed is not kept.
        let pending = self.pending.get_mut(&step)?;
        let failed = piece.is_err();
        pending.pieces[number] = Some(piece);
        pending.missing -= 1;
        if failed {
            self.discard_behind(step);
        }
        if self.pending.get(&step)?.missing > 0 {
            return None;
        }
        // Parts that were discarded are behind the first error.
        self.pending.remove(&step).map(|pending| pending.pieces.into_iter().flatten().collect())
    }

    /// A part of this step has failed: nothing behind it is wanted.
    fn discard_behind(&mut self, step: usize) {
        self.failed = true;
        let of_step = self.queue.iter().filter(|part| part.step == step).count();
        self.queue.clear();
        self.pending.split_off(&(step + 1));
        if let Some(pending) = self.pending.get_mut(&step) {
            pending.missing -= of_step;
        }
    }

    /// A step was joined.
    pub(super) fn finish(&mut self, step: usize, made: Made<T>) {
        self.failed |= made.is_err();
        self.ready.insert(step, made);
    }

    /// Hands a step to the consumer, if it is ready. One more may then be made.
    pub(super) fn take(&mut self, step: usize) -> Option<Made<T>> {
        let made = self.ready.remove(&step)?;
        self.limit = (step + 1).saturating_add(self.prefetch);
        Some(made)
    }
}
