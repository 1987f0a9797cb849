//! The handle of one request: [`Handle`].
//!
//! The outcome is taken out of the ticket once, by whichever thread comes first, and stays in the handle: a second
//! `wait` returns the same. Lent memory is released then, with the interpreter's lock held and none of ours.
//!
//! Dropping a handle gives up the result, not the request: other ranks depend on it, and the engine keeps the memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use farandole::{EngineError, Outcome, Ticket};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use crate::errors;
use crate::result::{Payload, Result};
use crate::waiting::{wait_until_done, wait_within};
use crate::world::Job;

/// Whose memory holds the result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultMemory {
    /// The caller's: the tensor that came with the request.
    Caller,
    /// The engine's, made for this result.
    Engine,
}

/// A request that was submitted.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Handle {
    ticket: Ticket,
    job: Weak<Job>,
    memory: ResultMemory,
    /// Locked for a moment by threads that hold the interpreter's lock, and never while Python code may run.
    taken: Mutex<Option<Taken>>,
    result: PyOnceLock<Py<Result>>,
}

/// What was taken out of the ticket.
#[derive(Clone)]
enum Taken {
    Result(Arc<Payload>),
    Error(EngineError),
}

impl Handle {
    pub(crate) fn new(ticket: Ticket, job: &Arc<Job>, memory: ResultMemory) -> Handle {
        Handle { ticket, job: Arc::downgrade(job), memory, taken: Mutex::new(None), result: PyOnceLock::new() }
    }

    /// The result of a request that is done.
    fn take(&self, py: Python<'_>) -> PyResult<Py<Result>> {
        if let Some(result) = self.result.get(py) {
            return Ok(result.clone_ref(py));
        }
        let (taken, lent) = self.take_out();
        drop(lent);
        match taken {
            Taken::Result(payload) => {
                let result = self.result.get_or_try_init(py, || Py::new(py, Result(payload)))?;
                Ok(result.clone_ref(py))
            }
            Taken::Error(error) => Err(errors::of_job(&self.job, error)),
        }
    }

    /// The second value is the memory that was lent, for the caller to drop.
    fn take_out(&self) -> (Taken, Option<Outcome>) {
        let mut kept = lock(&self.taken);
        if let Some(taken) = &*kept {
            return (taken.clone(), None);
        }
        let outcome = self.ticket.poll().expect("invariant: only requests that are done are taken out");
        let (taken, lent) = match outcome {
            Ok(mut outcome) if self.memory == ResultMemory::Engine => {
                (Taken::Result(Arc::new(Payload::with_memory(&mut outcome))), Some(outcome))
            }
            Ok(mut outcome) => (Taken::Result(Arc::new(Payload::without_memory(&mut outcome))), Some(outcome)),
            Err(error) => (Taken::Error(error), None),
        };
        *kept = Some(taken.clone());
        (taken, lent)
    }
}

#[pymethods]
impl Handle {
    /// The request's name.
    #[getter]
    fn name(&self) -> &str {
        self.ticket.name()
    }

    /// Whether the request is done, successfully or not.
    fn poll(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the request is done.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<Result>> {
        wait_until_done(py, |_| &self.ticket, 1)?;
        self.take(py)
    }

    /// Waits until the request is done or so many seconds have passed; says whether it is done.
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        wait_within(py, &self.ticket, limit)
    }

    fn __repr__(&self) -> String {
        let state = if self.ticket.is_done() { "done" } else { "under way" };
        format!("<farandole._native.Handle \"{}\", {state}>", self.ticket.name())
    }
}

/// Waits until all are done. Raises the first error; the others keep their results.
#[pyfunction]
pub(crate) fn wait_all<'py>(py: Python<'py>, handles: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let handles: Vec<Bound<'py, Handle>> = match handles.cast::<PyList>() {
        Ok(list) => list.iter().map(|handle| Ok(handle.cast_into::<Handle>()?)).collect::<PyResult<_>>()?,
        Err(_) => handles.try_iter()?.map(|handle| Ok(handle?.cast_into::<Handle>()?)).collect::<PyResult<_>>()?,
    };
    let waited: Vec<&Handle> = handles.iter().map(Bound::get).collect();
    wait_until_done(py, |index| &waited[index].ticket, waited.len())?;
    let results: Vec<Py<Result>> = waited.iter().map(|handle| handle.take(py)).collect::<PyResult<_>>()?;
    PyList::new(py, results)
}

fn lock(taken: &Mutex<Option<Taken>>) -> MutexGuard<'_, Option<Taken>> {
    // Valid between any two statements, also if a holder panicked.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
