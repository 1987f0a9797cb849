//! Timelines, and what the program says about itself: its phases, iterations and epochs.
//!
//! Marks are for everybody and never fail: before `init`, after `shutdown` and in forked children there is nobody to
//! tell, and they do nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farandole::{Cycles, Event, ThreadId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::op_calls;
use crate::sampling;
use crate::world::{Job, current, peek};

/// The job, if this process records.
pub(crate) fn recording() -> Option<Arc<Job>> {
    // A child may have inherited the recorder's lock in the hands of a thread that it did not inherit.
    peek().filter(|job| !job.world.engine().is_forked())
}

/// Begins to write a timeline; rank 0 does. Horovod's rule holds: only where the environment has announced one.
#[pyfunction]
pub(crate) fn start_timeline(py: Python<'_>, path: PathBuf, mark_cycles: bool) -> PyResult<()> {
    let job = current()?;
    if !job.world.timeline_prepared() {
        return Err(PyValueError::new_err("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."));
    }
    let cycles = if mark_cycles { Cycles::Marked } else { Cycles::Unmarked };
    Ok(py.detach(|| job.world.start_timeline(&path, cycles))?)
}

/// Ends the timeline. Whatever has happened is in its file.
#[pyfunction]
pub(crate) fn stop_timeline(py: Python<'_>) -> PyResult<()> {
    let job = current()?;
    Ok(py.detach(|| job.world.stop_timeline())?)
}

/// A phase of the program begins on this thread. Before `init` there is nobody to tell.
#[pyfunction]
pub(crate) fn phase_begin(name: &str) {
    if let Some(job) = recording() {
        sampling::entered();
        job.world.recorder().begin_phase(name);
    }
}

/// It ends.
#[pyfunction]
pub(crate) fn phase_end(name: &str) {
    if let Some(job) = recording() {
        job.world.recorder().end_phase(name);
        sampling::left();
    }
}

/// A phase of somebody outside of this process, such as a worker of a data loader, is over: times are those of
/// `time.monotonic_ns()`. It has a row of this name.
#[pyfunction]
pub(crate) fn phase_of(row: &str, name: &str, begin_ns: u64, end_ns: u64) {
    if let Some(job) = recording() {
        job.world.recorder().note_phase_of(row, name, begin_ns, end_ns);
    }
}

/// Whether what devices do is to be timed: only while a trace is kept.
#[pyfunction]
pub(crate) fn wants_device_times() -> bool {
    recording().is_some_and(|job| job.world.recorder().wants_device_times())
}

/// This thread gave its device nothing to do between two moments of `time.monotonic_ns()`, and the device was idle for
/// the last so many nanoseconds of that.
#[pyfunction]
pub(crate) fn device_idle(since_ns: u64, until_ns: u64, ns: u64) {
    if let Some(job) = recording() {
        job.world.recorder().note_device_idle(since_ns, until_ns, ns);
    }
}

/// The device of this thread has waited for the result of a request between two moments of `time.monotonic_ns()`.
#[pyfunction]
pub(crate) fn device_waited(request: &str, since_ns: u64, until_ns: u64) {
    if let Some(job) = recording() {
        job.world.recorder().note_device_wait(request, since_ns, until_ns);
    }
}

/// What this thread is called. The system knows the names of Python's threads only in part.
#[pyfunction]
pub(crate) fn name_thread(name: &str) {
    if let Some(job) = recording() {
        job.world.recorder().name_thread(name);
    }
}

/// What this thread does counts as done by the thread that trains, which waits for it meanwhile: hooks of a backward
/// pass on a GPU run in threads of PyTorch's. `act_for_itself` ends it.
#[pyfunction]
pub(crate) fn act_for_program() {
    ThreadId::act_for(sampling::program_thread());
}

/// What this thread does counts as its own.
#[pyfunction]
pub(crate) fn act_for_itself() {
    ThreadId::act_for(None);
}

/// A setting for the trace that has become known.
#[pyfunction]
pub(crate) fn note_setting(name: &str, value: &str) {
    if let Some(job) = recording() {
        job.world.recorder().note_setting(name, value);
    }
}

/// Whether Python marks iterations: the program, or a front end that sees its steps. Compiled programs then leave it to
/// Python. Set by threads with the interpreter's lock, read by those that end a program's calls.
static MARKED_BY_PYTHON: AtomicBool = AtomicBool::new(false);

/// Iterations that compiled programs have made.
static PROGRAM_ITERATIONS: AtomicU64 = AtomicU64::new(0);

/// A compiled program has made an iteration of training, without Python in between: the next one begins.
pub(crate) fn end_program_iteration() {
    if MARKED_BY_PYTHON.load(Ordering::Relaxed) {
        return;
    }
    if let (Some(thread), Ok(job)) = (sampling::program_thread(), op_calls::current()) {
        let number = PROGRAM_ITERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
        job.world.recorder().mark_iteration_ends();
        job.world.recorder().mark_on(thread, Event::Iteration { number });
    }
}

/// A step of training has ended, and with it an iteration.
#[pyfunction]
pub(crate) fn mark_step_done(number: u64) {
    if let Some(job) = recording() {
        job.world.recorder().mark_iteration_ends();
    }
    mark_iteration(number);
}

/// An iteration of training begins.
#[pyfunction]
pub(crate) fn mark_iteration(number: u64) {
    MARKED_BY_PYTHON.store(true, Ordering::Relaxed);
    if let Some(job) = recording() {
        job.world.mark_iteration(number);
    }
}

/// An epoch of training begins.
#[pyfunction]
pub(crate) fn mark_epoch(number: u64) {
    if let Some(job) = recording() {
        job.world.mark_epoch(number);
    }
}
