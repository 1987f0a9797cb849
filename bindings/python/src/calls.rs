//! Calls of frameworks' ops that are under way, and the thread that ends them: [`Calls`].
//!
//! An op submits its requests and returns; no thread of the framework waits. One thread of ours takes completions from
//! the engine's queue and runs the callbacks, so ten thousand ops need no more threads than one. It drives the engine
//! while it waits.
//!
//! Invariants: a call's callback runs once, after all its requests have been answered, so that the engine no longer has
//! its memory. No lock is held while a callback runs; it may run any code of the framework's.
//!
//! Not here: what a call's memory is, and what its callback does (`tensorflow`, `jax`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::{Completion, CompletionQueue, Outcome, Returned, Submission};

use crate::op_error::{INTERNAL_ERROR, OpError, UNKNOWN};
use crate::world::Job;

type Answer = Result<Outcome, Box<Returned>>;

/// The job for ops. Not the one of `world`: that is asked by threads that hold the interpreter's lock, so that none
/// holds it while another thread forks. Ops run without.
static CURRENT: Mutex<Option<Arc<Current>>> = Mutex::new(None);

struct Current {
    job: Weak<Job>,
    /// Made for the first asynchronous call; jobs of other frameworks have none.
    calls: OnceLock<Option<Arc<Calls>>>,
}

/// Calls under way.
struct Calls {
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
    callback: Callback,
    /// What has come of each request.
    answers: Vec<Option<Answer>>,
    missing: usize,
}

/// Called with the outcomes of all requests, or with the first error.
pub(crate) type Callback = Box<dyn FnOnce(Result<Vec<Outcome>, OpError>) + Send>;

/// Requests that are ready to be submitted.
pub(crate) struct Prepared {
    calls: Arc<Calls>,
    job: Arc<Job>,
    submissions: Vec<Submission>,
}

/// Ops may use this job from now on.
pub(crate) fn begin(job: &Arc<Job>) {
    *lock_current() = Some(Arc::new(Current { job: Arc::downgrade(job), calls: OnceLock::new() }));
}

/// Ops may no longer use the job. What it returns waits, for at most so long, until the callbacks of calls under
/// way have run; to be called when the engine has ended.
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

/// Makes the requests of a call.
pub(crate) fn prepare(make: impl FnOnce(&Job) -> Result<Vec<Submission>, OpError>) -> Result<Prepared, OpError> {
    guarded(|| {
        let (current, job) = current_calls()?;
        let submissions = make(&job)?;
        let calls = current.calls(&job)?;
        Ok(Prepared { calls, job, submissions })
    })
}

/// Makes and submits the requests of a call, whose callback runs in any case.
pub(crate) fn submit(make: impl FnOnce(&Job) -> Result<Vec<Submission>, OpError>, callback: Callback) {
    match prepare(make) {
        Ok(prepared) => prepared.submit(callback),
        Err(error) => callback(Err(error)),
    }
}

impl Prepared {
    pub(crate) fn submit(self, callback: Callback) {
        let Prepared { calls, job, submissions } = self;
        calls.submit(&job, submissions, callback);
    }
}

/// The outcomes of all requests, or the first error.
pub(crate) fn outcomes_of(answers: Vec<Answer>, job: &Weak<Job>) -> Result<Vec<Outcome>, OpError> {
    answers.into_iter().map(|answer| answer.map_err(|returned| OpError::of(job, returned.error))).collect()
}

impl Current {
    fn calls(&self, job: &Arc<Job>) -> Result<Arc<Calls>, OpError> {
        let made = self.calls.get_or_init(|| Calls::open(job).ok());
        made.clone().ok_or_else(|| OpError::wrong_use("no thread could be started for ops"))
    }
}

impl Calls {
    fn open(job: &Arc<Job>) -> std::io::Result<Arc<Calls>> {
        let queue = job.world.engine().completion_queue();
        let (job, table) = (Arc::downgrade(job), Mutex::new(Table::default()));
        let calls = Arc::new(Calls { job, queue, table, ended: AtomicBool::new(false) });
        let own = Arc::clone(&calls);
        std::thread::Builder::new().name("farandole-ops".to_owned()).spawn(move || own.work())?;
        Ok(calls)
    }

    fn submit(&self, job: &Job, submissions: Vec<Submission>, callback: Callback) {
        let count = submissions.len();
        let call = Call { callback, answers: std::iter::repeat_with(|| None).take(count).collect(), missing: count };
        if count == 0 {
            return call.finish(&self.job);
        }
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
        if let Some(call) = complete {
            call.finish(&self.job);
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

impl Call {
    fn finish(self, job: &Weak<Job>) {
        let answers: Vec<Answer> = self.answers.into_iter().flatten().collect();
        (self.callback)(outcomes_of(answers, job));
    }
}

/// A panic of ours must not unwind into the framework, and the op must end.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, OpError>) -> Result<T, OpError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("{INTERNAL_ERROR}farandole has a bug: {}", words.unwrap_or("it panicked"));
        Err(OpError { code: UNKNOWN, text })
    })
}

/// The job.
pub(crate) fn current() -> Result<Arc<Job>, OpError> {
    current_calls().map(|(_, job)| job)
}

fn current_calls() -> Result<(Arc<Current>, Arc<Job>), OpError> {
    let current = lock_current().clone();
    let current = current.ok_or_else(OpError::not_initialized)?;
    let job = current.job.upgrade().ok_or_else(OpError::not_initialized)?;
    Ok((current, job))
}

fn lock_current() -> MutexGuard<'static, Option<Arc<Current>>> {
    // Valid between any two statements, also if a holder panicked.
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
