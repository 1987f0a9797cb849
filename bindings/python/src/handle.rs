//! Waiting for requests: [`Handle`].
//!
//! A handle is a ticket of the engine's. A thread that waits releases the interpreter's lock and drives the engine; every
//! [`LOOK_AFTER`] it comes back to see whether Python has a signal to deal with (Ctrl-C), so a wait that lasts shorter pays
//! nothing for it. Interrupted or not, the request goes on and the handle stays good.
//!
//! A finished request is taken out of the ticket once, by whichever thread comes first, and what is left of it stays in the handle: a
//! second `wait` gives the same. What had been lent is let go then, with the interpreter's lock held and none of ours.
//!
//! Dropping a handle gives up the result, not the request: other ranks count on it, and the engine holds on to the memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::{EngineError, Outcome, Ticket};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use crate::errors;
use crate::result::{Payload, Result};
use crate::world::Job;

/// How often a waiting thread looks for signals: soon enough for whoever presses Ctrl-C, and too rare to be measured.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Threads that wait without the interpreter's lock. Counted by those threads; read by the thread that ends the interpreter, which
/// lets them come back first (`world::shutdown`).
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whose memory holds the result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The caller's: the tensor that came with the request.
    Callers,
    /// The engine's, made for this result.
    Engines,
}

/// The promise of a result.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Handle {
    ticket: Ticket,
    job: Weak<Job>,
    whose: Whose,
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
    pub(crate) fn new(ticket: Ticket, job: &Arc<Job>, whose: Whose) -> Handle {
        Handle { ticket, job: Arc::downgrade(job), whose, taken: Mutex::new(None), result: PyOnceLock::new() }
    }

    /// What came of a request that is done.
    fn take(&self, py: Python<'_>) -> PyResult<Py<Result>> {
        if let Some(result) = self.result.get(py) {
            return Ok(result.clone_ref(py));
        }
        let (taken, given_back) = self.take_out();
        drop(given_back);
        match taken {
            Taken::Result(payload) => {
                let result = self.result.get_or_try_init(py, || Py::new(py, Result(payload)))?;
                Ok(result.clone_ref(py))
            }
            Taken::Error(error) => Err(self.raise(error)),
        }
    }

    /// The second value is what had been lent, for the caller to drop.
    fn take_out(&self) -> (Taken, Option<Outcome>) {
        let mut kept = lock(&self.taken);
        if let Some(taken) = &*kept {
            return (taken.clone(), None);
        }
        let outcome = self.ticket.poll().expect("invariant: only requests that are done are taken out");
        let (taken, given_back) = match outcome {
            Ok(mut outcome) if self.whose == Whose::Engines => {
                (Taken::Result(Arc::new(Payload::with_memory(&mut outcome))), Some(outcome))
            }
            Ok(mut outcome) => (Taken::Result(Arc::new(Payload::without_memory(&mut outcome))), Some(outcome)),
            Err(error) => (Taken::Error(error), None),
        };
        *kept = Some(taken.clone());
        (taken, given_back)
    }

    /// Tells whoever keeps the job together of a failure, if this is one and the job is still the same, and makes it an exception.
    fn raise(&self, error: EngineError) -> PyErr {
        match self.job.upgrade() {
            Some(job) => errors::raised(job.world.report(error)),
            None => errors::of_engine(error),
        }
    }
}

#[pymethods]
impl Handle {
    /// The request's name.
    #[getter]
    fn name(&self) -> &str {
        self.ticket.name()
    }

    /// Whether the request is done, well or not.
    fn poll(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the request is done.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<Result>> {
        if !self.ticket.is_done() {
            wait_until_done(py, &[self])?;
        }
        self.take(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.ticket.is_done() { "done" } else { "under way" };
        format!("<farandole._native.Handle \"{}\", {state}>", self.ticket.name())
    }
}

/// Waits until all are done. The first of them that went wrong raises; the others keep their results.
#[pyfunction]
pub(crate) fn wait_all<'py>(py: Python<'py>, handles: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let handles: Vec<Bound<'py, Handle>> = match handles.cast::<PyList>() {
        Ok(list) => list.iter().map(|handle| Ok(handle.cast_into::<Handle>()?)).collect::<PyResult<_>>()?,
        Err(_) => handles.try_iter()?.map(|handle| Ok(handle?.cast_into::<Handle>()?)).collect::<PyResult<_>>()?,
    };
    let waited: Vec<&Handle> = handles.iter().map(Bound::get).collect();
    wait_until_done(py, &waited)?;
    let results: Vec<Py<Result>> = waited.iter().map(|handle| handle.take(py)).collect::<PyResult<_>>()?;
    PyList::new(py, results)
}

/// Waits for handles, and looks for signals in between.
fn wait_until_done(py: Python<'_>, handles: &[&Handle]) -> PyResult<()> {
    let mut left = handles;
    while !left.is_empty() {
        let waited = py.detach(|| {
            let _waiting = Waiting::begin();
            wait_a_while(left)
        });
        left = waited.map_err(errors::of_engine)?;
        if !left.is_empty() {
            py.check_signals()?;
        }
    }
    Ok(())
}

/// Waits until it is time to look for signals, and returns the handles that it has not seen done. The last comes first: it is most
/// likely the last to be done, so that this thread drives without interruption.
fn wait_a_while<'a>(handles: &'a [&'a Handle]) -> std::result::Result<&'a [&'a Handle], EngineError> {
    let begun = Instant::now();
    let mut left = handles;
    while let [before @ .., last] = left {
        if !last.ticket.is_done() && !last.ticket.is_done_within(LOOK_AFTER.saturating_sub(begun.elapsed()))? {
            return Ok(left);
        }
        left = before;
    }
    Ok(left)
}

/// Lets threads that wait come back, for at most so long. For a thread that is about to end the interpreter: a thread that came back
/// after that would take the process down.
pub(crate) fn let_waiting_threads_return(at_most: Duration) {
    let deadline = Instant::now() + at_most;
    while WAITING.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One thread that waits.
struct Waiting;

impl Waiting {
    fn begin() -> Waiting {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock(taken: &Mutex<Option<Taken>>) -> MutexGuard<'_, Option<Taken>> {
    // Valid between any two statements, also if a holder panicked.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
