//! Many outcomes through one door: [`CompletionQueue`].
//!
//! A ticket is waited for by whoever holds it. A front end whose framework wants to be called when a request is done
//! (the asynchronous kernels of TensorFlow) has hundreds of requests under way and one thread for all of them, which
//! must learn of each as it is done, in whatever order. It hands its requests in with
//! [`Engine::submit_to`](crate::Engine::submit_to), each with a *key* of its own choice, and takes [`Completion`]s out
//! of the queue, as with the completion queues of io_uring or InfiniBand.
//!
//! Invariant: every request that was accepted leaves exactly one completion, with its memory, whatever becomes of the
//! engine.
//!
//! The thread that waits drives the engine if nobody else does, like any caller (`driver_lock`), but only while
//! requests are under way, and not while they come in a *burst*: calls that follow each other closely, such as those of
//! a graph with hundreds of gradients. Whoever drives would then stop for every callback and compete with those who
//! submit; the worker takes many requests at a time.
//!
//! - *single request*: the thread sleeps on the queue. Whoever submits finds it counted as a sleeper, pushes quietly
//!   and signals it: it drives, and the worker is not woken. What the quiet push said is left in the queue, so that the
//!   thread rings if it finds the driver lock taken (*just too late*, in `driver_lock`).
//! - *burst*: pushes ring if the driver is asleep, as for tickets. The worker drives, and the thread sleeps until
//!   something is done.
//! - *completion from another driver*: the thread sleeps because somebody else drives. That one puts the completion in
//!   and signals.
//! - *end*: [`CompletionQueue::close`] lets the thread go once nothing is owed any more.
//!
//! What is deliberately not here: what a completion means to the framework.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::command_queue::After;
use crate::driver_lock::Awaited;
use crate::error::Result;
use crate::shared::Shared;
use crate::submission::{Outcome, Returned};
use crate::sync::{Condvar, Mutex, lock};

/// A request that is done, well or not.
#[derive(Debug)]
pub struct Completion {
    /// What the caller gave with the submission.
    pub key: u64,
    /// What came of it. The memory comes back in either case.
    pub result: std::result::Result<Outcome, Box<Returned>>,
}

/// Where the completions of many requests come out.
#[derive(Clone)]
pub struct CompletionQueue {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
}

impl CompletionQueue {
    pub(crate) fn new(shared: Arc<Shared>) -> CompletionQueue {
        CompletionQueue { queue: Arc::new(Queue::default()), shared }
    }

    /// Waits for completions and appends them to `taken`, oldest first. Returns `false` when the queue has been closed
    /// and all requests have left their completion.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked) in a forked child, where nobody works on the requests.
    pub fn wait(&self, taken: &mut Vec<Completion>) -> Result<bool> {
        loop {
            self.shared.check_fork()?;
            match self.queue.take(taken) {
                Taken::Some => return Ok(true),
                Taken::Over => return Ok(false),
                Taken::Owed(after) => {
                    self.shared.driver_lock.wait(&*self.queue, None, after, None);
                }
                Taken::Burst(after) => {
                    self.shared.driver_lock.make_up_for(after);
                    self.queue.sleep(None);
                }
            }
        }
    }

    /// Lets [`CompletionQueue::wait`] return for good once nothing is owed.
    pub fn close(&self) {
        self.queue.close();
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("owed", &lock(&self.queue.state).owed).finish_non_exhaustive()
    }
}

/// What [`Queue::take`] found.
enum Taken {
    Some,
    Owed(After),
    Burst(After),
    Over,
}

/// Calls that follow each other sooner than this belong to one burst: an executor that comes to the next of many ready
/// nodes takes a few microseconds, a layer of a backward pass mostly longer than this.
const BURST_GAP: Duration = Duration::from_micros(300);

/// A burst of so many calls, or one that follows on such a burst, is left to the worker.
const BURST_CALLS: u32 = 8;

/// Whether a thread slept on the queue because nothing was owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleeper {
    /// It did, and must be told of the first request, to drive: [`Queue::wake`].
    Drives,
    /// It did not, or the worker is to drive.
    None,
}

/// The queue itself: the driver's end and the caller's.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Locked for a moment by threads that submit, by the driver, and by the thread that takes completions.
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    done: Vec<Completion>,
    /// Requests under way.
    owed: usize,
    /// Threads that sleep, or are about to, on `changed`.
    sleepers: u32,
    /// Whether a quiet push found the driver asleep and nobody has looked after it since.
    must_ring: bool,
    closed: bool,
    /// When the last call came, how many came closely one after the other until then, and in the burst before.
    last_call: Option<Instant>,
    calls: u32,
    calls_before: u32,
}

impl State {
    /// Says whether a call that comes now belongs to a burst, or probably begins one.
    fn note_call(&mut self, now: Instant) -> bool {
        if self.last_call.is_none_or(|last| now.saturating_duration_since(last) > BURST_GAP) {
            self.calls_before = std::mem::take(&mut self.calls);
        }
        self.last_call = Some(now);
        self.calls = self.calls.saturating_add(1);
        self.is_burst()
    }

    fn is_burst(&self) -> bool {
        self.calls.max(self.calls_before) >= BURST_CALLS
    }
}

impl Queue {
    /// One call is about to hand so many requests in.
    pub(crate) fn owe(&self, requests: usize) -> Sleeper {
        let mut state = lock(&self.state);
        let was_owed = state.owed;
        state.owed += requests;
        let burst = state.note_call(Instant::now());
        if was_owed == 0 && requests > 0 && state.sleepers > 0 && !burst { Sleeper::Drives } else { Sleeper::None }
    }

    /// So many requests were refused and leave no completion.
    pub(crate) fn take_back(&self, requests: usize) {
        if requests > 0 {
            lock(&self.state).owed -= requests;
        }
    }

    /// The first request has been pushed quietly, and the push said this.
    pub(crate) fn wake(&self, after: After) {
        lock(&self.state).must_ring |= after == After::Ring;
        self.changed.notify_all();
    }

    /// Puts a completion in.
    pub(crate) fn put(&self, completion: Completion) {
        let mut state = lock(&self.state);
        state.owed -= 1;
        state.done.push(completion);
        let asleep = state.sleepers > 0;
        drop(state);
        if asleep {
            self.changed.notify_all();
        }
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Sleeps while nothing is owed, then takes what is there.
    fn take(&self, taken: &mut Vec<Completion>) -> Taken {
        let mut state = lock(&self.state);
        state.sleepers += 1;
        while state.done.is_empty() && state.owed == 0 && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.sleepers -= 1;
        if !state.done.is_empty() {
            taken.append(&mut state.done);
            return Taken::Some;
        }
        if state.owed == 0 {
            return Taken::Over;
        }
        let after = if std::mem::take(&mut state.must_ring) { After::Ring } else { After::Nothing };
        if state.is_burst() { Taken::Burst(after) } else { Taken::Owed(after) }
    }
}

impl Awaited for Queue {
    fn is_fulfilled(&self) -> bool {
        !lock(&self.state).done.is_empty()
    }

    fn sleep(&self, deadline: Option<Instant>) -> bool {
        debug_assert!(deadline.is_none(), "invariant: completions are waited for without a deadline");
        let mut state = lock(&self.state);
        state.sleepers += 1;
        while state.done.is_empty() && state.owed > 0 {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.sleepers -= 1;
        !state.done.is_empty()
    }
}
