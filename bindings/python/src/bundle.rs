//! Many gradients with one call, and one promise for all of them: [`Bundle`].
//!
//! An object of Python's for each gradient, and one more for each result, costs about as much as the engine's work on a
//! small one. An optimizer needs neither: its gradients are reduced where they lie, on the same terms, and it goes on
//! when all are done. So a bundle is handed in as tuples of what differs, keeps tickets, and gives nothing back but the
//! news that all went well. For the engine a bundle does not exist: every gradient is a request of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use farandole::{Batch, Collective, EngineError, Submission, Ticket};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors;
use crate::request::{Tensor, read_group, read_op, request};
use crate::waiting::wait_until_done;
use crate::world::{self, Job};

/// How many things each tuple says: name, address, shape, element type, owner.
const TENSOR_WORDS: usize = 5;

/// How long a thread sleeps that finds another one letting go of the same bundle.
const A_MOMENT: Duration = Duration::from_micros(20);

/// Allreduces that were handed in together and are waited for together.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Bundle {
    tickets: Vec<Ticket>,
    job: Weak<Job>,
    /// Set by the thread that takes the outcomes, which is the first that has seen all tickets done.
    settling: AtomicBool,
    /// The first thing that went wrong, once all outcomes have been taken.
    settled: OnceLock<Option<EngineError>>,
}

#[pymethods]
impl Bundle {
    /// Whether all are done, well or not.
    fn poll(&self) -> bool {
        self.tickets.iter().all(Ticket::is_done)
    }

    /// Waits until all are done. The first that went wrong raises.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_until_done(py, |index| &self.tickets[index], self.tickets.len())?;
        match self.settle(py) {
            None => Ok(()),
            Some(error) => Err(errors::of_job(&self.job, error.clone())),
        }
    }

    fn __len__(&self) -> usize {
        self.tickets.len()
    }

    fn __repr__(&self) -> String {
        let done = self.tickets.iter().filter(|ticket| ticket.is_done()).count();
        format!("<farandole._native.Bundle, {done} of {} done>", self.tickets.len())
    }
}

impl Bundle {
    /// Hands submissions in whose results go to their own memory.
    pub(crate) fn hand_in(job: &Arc<Job>, submissions: Vec<Submission>) -> PyResult<Bundle> {
        let engine = job.world.engine();
        let tickets: std::result::Result<Vec<Ticket>, EngineError> =
            submissions.into_iter().map(|submission| engine.submit(submission)).collect();
        let tickets = tickets.map_err(|error| errors::raised(job.world.report(error)))?;
        Ok(Bundle { tickets, job: Arc::downgrade(job), settling: AtomicBool::new(false), settled: OnceLock::new() })
    }

    /// Lets go of everything that was lent. Letting go may run Python code and with it other threads, so no lock is
    /// held; a second thread waits until the first is through.
    fn settle(&self, py: Python<'_>) -> Option<&EngineError> {
        if !self.settling.swap(true, Ordering::Relaxed) {
            let mut first = None;
            for ticket in &self.tickets {
                match ticket.poll().expect("invariant: only bundles that are done are settled") {
                    Ok(given_back) => drop(given_back),
                    Err(error) => drop(first.get_or_insert(error)),
                }
            }
            return self.settled.get_or_init(|| first).as_ref();
        }
        loop {
            match self.settled.get() {
                Some(settled) => return settled.as_ref(),
                None => py.detach(|| std::thread::sleep(A_MOMENT)),
            }
        }
    }
}

/// Asks for the combination of all ranks' tensors, in place, for each of `tensors`: tuples of name, address, shape,
/// element type and owner. With `batch`, a name that is the same on all ranks, they run together or not at all. All of
/// them are read before the first is asked for.
#[pyfunction]
pub(crate) fn allreduce_bundle(
    tensors: &Bound<'_, PyAny>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<&str>,
) -> PyResult<Bundle> {
    let job = world::current()?;
    let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
    let group = read_group(group)?;
    let read = |words: &Bound<'_, PyAny>| {
        let mut submission = read_tensor(words, &collective)?;
        submission.group = group;
        Ok(submission)
    };
    let mut submissions: Vec<Submission> = match tensors.cast::<PyList>() {
        Ok(list) => list.iter().map(|words| read(&words)).collect::<PyResult<_>>()?,
        Err(_) => tensors.try_iter()?.map(|words| read(&words?)).collect::<PyResult<_>>()?,
    };
    if let Some(name) = batch {
        let members = u32::try_from(submissions.len()).expect("invariant: a list has fewer than 2^32 entries here");
        let batch = Batch { name: name.into(), members };
        submissions.iter_mut().for_each(|submission| submission.request.batch = Some(batch.clone()));
    }
    Bundle::hand_in(&job, submissions)
}

fn read_tensor(words: &Bound<'_, PyAny>, collective: &Collective) -> PyResult<Submission> {
    let words = words.cast::<PyTuple>()?;
    if words.len() != TENSOR_WORDS {
        let what = format!("a tensor of a bundle is a tuple of {TENSOR_WORDS}, not of {}", words.len());
        return Err(PyTypeError::new_err(what));
    }
    let word = |index: usize| words.get_borrowed_item(index);
    let (name, shape, owner) = (&Arc::from(word(0)?.extract::<&str>()?), word(2)?, word(4)?);
    let tensor =
        Tensor { name, address: word(1)?.extract()?, shape: &shape, dtype: word(3)?.extract()?, owner: &owner };
    let (shape, dtype, input) = tensor.lend()?;
    Ok(Submission::new(request(name, collective.clone(), dtype, shape), input))
}
