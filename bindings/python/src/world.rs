//! This rank's place in the job of this process.
//!
//! The job itself is in `farandole_c::job`: C functions that this module exports act on the same one. A forked child
//! can always ask.
//!
//! Not here: beginning and end of the job, and changes of its process sets (`lifecycle`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farandole::Rank;
pub(crate) use farandole_c::job::{Job, peek};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;

/// Whether this process is going to be a rank, and is none yet. Set and cleared by the thread that trains; orders
/// nothing.
pub(crate) static JOINS_LATER: AtomicBool = AtomicBool::new(false);

/// The job. Raises where there is none.
pub(crate) fn current() -> PyResult<Arc<Job>> {
    peek().ok_or_else(errors::not_initialized)
}

/// Whether this process is going to be a rank of its elastic job, and is none yet.
#[pyfunction]
pub(crate) fn joins_later() -> bool {
    JOINS_LATER.load(Ordering::Relaxed)
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

/// World ranks of every process set, by its number; zero is the world.
#[pyfunction]
pub(crate) fn process_sets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let sets = PyDict::new(py);
    for (group, ranks) in current()?.world.engine().groups() {
        sets.set_item(group.0, PyList::new(py, ranks.iter().map(|rank| rank.0))?)?;
    }
    Ok(sets)
}
