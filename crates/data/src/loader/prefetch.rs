//! Batches in order, made ahead by a worker pool or, with no workers, by the thread that asks.
//!
//! **Invariant:** a step that fails, fails with the error of its first part that did; nothing is started behind a
//! failure and no thread waits for it. When a prefetcher is dropped, also in the middle, its threads have ended.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::task::{BatchTask, make_here};
use super::worker_pool::WorkerPool;

/// One walk through the steps of a task, in order. Ends with the first error.
pub(super) struct Prefetcher<T: BatchTask> {
    state: State<T>,
    next: usize,
    end: usize,
}

enum State<T: BatchTask> {
    Here(Arc<T>, Box<T::Scratch>),
    Pool(WorkerPool<T>),
    Failed(T::Error),
    Over,
}

impl<T: BatchTask> Prefetcher<T> {
    /// Starts. Workers begin at once, and are at most `prefetch` steps ahead of the consumer.
    pub(super) fn start(task: Arc<T>, steps: Range<usize>, workers: usize, prefetch: usize) -> Prefetcher<T> {
        let state = if workers == 0 || steps.is_empty() {
            State::Here(task, Box::default())
        } else {
            match WorkerPool::start(task, steps.clone(), workers, prefetch.max(1)) {
                Ok(pool) => State::Pool(pool),
                Err(error) => State::Failed(error),
            }
        };
        Prefetcher { state, next: steps.start, end: steps.end }
    }

    /// The step that is asked for next.
    pub(super) fn next_step(&self) -> usize {
        self.next
    }

    /// The number of steps that may still come.
    pub(super) fn left(&self) -> usize {
        self.end.saturating_sub(self.next)
    }

    /// The next step, or none when all are over. With a time limit, [`Taken::NotYet`] says that it has passed; with no
    /// workers the step is made here, however long it takes.
    pub(super) fn take(&mut self, limit: Option<Duration>) -> Taken<T> {
        if self.next >= self.end && !matches!(self.state, State::Failed(_)) {
            // Threads have nothing left to do and end now, not only when the prefetcher is dropped.
            self.state = State::Over;
            return Taken::Over;
        }
        let step = self.next;
        let made = match std::mem::replace(&mut self.state, State::Over) {
            State::Here(task, mut scratch) => {
                let made = make_here(&*task, step, &mut scratch);
                self.state = State::Here(task, scratch);
                made
            }
            State::Pool(mut pool) => {
                let made = pool.take(step, limit.map(|limit| Instant::now() + limit));
                self.state = State::Pool(pool);
                let Some(made) = made else { return Taken::NotYet };
                made
            }
            State::Failed(error) => Err(error),
            State::Over => return Taken::Over,
        };
        self.next += 1;
        if made.is_err() {
            self.state = State::Over;
        }
        Taken::Made(made)
    }
}

/// What [`Prefetcher::take`] found.
pub(super) enum Taken<T: BatchTask> {
    Made(Result<T::Batch, T::Error>),
    NotYet,
    Over,
}
