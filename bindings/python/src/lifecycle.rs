//! Beginning and end of the job, and changes of its process sets, as Python asks for them.
//!
//! The job is `farandole_c::job`'s, which says how threads that change it keep out of each other's way. Changes take as
//! long as the other ranks take, so a thread that makes one has released the interpreter's lock first.
//!
//! C code in this process may begin and end the job, too. [`Callbacks`] does then what belongs to the interpreter:
//! TensorFlow's kernels are given the job, samples are no longer taken, and the end of the interpreter ends the job.
//!
//! **Forked children** (data loaders mostly) inherit all this without the engine's threads, and the sockets are their
//! parent's. They may ask for ranks and sizes; everything else is refused. Their `shutdown` does nothing, so that a
//! child that ends like a Python program, with all its exit handlers, does not say goodbye in its parent's name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farandole::stall::Stacks;
use farandole::{
    Address, EngineError, Environment, ErrorClass, Exit, Launcher, OpenDevice, Protection, Rank, Setup, StoreRank,
    World,
};
use farandole_c::job::{self, BeginError, Interpreter};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::calls;
use crate::errors;
use crate::jax;
use crate::mxnet;
use crate::on_device;
use crate::request::read_group;
use crate::sampling;
use crate::stacks;
use crate::streaming;
use crate::waiting::let_waiting_threads_return;
use crate::world::{JOINS_LATER, Job, current, peek};

/// How long a rank that exits after another one's failure lets that one exit first. An interpreter with a framework
/// takes tenths of a second to end, and longer on a busy machine; a rank that lives on holds the others up for this
/// long.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a shutdown waits for threads that were waiting for requests. They have been woken; all they need is the
/// interpreter's lock.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a shutdown waits for operations that a framework has been asked for and has not carried out. Other ranks
/// may be in an evaluation before they come to them; or they never ask for them, as this rank never asks for theirs.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the interpreter has been told to shut down the job when it ends. Set by the first thread that initialises.
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// What the interpreter does when a job begins and ends, whoever asks for it.
pub(crate) struct Callbacks;

impl Interpreter for Callbacks {
    fn prepare(&self, setup: Setup) -> Setup {
        // An interpreter that has ended, or fails here, is not asked what its threads do; the job begins all the same.
        let stacks = Python::try_attach(|py| prepare(py).ok()).flatten();
        stacks.into_iter().fold(setup, Setup::stacks)
    }

    fn begun(&self, job: &Arc<Job>) {
        calls::begin(job);
    }

    fn before_end(&self) {
        let stop_sampler = Python::try_attach(sampling::take_sampler).flatten();
        if let Some(stop_sampler) = stop_sampler {
            stop_sampler(RETURN_TIMEOUT);
        }
    }

    fn ending(&self) -> Box<dyn FnOnce()> {
        let let_ops_end = calls::end();
        Box::new(move || {
            let_ops_end(RETURN_TIMEOUT);
            jax::on_device::forget();
        })
    }
}

/// Has the end of the interpreter end the job, and says how the engine asks the interpreter what it does.
fn prepare(py: Python<'_>) -> PyResult<Stacks> {
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        py.import("farandole._ending")?.call_method0("watch")?;
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(leave, py)?,))?;
    }
    Ok(stacks::prepare(py))
}

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
    py.detach(move || job::change_groups(job, change)).map_err(errors::raised)
}

/// Makes this process a rank of its job, with these process sets; those that are there already are passed over. Does
/// nothing while it is one. `store_rank` has rank, size, the job's word and the address of rank 0, for a process that
/// knows them from a store and not from a launcher. `nccl_files` are files in which NCCL may be. `follow` is called in
/// a process that joins an elastic job whose members stream their states (`streaming`).
#[pyfunction]
#[pyo3(signature = (
    process_sets, *, dynamic, wire_protection=None, store_rank=None, nccl_files=Vec::new(), follow=None
))]
pub(crate) fn init(
    py: Python<'_>,
    process_sets: Vec<Vec<u32>>,
    dynamic: bool,
    wire_protection: Option<&str>,
    store_rank: Option<(u32, usize, String, Option<String>)>,
    nccl_files: Vec<PathBuf>,
    follow: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let environment = store_rank.map(read_store_rank).transpose()?;
    let wire_protection = wire_protection.map(read_protection).transpose()?;
    if let Some(job) = peek() {
        return if job.world.engine().is_forked() { Err(errors::forked()) } else { Ok(()) };
    }
    let devices = on_device::device_stands_in().then(|| Arc::new(on_device::open) as OpenDevice);
    let setup = Setup::new().stacks(prepare(py)?).nccl_files(nccl_files);
    let setup = environment.into_iter().fold(setup, Setup::environment);
    let setup = wire_protection.into_iter().fold(setup, Setup::wire_protection);
    let setup = devices.into_iter().fold(setup, Setup::devices);
    let begun = match follow {
        Some(follow) => streaming::begin_after(py, setup, process_sets, dynamic, follow)?,
        None => py.detach(|| job::begin(setup, &process_sets, dynamic)),
    };
    begun.map(|()| JOINS_LATER.store(false, Ordering::Relaxed)).map_err(|error| match error {
        BeginError::Forked => errors::forked(),
        BeginError::Library(error) => errors::raised(error),
        BeginError::OtherLibrary(text) => PyRuntimeError::new_err(text),
        other => PyRuntimeError::new_err(format!("{other:?}")),
    })
}

/// This process is going to be a rank of its elastic job, and its rank is not known before.
#[pyfunction]
pub(crate) fn join_later() {
    JOINS_LATER.store(true, Ordering::Relaxed);
}

/// Leaves the job: requests under way end with an error. Does nothing where there is none, and in forked children.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) -> PyResult<()> {
    if peek().is_none_or(|job| job.world.engine().is_forked()) {
        return Ok(());
    }
    // Whoever is tired of waiting leaves nevertheless.
    let interrupted = mxnet::let_operations_end(py, OPERATIONS_TIMEOUT);
    py.detach(|| {
        job::end();
        let_waiting_threads_return(RETURN_TIMEOUT);
    });
    interrupted
}

/// Leaves the job because the interpreter ends. The other ranks are told its exit code and the exception that ends it,
/// as far as `farandole._ending` knows them.
#[pyfunction]
fn leave(py: Python<'_>) -> PyResult<()> {
    let exit = exit(py).unwrap_or_default();
    py.detach(|| job::leave(exit));
    if let Some(job) = peek().filter(|job| !job.world.engine().is_forked()) {
        py.detach(|| job.world.let_failed_rank_exit(EXIT_TIMEOUT));
    }
    let left = shutdown(py);
    // Of an elastic job for good: the others go on without this process.
    py.detach(farandole::elastic::leave);
    left
}

/// How this interpreter ends.
fn exit(py: Python<'_>) -> PyResult<Exit> {
    let (code, cause): (Option<i32>, Option<String>) =
        py.import("farandole._ending")?.call_method0("ending")?.extract()?;
    let exit = Exit { code, cause: None };
    Ok(cause.map_or(exit.clone(), |cause| exit.because(&cause)))
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

/// Ends all collectives of this rank: requests under way fail with this cause, and the other ranks are told. It is the
/// loss of this rank, or with `stalled` the end of a wait that has passed its limit.
#[pyfunction]
#[pyo3(signature = (cause, *, stalled = false))]
pub(crate) fn abort(cause: String, stalled: bool) -> PyResult<()> {
    let job = current()?;
    let class = if stalled { ErrorClass::Stall } else { ErrorClass::RankLost };
    job.world.engine().abort_handle().abort(Some(Rank::from(job.world.rank())), class, cause);
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
        "Set {}_DYNAMIC_PROCESS_SETS=1 to allow {doing} process sets after {} initialization.",
        errors::product().to_uppercase(),
        errors::product()
    )))
}
