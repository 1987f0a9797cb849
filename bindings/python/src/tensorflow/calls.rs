//! Calls that are under way, and the thread that ends them: [`Calls`].
//!
//! A kernel submits its requests and returns; no thread of TensorFlow's waits. One thread of ours takes completions
//! from the engine's queue and runs the callbacks, so ten thousand ops need no more threads than one. It drives the
//! engine while it waits.
//!
//! An op that Python runs eagerly is waited for by its caller anyway, and so is carried out on the caller's thread: no
//! other thread is woken for it.
//!
//! Invariants: a call's callback runs once, after all its requests have been answered, so that the engine no longer has
//! its memory. No lock is held while a callback runs; it may run any code of TensorFlow's.
//!
//! This is an unsafe module: it keeps the addresses of kernels and contexts, which TensorFlow keeps alive until the
//! callback has run.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::{Completion, CompletionQueue, Outcome, Returned, Submission};

use super::api::{Opaque, Status, UNKNOWN, api};
use super::done::{self, Done};
use super::kernel::Kernel;
use super::status::{INTERNAL_ERROR, OpError};
use crate::world::Job;

type Answer = Result<Outcome, Box<Returned>>;

/// The job for kernels. Not the one of `world`: that is asked by threads that hold the interpreter's lock, so that none
/// holds it while another thread forks. Kernels run without.
static CURRENT: Mutex<Option<Arc<Current>>> = Mutex::new(None);

pub(super) struct Current {
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
    end: End,
    /// What has come of each request.
    answers: Vec<Option<Answer>>,
    missing: usize,
}

/// How a call ends when all its requests have been answered.
enum End {
    /// A kernel's outputs are set, and its callback runs.
    Kernel(KernelCall, Done),
    /// A compiled program is told.
    Program(ProgramCallback),
}

/// Called with the outcomes of all requests, or with the first error.
pub(super) type ProgramCallback = Box<dyn FnOnce(Result<Vec<Outcome>, OpError>) + Send>;

/// What TensorFlow keeps alive until the callback has run.
#[derive(Clone, Copy)]
struct KernelCall {
    kernel: *const Kernel,
    context: Opaque,
}

// SAFETY: TensorFlow's contexts may be used by any thread until the callback has run, by one at a time; a kernel is
// only read.
unsafe impl Send for KernelCall {}

/// Kernels may use this job from now on.
pub(crate) fn begin(job: &Arc<Job>) {
    *lock_current() = Some(Arc::new(Current { job: Arc::downgrade(job), calls: OnceLock::new() }));
}

/// Kernels may no longer use the job. What it returns waits, for at most so long, until the callbacks of calls under
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

/// A call of an asynchronous kernel.
///
/// # Safety
/// What TensorFlow passes to such a kernel.
pub(crate) unsafe fn compute_async(kernel: *const Kernel, context: Opaque, callback: Opaque) {
    // SAFETY: promised by the caller.
    let done = unsafe { if (*kernel).caller_waits { None } else { Done::copy(callback) } };
    let Some(done) = done else {
        // SAFETY: promised by the caller; nothing of the call is in use when it has been computed.
        unsafe {
            compute(kernel, context);
            done::run_original(callback);
        }
        return;
    };
    let call = KernelCall { kernel, context };
    // SAFETY: the callback runs after everything has been answered.
    if let Err(error) = unsafe { start(call, done) } {
        let (error, done) = error;
        // SAFETY: the callback has not run.
        unsafe { call.fail(&error) };
        done.run();
    }
}

/// A call of a kernel that is over when it returns.
///
/// # Safety
/// What TensorFlow passes to a kernel.
pub(crate) unsafe fn compute(kernel: *const Kernel, context: Opaque) {
    let call = KernelCall { kernel, context };
    // SAFETY: promised by the caller; nothing of the call is in use when it is over.
    unsafe {
        if let Err(error) = guarded(|| compute_blocking(call)) {
            call.fail(&error);
        }
    }
}

/// # Safety
/// As for [`compute`].
unsafe fn compute_blocking(call: KernelCall) -> Result<(), OpError> {
    let (current, job) = current()?;
    // SAFETY: promised by the caller.
    let kernel = unsafe { &*call.kernel };
    if kernel.kind.is_local() {
        // SAFETY: promised by the caller.
        return unsafe { kernel.answer_locally(&job, call.context) };
    }
    // SAFETY: promised by the caller: the call is over after all memory has been given back, below.
    let submissions = unsafe { kernel.submissions(&job, call.context)? };
    let tickets = job.world.engine().submit_quietly(submissions);
    // The thread that ends the job waits until nobody has it.
    drop(job);
    // All of them, before anything is said: the engine works on the memory of the others.
    let answers = tickets.wait_returning();
    // SAFETY: the call is not over.
    unsafe { set_outputs(call, answers, &current.job) }
}

/// Submits a call's requests. If there is nothing to wait for, the callback comes back.
///
/// # Safety
/// As for [`compute_async`].
unsafe fn start(call: KernelCall, done: Done) -> Result<(), (OpError, Done)> {
    let prepare = || {
        let (current, job) = current()?;
        // SAFETY: promised by the caller.
        let submissions = unsafe { (*call.kernel).submissions(&job, call.context)? };
        let calls = current.calls(&job)?;
        Ok((calls, job, submissions))
    };
    let (calls, job, submissions) = match guarded(prepare) {
        Ok(prepared) => prepared,
        Err(error) => return Err((error, done)),
    };
    calls.submit(&job, submissions, End::Kernel(call, done));
    Ok(())
}

/// Submits the requests of a compiled program's call, whose callback runs in any case.
pub(super) fn submit(make: impl FnOnce(&Job) -> Result<Vec<Submission>, OpError>, tell: ProgramCallback) {
    let prepare = || {
        let (current, job) = current()?;
        let calls = current.calls(&job)?;
        let submissions = make(&job)?;
        Ok((calls, job, submissions))
    };
    match guarded(prepare) {
        Ok((calls, job, submissions)) => calls.submit(&job, submissions, End::Program(tell)),
        Err(error) => tell(Err(error)),
    }
}

/// Gives TensorFlow the results, or the first error.
///
/// # Safety
/// The callback of the call has not run.
unsafe fn set_outputs(call: KernelCall, answers: Vec<Answer>, job: &Weak<Job>) -> Result<(), OpError> {
    for (index, outcome) in outcomes_of(answers, job)?.into_iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe { (*call.kernel).put_result(call.context, index, outcome)? };
    }
    Ok(())
}

/// The outcomes of all requests, or the first error.
fn outcomes_of(answers: Vec<Answer>, job: &Weak<Job>) -> Result<Vec<Outcome>, OpError> {
    answers.into_iter().map(|answer| answer.map_err(|returned| OpError::of(job, returned.error))).collect()
}

impl KernelCall {
    /// # Safety
    /// The callback of the call has not run.
    unsafe fn fail(&self, error: &OpError) {
        let status = Status::new();
        status.set(error.code, &error.text);
        // SAFETY: promised by the caller.
        unsafe { (api().compute_failed)(self.context, status.raw()) };
    }
}

impl Current {
    fn calls(&self, job: &Arc<Job>) -> Result<Arc<Calls>, OpError> {
        let made = self.calls.get_or_init(|| Calls::open(job).ok());
        made.clone().ok_or_else(|| OpError::wrong_use("no thread could be started for TensorFlow's ops"))
    }
}

impl Calls {
    fn open(job: &Arc<Job>) -> std::io::Result<Arc<Calls>> {
        let queue = job.world.engine().completion_queue();
        let (job, table) = (Arc::downgrade(job), Mutex::new(Table::default()));
        let calls = Arc::new(Calls { job, queue, table, ended: AtomicBool::new(false) });
        let own = Arc::clone(&calls);
        std::thread::Builder::new().name("farandole-tf".to_owned()).spawn(move || own.work())?;
        Ok(calls)
    }

    fn submit(&self, job: &Job, submissions: Vec<Submission>, end: End) {
        let count = submissions.len();
        let call = Call { end, answers: std::iter::repeat_with(|| None).take(count).collect(), missing: count };
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
        match self.end {
            End::Program(tell) => tell(outcomes_of(answers, job)),
            End::Kernel(call, done) => {
                // SAFETY: the callback runs below.
                unsafe {
                    if let Err(error) = guarded(|| set_outputs(call, answers, job)) {
                        call.fail(&error);
                    }
                }
                done.run();
            }
        }
    }
}

/// A panic of ours must not unwind into TensorFlow, and the op must end.
fn guarded<T>(work: impl FnOnce() -> Result<T, OpError>) -> Result<T, OpError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("{INTERNAL_ERROR}farandole has a bug: {}", words.unwrap_or("it panicked"));
        Err(OpError { code: UNKNOWN, text })
    })
}

pub(super) fn current() -> Result<(Arc<Current>, Arc<Job>), OpError> {
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
