//! This process as a rank: beginning, end, and who is who.
//!
//! A process is at most one rank at a time, so there is one [`Job`] for the whole interpreter. Two locks guard it.
//! `LIFE` is held by whoever changes membership (init, shutdown, adding and removing process sets), which takes as long
//! as the other ranks take; such a thread has released the interpreter's lock first. `JOB` is held for a look at the
//! pointer, by threads that hold the interpreter's lock: so no thread can hold it while another one forks, and a child
//! can always ask.
//!
//! **Threads that end the job at once, or change its process sets meanwhile.** The thread that ends it holds `LIFE` and
//! waits until nobody has the [`Job`] any more. So nobody waits for `LIFE` with the job in hand: they keep a [`Weak`]
//! and look again when they have the lock. Then the job may be over: a second `shutdown` has nothing left to do, and a
//! process set cannot be added any more.
//!
//! **Forked children** (data loaders mostly) inherit all this without the engine's threads, and the sockets are their
//! parent's. They may ask for ranks and sizes; everything else is refused. Their `shutdown` does nothing, so that a
//! child that ends like a Python program, with all its exit handlers, does not say goodbye in its parent's name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use farandole::{EngineError, Protection, Rank, Setup, World};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;
use crate::request::read_group;
use crate::sampling;
use crate::stacks;
use crate::tensorflow;
use crate::waiting::let_waiting_threads_return;

/// How much of an exception's text other ranks get to hear: a line of a terminal or two.
const MOST_CHARS: usize = 200;

/// How long a shutdown lets another thread finish adding or removing a process set before it ends that by force, and
/// the engine hear of an exception. Either takes milliseconds where all is well.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a shutdown lets threads come back that were waiting for requests. They have been woken; they need no more
/// than the interpreter's lock.
const COME_BACK: Duration = Duration::from_secs(1);

static LIFE: Mutex<()> = Mutex::new(());

/// Whether the thread that holds `LIFE` adds or removes a process set, and so may wait for other ranks for ever. Set
/// and cleared by that thread; read by threads that shut down and have waited for it.
static CHANGES_SETS: AtomicBool = AtomicBool::new(false);

static JOB: Mutex<Option<Arc<Job>>> = Mutex::new(None);

/// Whether the interpreter has been told to shut down the job when it ends. Set by the first thread that initialises.
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// This rank's world, with what Python adds to it.
pub(crate) struct Job {
    pub(crate) world: World,
    /// Whether process sets may be added and removed after the start.
    dynamic: bool,
}

/// The job, for whoever wants to use it.
pub(crate) fn current() -> PyResult<Arc<Job>> {
    peek().ok_or_else(errors::not_initialized)
}

/// Changes the process sets of the job, while no other thread does or ends it.
fn change_sets<T: Send>(
    py: Python<'_>,
    doing: &str,
    change: impl FnOnce(&World) -> Result<T, EngineError> + Send,
) -> PyResult<T> {
    let job = current()?;
    if job.world.engine().is_forked() {
        return Err(errors::forked());
    }
    check_dynamic(&job, doing)?;
    let weak = Arc::downgrade(&job);
    drop(job);
    py.detach(move || {
        let _life = lock_life();
        // Another thread may have ended it.
        let job = weak.upgrade().ok_or_else(|| errors::of_engine(EngineError::ShutDown))?;
        CHANGES_SETS.store(true, Ordering::Relaxed);
        let changed = change(&job.world);
        CHANGES_SETS.store(false, Ordering::Relaxed);
        changed.map_err(|error| errors::raised(job.world.report(error)))
    })
}

/// As [`current`], for whoever can do without.
pub(crate) fn peek() -> Option<Arc<Job>> {
    lock_job().clone()
}

/// Makes this process a rank of its job, with these process sets; those that are there already are passed over. Does
/// nothing while it is one.
#[pyfunction]
#[pyo3(signature = (process_sets, *, dynamic, wire_protection=None))]
pub(crate) fn init(
    py: Python<'_>,
    process_sets: Vec<Vec<u32>>,
    dynamic: bool,
    wire_protection: Option<&str>,
) -> PyResult<()> {
    let wire_protection = wire_protection.map(read_protection).transpose()?;
    if let Some(job) = peek() {
        return if job.world.engine().is_forked() { Err(errors::forked()) } else { Ok(()) };
    }
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(leave, py)?,))?;
    }
    let stacks = Some(stacks::prepare(py));
    py.detach(|| {
        let _life = lock_life();
        // Another thread may have been faster.
        if Python::attach(|_| peek()).is_some() {
            return Ok(());
        }
        let world = Setup { stacks, wire_protection, ..Setup::default() }.init().map_err(errors::raised)?;
        for ranks in &process_sets {
            let ranks: Vec<Rank> = ranks.iter().map(|&rank| Rank(rank)).collect();
            match world.engine().add_group(&ranks) {
                // The caller says which of its sets are the same, and as which: the job is good all the same.
                Ok(_) | Err(EngineError::ExistingGroup(_)) => {}
                Err(error) => return Err(errors::raised(world.report(error))),
            }
        }
        let job = Arc::new(Job { world, dynamic });
        tensorflow::begin(&job);
        Python::attach(|_| *lock_job() = Some(job));
        Ok(())
    })
}

/// Leaves the job: requests under way end with an error. Does nothing where there is none, and in forked children.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let Some(job) = peek().filter(|job| !job.world.engine().is_forked()) else { return };
    let stop_sampler = sampling::take_sampler(py);
    py.detach(|| {
        if let Some(stop_sampler) = stop_sampler {
            stop_sampler(COME_BACK);
        }
        let weak = Arc::downgrade(&job);
        drop(job);
        let _life = lock_life_or_end_it(&weak);
        if let Some(job) = Python::attach(|_| lock_job().take()) {
            let let_ops_end = tensorflow::end();
            end(job);
            let_ops_end(COME_BACK);
        }
        let_waiting_threads_return(COME_BACK);
    });
}

/// Leaves the job because the interpreter ends. If that is because of an exception, the other ranks hear of it: after a
/// mere goodbye they would fail with less of a cause, and be blamed if their processes are the quicker ones to end.
#[pyfunction]
fn leave(py: Python<'_>) {
    let job = peek().filter(|job| !job.world.engine().is_forked());
    if let (Some(job), Some(exception)) = (job, uncaught_exception(py)) {
        let rank = Rank::from(job.world.rank());
        let what = format!("rank {rank} ended with an exception: {exception}");
        py.detach(|| {
            job.world.engine().alarm().ring(Some(rank), what);
            let deadline = Instant::now() + PATIENCE;
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
    let first: String = words.lines().next().unwrap_or_default().chars().take(MOST_CHARS).collect();
    Some(if first.is_empty() { kind } else { format!("{kind}: {first}") })
}

/// Ends the job when the last thread that looks at it has looked. `LIFE` is held, so none of them does so for long.
fn end(mut job: Arc<Job>) {
    loop {
        match Arc::try_unwrap(job) {
            Ok(job) => return drop(job),
            Err(still) => job = still,
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Whether this process is a rank.
#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    peek().is_some()
}

/// This rank, from zero.
#[pyfunction]
pub(crate) fn rank() -> PyResult<usize> {
    Ok(current()?.world.rank())
}

/// Number of ranks.
#[pyfunction]
pub(crate) fn size() -> PyResult<usize> {
    Ok(current()?.world.size())
}

/// How many ranks of this host come before this one.
#[pyfunction]
pub(crate) fn local_rank() -> PyResult<usize> {
    Ok(current()?.world.local_rank())
}

/// Number of ranks on this host.
#[pyfunction]
pub(crate) fn local_size() -> PyResult<usize> {
    Ok(current()?.world.local_size())
}

/// How many hosts before this one have a rank with this local rank.
#[pyfunction]
pub(crate) fn cross_rank() -> PyResult<usize> {
    Ok(current()?.world.cross_rank())
}

/// How many hosts have a rank with this local rank.
#[pyfunction]
pub(crate) fn cross_size() -> PyResult<usize> {
    Ok(current()?.world.cross_size())
}

/// Whether all hosts have the same number of ranks.
#[pyfunction]
pub(crate) fn is_homogeneous() -> PyResult<bool> {
    let job = current()?;
    let topology = job.world.topology();
    let mut sizes = (0..topology.size()).map(|rank| topology.local_size(Rank::from(rank)));
    let first = sizes.next();
    Ok(sizes.all(|size| Some(size) == first))
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

/// World ranks of every process set, by its number; zero is the world.
#[pyfunction]
pub(crate) fn process_sets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let sets = PyDict::new(py);
    for (group, ranks) in current()?.world.engine().groups() {
        sets.set_item(group.0, PyList::new(py, ranks.iter().map(|rank| rank.0))?)?;
    }
    Ok(sets)
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

fn lock_life() -> MutexGuard<'static, ()> {
    LIFE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that adds a process set waits for other ranks, which may never come. It must not keep the process from
/// ending. A thread that shuts down, too, or initialises, comes to an end by itself and is waited for.
fn lock_life_or_end_it(job: &Weak<Job>) -> MutexGuard<'static, ()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match LIFE.try_lock() {
            Ok(life) => return life,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
        if Instant::now() >= deadline && CHANGES_SETS.load(Ordering::Relaxed) {
            break;
        }
    }
    if let Some(job) = job.upgrade() {
        let what = "this rank was shut down while one of its threads was still adding or removing a process set";
        job.world.engine().alarm().ring(Some(Rank::from(job.world.rank())), what.to_owned());
    }
    lock_life()
}

fn lock_job() -> MutexGuard<'static, Option<Arc<Job>>> {
    // Valid between any two statements, also if a holder panicked.
    JOB.lock().unwrap_or_else(PoisonError::into_inner)
}
