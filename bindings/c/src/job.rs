//! The job that this process is a rank of: its beginning, its end, and changes of its process sets.
//!
//! A process is at most one rank at a time, so there is one [`Job`], whichever language has begun it. `JOB` is locked
//! to read or replace the pointer, for a moment. `LIFECYCLE` is held by the thread that changes membership (begin, end,
//! adding and removing process sets), which takes as long as the other ranks take.
//!
//! **Threads that end the job while others use it.** The thread that ends it holds `LIFECYCLE` and waits until nobody
//! else holds the [`Job`]. So no thread waits for `LIFECYCLE` while it holds the job: it keeps a [`Weak`] and upgrades
//! it when it has the lock. A thread in a direct collective does hold the job, and may wait for a rank that never
//! comes: it is given `CHANGE_TIMEOUT`, then its call is aborted.
//!
//! **Forked children** inherit all this without the engine's threads, and the sockets are their parent's. They may ask
//! for ranks and sizes; everything else is refused, and [`end`] does nothing. `fork_handler` sees to it that no child
//! inherits `JOB` locked.
//!
//! **Interpreters** have work of their own at these moments: an [`Interpreter`] is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use farandole::{AbortHandle, EngineError, Error, ErrorClass, Exit, Rank, Setup, World};

use crate::{fork_handler, other_library};

/// How long the end of a job waits for another thread that adds or removes a process set, or is in a direct collective,
/// before it aborts the job. Either takes milliseconds normally.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

static JOB: Mutex<Option<Arc<Job>>> = Mutex::new(None);

static LIFECYCLE: Mutex<()> = Mutex::new(());

/// Whether the thread that holds `LIFECYCLE` adds or removes a process set, and so may wait for other ranks for ever.
/// Set and cleared by that thread; read by threads that end the job and have waited for it.
static CHANGES_SETS: AtomicBool = AtomicBool::new(false);

static INTERPRETER: OnceLock<&'static dyn Interpreter> = OnceLock::new();

/// This rank's world, and what belongs to it.
#[derive(Debug)]
pub struct Job {
    /// The world. Direct collectives lock its communicator.
    pub world: World,
    /// Whether Horovod's functions may add and remove process sets.
    pub dynamic: bool,
    direct_abort: AbortHandle,
}

impl Job {
    /// Ends all collectives of this rank, direct ones too: they fail with this cause, and the other ranks are told.
    pub fn abort(&self, cause: &str) {
        let rank = Some(Rank::from(self.world.rank()));
        self.direct_abort.abort(rank, ErrorClass::RankLost, cause.to_owned());
        self.world.engine().abort_handle().abort(rank, ErrorClass::RankLost, cause.to_owned());
    }
}

/// An interpreter in this process, which takes part in beginning and end of jobs.
pub trait Interpreter: Send + Sync {
    /// Code outside of the interpreter is about to begin a job: what the interpreter adds to its setup.
    fn prepare(&self, setup: Setup) -> Setup;
    /// A job has begun, and is about to become this process's.
    fn begun(&self, job: &Arc<Job>);
    /// The job is about to end; nothing has happened yet.
    fn before_end(&self);
    /// The job is no longer this process's. What comes back is called when the engine has ended.
    fn ending(&self) -> Box<dyn FnOnce()>;
}

/// Why a job has not begun.
#[derive(Debug)]
#[non_exhaustive]
pub enum BeginError {
    /// This process was forked from a rank.
    Forked,
    /// Another copy of this library has a job in this process. In words.
    OtherLibrary(String),
    /// The ranks did not find each other, or a setting is wrong.
    Library(Error),
}

/// From now on this interpreter is told of beginning and end. The first counts; there is one in a process.
pub fn set_interpreter(interpreter: &'static dyn Interpreter) {
    let _ = INTERPRETER.set(interpreter);
}

/// The interpreter of this process, if there is one.
pub(crate) fn interpreter() -> Option<&'static dyn Interpreter> {
    INTERPRETER.get().copied()
}

/// The job, if there is one.
pub fn peek() -> Option<Arc<Job>> {
    lock_job().clone()
}

/// Makes this process a rank, with these process sets besides those of the setup; sets that are there already are
/// passed over. Does nothing while it is one.
///
/// # Errors
/// See [`BeginError`]. The process is no rank then.
pub fn begin(setup: Setup, process_sets: &[Vec<u32>], dynamic: bool) -> Result<(), BeginError> {
    let _lifecycle = lock_lifecycle();
    // Another thread may have been faster.
    if let Some(job) = peek() {
        return if job.world.engine().is_forked() { Err(BeginError::Forked) } else { Ok(()) };
    }
    if let Some(other) = other_library::with_a_job() {
        return Err(BeginError::OtherLibrary(other));
    }
    fork_handler::install();
    let mut world = setup.init().map_err(BeginError::Library)?;
    for ranks in process_sets {
        let ranks: Vec<Rank> = ranks.iter().map(|&rank| Rank(rank)).collect();
        match world.engine().add_group(&ranks) {
            // The caller says which of its sets are duplicates; the job is usable nevertheless.
            Ok(_) | Err(EngineError::ExistingGroup(_)) => {}
            Err(error) => return Err(BeginError::Library(world.report(error))),
        }
    }
    let direct_abort = world.communicator().abort_handle();
    let job = Arc::new(Job { world, dynamic, direct_abort });
    if let Some(interpreter) = interpreter() {
        interpreter.begun(&job);
    }
    replace(Some(job));
    Ok(())
}

/// Leaves the job: requests under way end with an error. Does nothing where there is none, and in forked children.
pub fn end() {
    let Some(job) = peek().filter(|job| !job.world.engine().is_forked()) else { return };
    if let Some(interpreter) = interpreter() {
        interpreter.before_end();
    }
    let weak = Arc::downgrade(&job);
    drop(job);
    let _lifecycle = lock_lifecycle_or_abort(&weak);
    let Some(job) = replace(None) else { return };
    let engine_ended = interpreter().map(Interpreter::ending);
    drop_last(job);
    if let Some(engine_ended) = engine_ended {
        engine_ended();
    }
}

/// Says how this process ends, before the job does ([`World::leave`]). Does nothing where there is none, and in forked
/// children.
pub fn leave(exit: Exit) {
    if let Some(job) = peek().filter(|job| !job.world.engine().is_forked()) {
        job.world.leave(exit);
    }
}

/// Changes the groups of the job, while no other thread does or ends it.
///
/// # Errors
/// What `change` says, of which the launcher is told; [`EngineError::ShutDown`] if there is no job any more.
pub fn change_groups<T>(job: Arc<Job>, change: impl FnOnce(&World) -> Result<T, EngineError>) -> Result<T, Error> {
    let weak = Arc::downgrade(&job);
    drop(job);
    let _lifecycle = lock_lifecycle();
    // Another thread may have ended it.
    let job = weak.upgrade().ok_or(EngineError::ShutDown)?;
    CHANGES_SETS.store(true, Ordering::Relaxed);
    let changed = change(&job.world);
    CHANGES_SETS.store(false, Ordering::Relaxed);
    changed.map_err(|error| job.world.report(error))
}

/// Ends the job when no other thread holds it. `LIFECYCLE` is held, so that of the others only direct collectives may
/// hold it for long.
fn drop_last(mut job: Arc<Job>) {
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    let mut aborted = false;
    loop {
        match Arc::try_unwrap(job) {
            Ok(job) => return drop(job),
            Err(still) => job = still,
        }
        if !aborted && Instant::now() >= deadline {
            aborted = true;
            job.abort("this rank was shut down while one of its threads was in a direct collective");
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A thread that adds a process set waits for other ranks, which may never come. It must not keep the process from
/// ending. A thread that ends the job, too, or begins one, comes to an end by itself and is waited for.
fn lock_lifecycle_or_abort(job: &Weak<Job>) -> MutexGuard<'static, ()> {
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    loop {
        match LIFECYCLE.try_lock() {
            Ok(held) => return held,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
        if Instant::now() >= deadline && CHANGES_SETS.load(Ordering::Relaxed) {
            break;
        }
    }
    if let Some(job) = job.upgrade() {
        job.abort("this rank was shut down while one of its threads was still adding or removing a process set");
    }
    lock_lifecycle()
}

/// From here on this is the job, or there is none. Returns the one before.
fn replace(job: Option<Arc<Job>>) -> Option<Arc<Job>> {
    std::mem::replace(&mut *lock_job(), job)
}

/// For `fork_handler`, and for a moment.
pub(crate) fn lock_job() -> MutexGuard<'static, Option<Arc<Job>>> {
    // Valid between any two statements, also if a holder panicked.
    JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_lifecycle() -> MutexGuard<'static, ()> {
    LIFECYCLE.lock().unwrap_or_else(PoisonError::into_inner)
}
