//! Calls of frameworks that are under way, and the thread that ends them: [`Calls`].
//!
//! A framework's own scheduler calls us when a collective may begin. We submit the call's requests and return; no
//! thread of the framework waits. One thread of ours takes completions from the engine's queue and ends the calls, so
//! ten thousand of them need no more threads than one, whichever frameworks they come from. It drives the engine while
//! it waits.
//!
//! Invariants: a call ends once, after all its requests have been answered, so that the engine no longer has its
//! memory. No lock is held while a call ends; that may run any code of the framework's. Nothing here needs the
//! interpreter's lock.
//!
//! What is deliberately not here: what the requests are, and how a framework is told (`op_calls`, `mxnet`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::{Completion, CompletionQueue, Outcome, Returned, Submission};
use pyo3::prelude::*;

use crate::world::Job;

/// What has come of a request.
pub(crate) type Answer = Result<Outcome, Box<Returned>>;

/// Ends a call: is given what has come of its requests, in their order. Must not panic.
pub(crate) type End = Box<dyn FnOnce(Vec<Answer>, &Weak<Job>) + Send>;

/// The job for threads of frameworks. Not the one of `world`: that is asked by threads that hold the interpreter's
/// lock, so that none holds it while another thread forks. These run without.
static CURRENT: Mutex<Option<Arc<Current>>> = Mutex::new(None);

pub(crate) struct Current {
    pub(crate) job: Weak<Job>,
    /// Made for the first call; jobs whose frameworks have none need no thread.
    calls: OnceLock<Option<Arc<Calls>>>,
}

/// Calls under way.
pub(crate) struct Calls {
    job: Weak<Job>,
    queue: CompletionQueue,
    table: Mutex<Table>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Table {
    slots: Vec<Option<Call>>,
    free: Vec<u32>,
}

/// One call.
struct Call {
    end: End,
    /// What has come of each request.
    answers: Vec<Option<Answer>>,
    missing: usize,
}

/// Frameworks may use this job from now on.
pub(crate) fn begin(job: &Arc<Job>) {
    *lock_current() = Some(Arc::new(Current { job: Arc::downgrade(job), calls: OnceLock::new() }));
}

/// Frameworks may no longer use the job. What it returns waits, for at most so long, until calls under way have ended;
/// to be called when the engine has ended.
pub(crate) fn end() -> impl FnOnce(Duration) {
    let calls = lock_current().take().and_then(|current| current.calls.get().cloned().flatten());
    if let Some(calls) = &calls {
        calls.queue.close();
    }
    move |at_most| {
        let Some(calls) = calls else { return };
        let deadline = Instant::now() + at_most;
        while !calls.ended.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// How many calls are under way.
#[pyfunction]
pub(crate) fn calls_under_way() -> usize {
    let calls = current().and_then(|(current, _)| current.calls.get().cloned().flatten());
    calls.map_or(0, |calls| lock(&calls.table).slots.iter().flatten().count())
}

/// The job, if there is one.
pub(crate) fn current() -> Option<(Arc<Current>, Arc<Job>)> {
    let current = lock_current().clone()?;
    let job = current.job.upgrade()?;
    Some((current, job))
}

impl Current {
    /// The calls of this job; `None` if no thread can be started for them.
    pub(crate) fn calls(&self, job: &Arc<Job>) -> Option<Arc<Calls>> {
        self.calls.get_or_init(|| Calls::open(job).ok()).clone()
    }
}

impl Calls {
    fn open(job: &Arc<Job>) -> std::io::Result<Arc<Calls>> {
        let queue = job.world.engine().completion_queue();
        let (job, table) = (Arc::downgrade(job), Mutex::new(Table::default()));
        let calls = Arc::new(Calls { job, queue, table, ended: AtomicBool::new(false) });
        let own = Arc::clone(&calls);
        std::thread::Builder::new().name("farandole-calls".to_owned()).spawn(move || own.work())?;
        Ok(calls)
    }

    /// Submits the requests of a call, which ends when all have been answered; at once if there are none.
    pub(crate) fn submit(&self, job: &Job, submissions: Vec<Submission>, end: End) {
        let count = submissions.len();
        if count == 0 {
            return end(Vec::new(), &self.job);
        }
        let call = Call { end, answers: std::iter::repeat_with(|| None).take(count).collect(), missing: count };
        let slot = lock(&self.table).enter(call);
        let first_key = u64::from(slot) << 32;
        for (index, returned) in job.world.engine().submit_to(&self.queue, first_key, submissions.into_iter()) {
            self.answer(Completion { key: first_key | index as u64, result: Err(returned) });
        }
    }

    /// The thread's life.
    fn work(&self) {
        let mut completions = Vec::new();
        while self.queue.wait(&mut completions).is_ok_and(|goes_on| goes_on) {
            completions.drain(..).for_each(|completion| self.answer(completion));
        }
        self.ended.store(true, Ordering::Release);
    }

    /// Something has come of a request; if it was the last of its call, the call ends.
    fn answer(&self, completion: Completion) {
        let Completion { key, result } = completion;
        let (slot, index) = ((key >> 32) as u32, (key & 0xffff_ffff) as usize);
        let complete = lock(&self.table).answer(slot, index, result);
        if let Some(Call { end, answers, .. }) = complete {
            end(answers.into_iter().flatten().collect(), &self.job);
        }
    }
}

impl Table {
    fn enter(&mut self, call: Call) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(call);
                slot
            }
            None => {
                self.slots.push(Some(call));
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn answer(&mut self, slot: u32, index: usize, answer: Answer) -> Option<Call> {
        let entry = &mut self.slots[slot as usize];
        let call = entry.as_mut().expect("invariant: requests of a call are answered before it leaves");
        call.answers[index] = Some(answer);
        call.missing -= 1;
        if call.missing > 0 {
            return None;
        }
        self.free.push(slot);
        entry.take()
    }
}

/// Does work that must not unwind into a framework; a panic becomes the error that `bug` makes of its words.
pub(crate) fn guarded<T, E>(work: impl FnOnce() -> Result<T, E>, bug: impl FnOnce(String) -> E) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(bug(format!("farandole has a bug: {}", words.unwrap_or("it panicked"))))
    })
}

fn lock_current() -> MutexGuard<'static, Option<Arc<Current>>> {
    // Valid between any two statements, also if a holder panicked.
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
