//! The worker threads of one epoch.
//!
//! One lock guards the reorder buffer, through which workers and the consumer exchange everything. A worker takes the
//! next part; if there is none because enough was made ahead, it sleeps until the consumer takes a batch. The worker
//! that brings the last piece of a step joins it, without the lock. The consumer sleeps until its step is ready. No
//! wake-up is lost: both sides change the buffer under the lock, and notify afterwards.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use farandole_trace::event::Phase;

use super::reorder::{Made, NextPart, QueuedPart, ReorderBuffer};
use super::task::BatchTask;

/// What worker threads and the consumer share.
struct PoolState<T: BatchTask> {
    task: Arc<T>,
    buffer: Mutex<ReorderBuffer<T>>,
    /// Notified when workers may start more steps, or are to end.
    more: Condvar,
    /// Notified when a step is ready.
    made: Condvar,
    /// Set once, when the pool is dropped; workers read it between samples, without the lock.
    over: AtomicBool,
}

impl<T: BatchTask> PoolState<T> {
    fn buffer(&self) -> MutexGuard<'_, ReorderBuffer<T>> {
        // Nothing that panics runs under this lock.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each worker does.
    fn work(&self) {
        let mut scratch = T::Scratch::default();
        while let Some(QueuedPart { step, number, part }) = self.next_part() {
            let _phase = self.task.recorder().map(|recorder| recorder.phase(Phase::InputWork));
            let made = self.task.make(step, part, &mut scratch, &|| !self.over.load(Ordering::Relaxed));
            // Nothing was made because the pool is dropped.
            let Some(piece) = made.transpose() else { return };
            let pieces = self.buffer().bring(step, number, piece);
            let Some(pieces) = pieces else { continue };
            let made = pieces.and_then(|pieces| self.task.join(step, pieces));
            self.buffer().finish(step, made);
            self.made.notify_one();
        }
    }

    /// The next part for a worker, or none when all are taken, a step has failed or the pool is dropped.
    fn next_part(&self) -> Option<QueuedPart<T>> {
        let mut buffer = self.buffer();
        while !self.over.load(Ordering::Relaxed) {
            match buffer.next_part(&self.task) {
                NextPart::Part(part) => return Some(part),
                NextPart::End => return None,
                // All that sleep are woken when the limit rises, and find the parts that are left.
                NextPart::Wait => {
                    let asleep = Instant::now();
                    buffer = self.more.wait(buffer).unwrap_or_else(PoisonError::into_inner);
                    self.task.note_idle(asleep.elapsed());
                }
            }
        }
        None
    }
}

/// See the module's text.
pub(super) struct WorkerPool<T: BatchTask> {
    state: Arc<PoolState<T>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: BatchTask> WorkerPool<T> {
    /// Starts this many workers on these steps. Fewer do if the system gives no more; none is an error.
    pub(super) fn start(
        task: Arc<T>,
        steps: Range<usize>,
        workers: usize,
        prefetch: usize,
    ) -> Result<WorkerPool<T>, T::Error> {
        let state = Arc::new(PoolState {
            task,
            buffer: Mutex::new(ReorderBuffer::new(steps, prefetch)),
            more: Condvar::new(),
            made: Condvar::new(),
            over: AtomicBool::new(false),
        });
        let mut pool = WorkerPool { state, threads: Vec::with_capacity(workers) };
        for worker in 0..workers {
            let state = Arc::clone(&pool.state);
            match std::thread::Builder::new().name(format!("loader {worker}")).spawn(move || state.work()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(pool.state.task.no_thread(error.to_string())),
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// Waits for a step, at most until the deadline. Steps are asked for one after the other.
    pub(super) fn take(&mut self, step: usize, deadline: Option<Instant>) -> Option<Made<T>> {
        let mut buffer = self.state.buffer();
        loop {
            if let Some(made) = buffer.take(step) {
                self.state.more.notify_all();
                return Some(made);
            }
            buffer = match deadline {
                None => self.state.made.wait(buffer).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    self.state.made.wait_timeout(buffer, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl<T: BatchTask> Drop for WorkerPool<T> {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker is between its look at the flag and its sleep.
            let _buffer = self.state.buffer();
            self.state.over.store(true, Ordering::Relaxed);
            self.state.more.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its samples; nothing else of it can panic.
            let _ = thread.join();
        }
    }
}
