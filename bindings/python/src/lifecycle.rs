//! Beginning and end of the job, and changes of its process sets.
//!
//! `LIFECYCLE` is held by the thread that changes membership (init, shutdown, adding and removing process sets). That
//! takes as long as the other ranks take, so such a thread has released the interpreter's lock first.
//!
//! **Threads that shut down while others change process sets.** The thread that shuts down holds `LIFECYCLE` and waits
//! until nobody else holds the [`Job`]. So no thread waits for `LIFECYCLE` while it holds the job: it keeps a [`Weak`]
//! and upgrades it when it has the lock. The job may be over then: a second `shutdown` has nothing left to do, and a
//! process set cannot be added any more.
//!
//! **Forked children** (data loaders mostly) inherit all this without the engine's threads, and the sockets are their
//! parent's. They may ask for ranks and sizes; everything else is refused. Their `shutdown` does nothing, so that a
//! child that ends like a Python program, with all its exit handlers, does not say goodbye in its parent's name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use farandole::{Address, EngineError, Environment, Launcher, Protection, Rank, Setup, StoreRank, World};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::request::read_group;
use crate::sampling;
use crate::stacks;
use crate::tensorflow;
use crate::waiting::let_waiting_threads_return;
use crate::world::{Job, current, peek, replace};

/// How much of an exception's text other ranks are sent: about two lines of a terminal.
const MAX_CHARS: usize = 200;

/// How long a shutdown waits for another thread that adds or removes a process set before it aborts the job, and how
/// long it waits until the engine has taken note of an exception. Either takes milliseconds normally.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a shutdown waits for threads that were waiting for requests. They have been woken; all they need is the
/// interpreter's lock.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

static LIFECYCLE: Mutex<()> = Mutex::new(());

/// Whether the thread that holds `LIFECYCLE` adds or removes a process set, and so may wait for other ranks for ever.
/// Set and cleared by that thread; read by threads that shut down and have waited for it.
static CHANGES_SETS: AtomicBool = AtomicBool::new(false);

/// Whether the interpreter has been told to shut down the job when it ends. Set by the first thread that initialises.
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// Changes the process sets of the job, while no other thread does or ends it.
fn change_sets<T: Send>(
    py: Python<'_>,
    doing: &str,
    change: impl FnOnce(&World) -> Result<T, EngineError> + Send,
) -> PyResult<T> {
    check_dynamic(&*current()?, doing)?;
    change_groups(py, change)
}

/// Changes the groups of the job, as the whole world or its members alone know them, while no other thread does or ends
/// it.
fn change_groups<T: Send>(py: Python<'_>, change: impl FnOnce(&World) -> Result<T, EngineError> + Send) -> PyResult<T> {
    let job = current()?;
    if job.world.engine().is_forked() {
        return Err(errors::forked());
    }
    let weak = Arc::downgrade(&job);
    drop(job);
    py.detach(move || {
        let _lifecycle = lock_lifecycle();
        // Another thread may have ended it.
        let job = weak.upgrade().ok_or_else(|| errors::of_engine(EngineError::ShutDown))?;
        CHANGES_SETS.store(true, Ordering::Relaxed);
        let changed = change(&job.world);
        CHANGES_SETS.store(false, Ordering::Relaxed);
        changed.map_err(|error| errors::raised(job.world.report(error)))
    })
}

/// Makes this process a rank of its job, with these process sets; those that are there already are passed over. Does
/// nothing while it is one. `store_rank` has rank, size, the job's word and the address of rank 0, for a process that
/// knows them from a store and not from a launcher.
#[pyfunction]
#[pyo3(signature = (process_sets, *, dynamic, wire_protection=None, store_rank=None))]
pub(crate) fn init(
    py: Python<'_>,
    process_sets: Vec<Vec<u32>>,
    dynamic: bool,
    wire_protection: Option<&str>,
    store_rank: Option<(u32, usize, String, Option<String>)>,
) -> PyResult<()> {
    let environment = store_rank.map(read_store_rank).transpose()?;
    let wire_protection = wire_protection.map(read_protection).transpose()?;
    if let Some(job) = peek() {
        return if job.world.engine().is_forked() { Err(errors::forked()) } else { Ok(()) };
    }
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(leave, py)?,))?;
    }
    let stacks = Some(stacks::prepare(py));
    py.detach(|| {
        let _lifecycle = lock_lifecycle();
        // Another thread may have been faster.
        if Python::attach(|_| peek()).is_some() {
            return Ok(());
        }
        let world =
            Setup { environment, stacks, wire_protection, ..Setup::default() }.init().map_err(errors::raised)?;
        add_initial_sets(&world, &process_sets)?;
        let job = Arc::new(Job { world, dynamic });
        tensorflow::begin(&job);
        Python::attach(|_| replace(Some(job)));
        Ok(())
    })
}

fn add_initial_sets(world: &World, process_sets: &[Vec<u32>]) -> PyResult<()> {
    for ranks in process_sets {
        let ranks: Vec<Rank> = ranks.iter().map(|&rank| Rank(rank)).collect();
        match world.engine().add_group(&ranks) {
            // The caller says which of its sets are duplicates; the job is usable nevertheless.
            Ok(_) | Err(EngineError::ExistingGroup(_)) => {}
            Err(error) => return Err(errors::raised(world.report(error))),
        }
    }
    Ok(())
}

/// Leaves the job: requests under way end with an error. Does nothing where there is none, and in forked children.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let Some(job) = peek().filter(|job| !job.world.engine().is_forked()) else { return };
    let stop_sampler = sampling::take_sampler(py);
    py.detach(|| {
        if let Some(stop_sampler) = stop_sampler {
            stop_sampler(RETURN_TIMEOUT);
        }
        let weak = Arc::downgrade(&job);
        drop(job);
        let _lifecycle = lock_lifecycle_or_abort(&weak);
        if let Some(job) = Python::attach(|_| replace(None)) {
            let let_ops_end = tensorflow::end();
            end(job);
            let_ops_end(RETURN_TIMEOUT);
        }
        let_waiting_threads_return(RETURN_TIMEOUT);
    });
}

/// Leaves the job because the interpreter ends. If an exception is the reason, the other ranks are told: without that
/// they would fail with a less exact cause, and be blamed if their processes end first.
#[pyfunction]
fn leave(py: Python<'_>) {
    let job = peek().filter(|job| !job.world.engine().is_forked());
    if let (Some(job), Some(exception)) = (job, uncaught_exception(py)) {
        let rank = Rank::from(job.world.rank());
        let what = format!("rank {rank} ended with an exception: {exception}");
        py.detach(|| {
            job.world.engine().abort_handle().abort(Some(rank), what);
            let deadline = Instant::now() + CHANGE_TIMEOUT;
            while job.world.engine().failure().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(50));
            }
        });
    }
    shutdown(py);
}

/// The exception that ends this interpreter, in a line. `None` if there is none, and if it is our own that another
/// rank's end has caused.
fn uncaught_exception(py: Python<'_>) -> Option<String> {
    let value = py.import("sys").ok()?.getattr("last_value").ok().filter(|value| !value.is_none())?;
    if value.is_instance_of::<errors::HorovodInternalError>() {
        return None;
    }
    let kind = value.get_type().name().ok()?.to_string();
    let words = value.str().map_or(String::new(), |text| text.to_string());
    let first: String = words.lines().next().unwrap_or_default().chars().take(MAX_CHARS).collect();
    Some(if first.is_empty() { kind } else { format!("{kind}: {first}") })
}

/// Ends the job when no other thread holds it. `LIFECYCLE` is held, so none of them holds it for long.
fn end(mut job: Arc<Job>) {
    loop {
        match Arc::try_unwrap(job) {
            Ok(job) => return drop(job),
            Err(still) => job = still,
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Makes a process set of these ranks of the world. All ranks call this.
#[pyfunction]
pub(crate) fn add_process_set(py: Python<'_>, ranks: Vec<u32>) -> PyResult<u32> {
    let ranks: Vec<Rank> = ranks.into_iter().map(Rank).collect();
    change_sets(py, "adding", move |world| world.engine().add_group(&ranks).map(|group| group.0))
}

/// Ends a process set. All ranks call this.
#[pyfunction]
pub(crate) fn remove_process_set(py: Python<'_>, process_set_id: i64) -> PyResult<()> {
    let group = read_group(process_set_id)?;
    change_sets(py, "removing", move |world| world.engine().remove_group(group))
}

/// Makes a group of these ranks of the world. Its members call this, each with the same number, which was not used
/// before.
#[pyfunction]
pub(crate) fn join_group(py: Python<'_>, number: u32, ranks: Vec<u32>) -> PyResult<u32> {
    let ranks: Vec<Rank> = ranks.into_iter().map(Rank).collect();
    change_groups(py, move |world| world.engine().join_group(number, &ranks).map(|group| group.0))
}

/// Leaves a group that was joined, which ends it.
#[pyfunction]
pub(crate) fn leave_group(py: Python<'_>, group: i64) -> PyResult<()> {
    let group = read_group(group)?;
    change_groups(py, move |world| world.engine().leave_group(group))
}

/// Ends all collectives of this rank: requests under way fail with this cause, and the other ranks are told.
#[pyfunction]
pub(crate) fn abort(cause: String) -> PyResult<()> {
    let job = current()?;
    job.world.engine().abort_handle().abort(Some(Rank::from(job.world.rank())), cause);
    Ok(())
}

/// Rank and size that a launcher has given this process, and whether it is a launcher of ours; `None` without one.
#[pyfunction]
pub(crate) fn launched() -> Option<(u32, usize, bool)> {
    let (launcher, rank, size) = Environment::launched()?;
    Some((rank.0, size, launcher == Launcher::Farandole))
}

/// What processes of one host have in common, and of different hosts not.
#[pyfunction]
pub(crate) fn host_identity() -> String {
    farandole::this_host()
}

fn read_store_rank((rank, size, job, address): (u32, usize, String, Option<String>)) -> PyResult<Environment> {
    let rank_zero = address.map(|text| text.parse::<Address>()).transpose().map_err(PyValueError::new_err)?;
    let known = StoreRank { rank: Rank(rank), size, job, rank_zero };
    Environment::from_store(known).map_err(|error| errors::raised(error.into()))
}

fn read_protection(word: &str) -> PyResult<Protection> {
    Protection::from_word(word).ok_or_else(|| {
        PyValueError::new_err(format!("wire_protection is \"off\", \"checksum\" or \"encrypt\", not {word:?}"))
    })
}

fn check_dynamic(job: &Job, doing: &str) -> PyResult<()> {
    if job.dynamic {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {doing} process sets after Horovod initialization."
    )))
}

fn lock_lifecycle() -> MutexGuard<'static, ()> {
    LIFECYCLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that adds a process set waits for other ranks, which may never come. It must not keep the process from
/// ending. A thread that shuts down, too, or initialises, comes to an end by itself and is waited for.
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
        let what = "this rank was shut down while one of its threads was still adding or removing a process set";
        job.world.engine().abort_handle().abort(Some(Rank::from(job.world.rank())), what.to_owned());
    }
    lock_lifecycle()
}
