//! The worker threads of one epoch, and the rack where their batches wait.
//!
//! One lock guards everything that workers and the taker tell each other. A worker takes the next step that nobody has
//! taken, if it is less than `prefetch` steps ahead of what the taker has asked for; else it sleeps until the taker
//! comes. The taker sleeps until its step lies on the rack. Nobody is missed: both sides change the state and ring
//! under the lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use farandole_trace::event::Phase;

use super::{LoaderError, Walk};
use crate::sample::SampleBatch;

type Made = Result<SampleBatch, LoaderError>;

struct Rack {
    /// The first step that no worker has taken.
    untaken: usize,
    /// Workers may take steps before this one.
    limit: usize,
    ready: BTreeMap<usize, Made>,
}

struct Shared {
    walk: Walk,
    steps: usize,
    rack: Mutex<Rack>,
    /// Rung when workers may take more steps, or are to end.
    more: Condvar,
    /// Rung when a batch lies on the rack.
    made: Condvar,
    /// Set once, when the epoch is dropped; workers look at it between samples, without the lock.
    over: AtomicBool,
}

impl Shared {
    fn rack(&self) -> MutexGuard<'_, Rack> {
        // Nothing that panics runs under this lock.
        self.rack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each worker does.
    fn work(&self) {
        while let Some(step) = self.take_step() {
            let Walk { maker, order, epoch } = &self.walk;
            let made = {
                let _phase = maker.recorder.as_ref().map(|recorder| recorder.phase(Phase::InputWork));
                maker.guarded(order, *epoch, step, &|| !self.over.load(Ordering::Relaxed))
            };
            // Nothing was made because nobody wants it any more.
            let Some(made) = made.transpose() else { return };
            self.rack().ready.insert(step, made);
            self.made.notify_one();
        }
    }

    /// The next step for a worker, or none when all are taken or the epoch is over.
    fn take_step(&self) -> Option<usize> {
        let mut rack = self.rack();
        loop {
            if self.over.load(Ordering::Relaxed) || rack.untaken >= self.steps {
                return None;
            }
            if rack.untaken < rack.limit {
                rack.untaken += 1;
                return Some(rack.untaken - 1);
            }
            rack = self.more.wait(rack).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// See the module's text.
pub(super) struct Crew {
    shared: Arc<Shared>,
    prefetch: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts so many workers on these steps. Fewer do if the system gives no more; none is an error.
    pub(super) fn start(walk: Walk, steps: Range<usize>, workers: usize, prefetch: usize) -> Result<Crew, LoaderError> {
        let rack = Rack { untaken: steps.start, limit: steps.start.saturating_add(prefetch), ready: BTreeMap::new() };
        let shared = Arc::new(Shared {
            walk,
            steps: steps.end,
            rack: Mutex::new(rack),
            more: Condvar::new(),
            made: Condvar::new(),
            over: AtomicBool::new(false),
        });
        let mut threads = Vec::with_capacity(workers);
        for worker in 0..workers {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("loader {worker}"));
            match thread.spawn(move || shared.work()) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(LoaderError::Thread(error.to_string())),
                Err(_) => break,
            }
        }
        Ok(Crew { shared, prefetch, threads })
    }

    /// Waits for the batch of a step. Steps are asked for one after the other.
    pub(super) fn take(&mut self, step: usize) -> Made {
        let shared = &self.shared;
        let mut rack = shared.rack();
        loop {
            if let Some(made) = rack.ready.remove(&step) {
                // This batch is in the taker's hands now: one more may be made.
                rack.limit = (step + 1).saturating_add(self.prefetch);
                shared.more.notify_all();
                return made;
            }
            rack = shared.made.wait(rack).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker is between looking and falling asleep.
            let _rack = self.shared.rack();
            self.shared.over.store(true, Ordering::Relaxed);
            self.shared.more.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches what its samples throw; nothing else of it can panic.
            let _ = thread.join();
        }
    }
}
