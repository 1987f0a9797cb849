//! Requests of tensors on a device, which are waited for together: [`DeviceHandle`].
//!
//! A request is over when its results are there. Where the host runs ahead, its ticket is done before that, when the
//! ranks have queued it on their devices; [`DeviceHandle::follow`] then makes a stream wait for the event behind it.
//!
//! Results of a size that only the ranks' agreement tells lie in memory of the engine's on the device. Python makes a
//! tensor for each and has it copied there ([`DeviceHandle::copy_result`]); the engine's memory goes back when a device
//! has done that (`on_device::in_use`).
//!
//! The invariant: memory that was lent is kept, by this handle or by the engine, as long as work of ours on a device
//! uses it. So a framework's allocator need not be told of our streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use farandole::device::{DeviceCopy, Event};
use farandole::{EngineError, Outcome, Region, Submission, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::on_device::{self, OnStream, in_use};
use crate::settings;
use crate::waiting::{wait_until_done, wait_within};
use crate::world::Job;

/// How long a thread sleeps while another one takes the outcomes of the same requests.
const RETRY_AFTER: Duration = Duration::from_micros(20);

/// See the module's text.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct DeviceHandle {
    tickets: Vec<Ticket>,
    /// For each request, the address of the caller's memory for its result, if there is any.
    outputs: Vec<Option<u64>>,
    job: Weak<Job>,
    /// Where the tensors lie, and when they hold their data.
    place: OnStream,
    /// Whether the host goes on when they are queued.
    runs_ahead: bool,
    /// Set by the thread that takes the outcomes: the first one that has seen all tickets done.
    taking: AtomicBool,
    taken: OnceLock<Taken>,
}

/// What has come of the requests.
struct Taken {
    /// The first error.
    error: Option<EngineError>,
    results: Vec<Made>,
    /// The results are there after these.
    after: Vec<Event>,
}

/// A result.
struct Made {
    shape: Vec<u64>,
    received_splits: Vec<u64>,
    /// Memory of the engine's, until it has been copied. Locked for a moment by threads with the interpreter's lock.
    memory: Mutex<Option<Region>>,
}

#[pymethods]
impl DeviceHandle {
    /// Whether the host goes on when they are queued.
    #[getter]
    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Whether all are over, successfully or not: results are there, and names may be used again.
    fn poll(&self, py: Python<'_>) -> bool {
        self.is_queued() && (!self.runs_ahead || self.take(py).is_there())
    }

    /// Whether the device has computed what was submitted. A device that has failed computes nothing more.
    fn is_computed(&self) -> bool {
        self.place.ready().has_happened().unwrap_or(true)
    }

    /// Returns when it has.
    fn wait_until_computed(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| on_device::happens_soon(|| self.is_computed())) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Waits until all are queued, and makes what comes into a stream from now on wait until they are over. Raises the
    /// first error; what goes wrong later is raised by `wait`.
    fn follow(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        wait_until_done(py, |index| &self.tickets[index], self.tickets.len())?;
        let taken = self.take(py);
        self.check(taken)?;
        taken.after.iter().try_for_each(|after| after.make_wait(stream)).map_err(on_device::raised)
    }

    /// Waits until all are over. Raises the first error.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_until_done(py, |index| &self.tickets[index], self.tickets.len())?;
        let taken = self.take(py);
        self.check(taken)?;
        while !py.detach(|| on_device::happens_soon(|| taken.is_there())) {
            py.check_signals()?;
        }
        if !taken.after.is_empty() {
            // Devices that waited for a lost rank were let go; what they have done is void.
            self.check_engine()?;
        }
        Ok(())
    }

    /// Waits until all are queued, or so many seconds have passed; says whether they are.
    fn is_queued_within(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let begun = Instant::now();
        for ticket in self.tickets.iter().rev() {
            if !wait_within(py, ticket, limit.saturating_sub(begun.elapsed()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all are over or so many seconds have passed; says whether they are.
    fn wait_within(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let begun = Instant::now();
        if !self.is_queued_within(py, seconds)? {
            return Ok(false);
        }
        let taken = self.take(py);
        while !py.detach(|| on_device::happens_soon(|| taken.is_there() || begun.elapsed() >= limit)) {
            py.check_signals()?;
        }
        Ok(taken.is_there())
    }

    /// Shape and received splits of each result, once all are done.
    fn results(&self, py: Python<'_>) -> Vec<(Vec<u64>, Vec<u64>)> {
        assert!(self.is_queued(), "invariant: only requests that are done are asked for results");
        self.take(py).results.iter().map(|made| (made.shape.clone(), made.received_splits.clone())).collect()
    }

    /// Whether a result lies in memory of the engine's, from which it is to be copied.
    fn is_made(&self, py: Python<'_>, index: usize) -> bool {
        self.is_queued() && self.take(py).results[index].memory().is_some()
    }

    /// Copies a result out of the engine's memory, to so many bytes at an address of the device, in a stream.
    fn copy_result(&self, py: Python<'_>, index: usize, address: u64, len_bytes: usize, stream: u64) -> PyResult<()> {
        let Some(made) = self.take(py).results.get(index) else {
            return Err(PyValueError::new_err(format!("there is no result {index}")));
        };
        let Some(region) = made.memory().take() else { return Ok(()) };
        if region.len_bytes() != len_bytes {
            let text = format!("a result of {} bytes does not go into {len_bytes}", region.len_bytes());
            return Err(PyValueError::new_err(text));
        }
        let source = region.device().expect("invariant: results of tensors on a device lie there").address;
        let copy = DeviceCopy { source, target: address, bytes: len_bytes as u64 };
        let copied = self.place.copy_in(stream, &[copy])?;
        in_use::keep(copied, region);
        Ok(())
    }

    /// The names of the requests.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.tickets.iter().map(|ticket| &**ticket.name()).collect()
    }

    fn __len__(&self) -> usize {
        self.tickets.len()
    }

    fn __repr__(&self) -> String {
        let done = self.tickets.iter().filter(|ticket| ticket.is_done()).count();
        format!("<farandole._native.DeviceHandle, {done} of {} done>", self.tickets.len())
    }
}

impl DeviceHandle {
    /// Submits requests of tensors that lie there.
    pub(crate) fn submit(job: &Arc<Job>, submissions: Vec<Submission>, place: OnStream) -> PyResult<DeviceHandle> {
        in_use::release();
        let (engine, runs_ahead) = (job.world.engine(), settings::runs_ahead());
        let address = |region: &Region| region.device().map(|on_device| on_device.address);
        let outputs = submissions.iter().map(|one| one.output.as_ref().and_then(address)).collect();
        let tickets: Result<Vec<Ticket>, EngineError> =
            submissions.into_iter().map(|one| engine.submit(Submission { runs_ahead, ..one })).collect();
        let tickets = tickets.map_err(|error| errors::raised(job.world.report(error)))?;
        let (taking, taken) = (AtomicBool::new(false), OnceLock::new());
        Ok(DeviceHandle { tickets, outputs, job: Arc::downgrade(job), place, runs_ahead, taking, taken })
    }

    fn is_queued(&self) -> bool {
        self.tickets.iter().rev().all(Ticket::is_done)
    }

    fn check(&self, taken: &Taken) -> PyResult<()> {
        taken.error.as_ref().map_or(Ok(()), |error| Err(errors::of_job(&self.job, error.clone())))
    }

    /// Raises what has ended the engine, if it has failed. One that was shut down has done before what was queued.
    fn check_engine(&self) -> PyResult<()> {
        match self.job.upgrade().and_then(|job| job.world.engine().failure()) {
            Some(error @ EngineError::Failed(_)) => Err(errors::of_job(&self.job, error)),
            _ => Ok(()),
        }
    }

    /// Takes the outcomes of requests that are done. A second thread waits until the first one has done it.
    fn take(&self, py: Python<'_>) -> &Taken {
        if !self.taking.swap(true, Ordering::Relaxed) {
            let mut taken = Taken { error: None, results: Vec::with_capacity(self.tickets.len()), after: Vec::new() };
            let mut lent = Vec::with_capacity(self.tickets.len());
            for (ticket, output) in self.tickets.iter().zip(&self.outputs) {
                match ticket.poll().expect("invariant: all tickets are done before their outcomes are taken") {
                    Ok(outcome) => taken.add(outcome, *output, &mut lent),
                    Err(error) => drop(taken.error.get_or_insert(error)),
                }
            }
            drop(lent);
            return self.taken.get_or_init(|| taken);
        }
        loop {
            match self.taken.get() {
                Some(taken) => return taken,
                None => py.detach(|| std::thread::sleep(RETRY_AFTER)),
            }
        }
    }
}

impl Taken {
    /// Whether the results are there. A device that has failed computes nothing more.
    fn is_there(&self) -> bool {
        self.after.iter().all(|after| after.has_happened().unwrap_or(true))
    }

    /// output: where the caller wanted the result.
    fn add(&mut self, mut outcome: Outcome, output: Option<u64>, lent: &mut Vec<Outcome>) {
        // Requests of one bucket have the same.
        let is_new = |after: &mut Event| self.after.last().is_none_or(|last| last.handle() != after.handle());
        self.after.extend(outcome.after.take_if(is_new));
        let (shape, received_splits) =
            (std::mem::take(&mut outcome.shape), std::mem::take(&mut outcome.received_splits));
        let is_made = |region: &mut Region| region.device().map(|on_device| on_device.address) != output;
        let memory = Mutex::new(outcome.output.take_if(is_made));
        self.results.push(Made { shape, received_splits, memory });
        lent.push(outcome);
    }
}

impl Made {
    fn memory(&self) -> std::sync::MutexGuard<'_, Option<Region>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
