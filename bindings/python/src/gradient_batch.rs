//! Gradients that are submitted with one call and waited for with one: [`GradientBatch`] and [`BatchHandle`].
//!
//! An optimizer reduces the same parameters' gradients in every iteration; only their addresses change. A
//! [`GradientBatch`] keeps what stays: names, shapes, element types and the reduction. [`GradientBatch::submit`] takes
//! addresses and owners, in lists that Python fills while gradients become ready, and returns one [`BatchHandle`]. A
//! gradient needs neither a tuple of arguments nor a handle of its own, which would cost about as much as the engine's
//! work on a small gradient.
//!
//! The engine knows nothing of batches: each gradient is a request of its own, and other ranks may submit theirs in
//! another way. Arguments for a batch that is used once are read in `request`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use farandole::{Batch, Collective, Dtype, EngineError, GroupId, Request, Submission, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::device_handle::DeviceHandle;
use crate::errors;
use crate::lent_memory::{LentMemory, Piece, Pieces};
use crate::on_device::OnStream;
use crate::request::{element_type, len_bytes, read_group, read_op};
use crate::waiting::{wait_until_done, wait_within};
use crate::world::{self, Job};

/// How long a thread sleeps while another one takes the outcomes of the same batch.
const RETRY_AFTER: Duration = Duration::from_micros(20);

/// What stays the same from one iteration to the next.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct GradientBatch {
    group: GroupId,
    members: Vec<Member>,
}

struct Member {
    /// Of the type in which the gradient travels.
    request: Request,
    len_bytes: usize,
    /// The type in which it lies in memory.
    dtype: Dtype,
}

#[pymethods]
impl GradientBatch {
    /// Members by name, shape and element type, and the reduction of all of them. With `batch`, a name that is the same
    /// on all ranks, they run together or not at all. With `travel_type` those on devices travel in that narrower type.
    #[new]
    #[pyo3(signature = (members, op, prescale, postscale, group, batch, travel_type=None))]
    fn new(
        members: Vec<(String, Vec<u64>, u8)>,
        op: u8,
        prescale: f64,
        postscale: f64,
        group: i64,
        batch: Option<&str>,
        travel_type: Option<u8>,
    ) -> PyResult<GradientBatch> {
        let travel_type = travel_type.map(element_type).transpose()?;
        let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
        let count = u32::try_from(members.len()).map_err(|_| PyValueError::new_err("a batch of too many gradients"))?;
        let batch = batch.map(|name| Batch { name: name.into(), members: count });
        let members = members.into_iter().map(|(name, shape, dtype)| {
            let dtype = element_type(dtype)?;
            let len_bytes = len_bytes(&shape, dtype)?;
            let travel_type = travel_type.unwrap_or(dtype);
            let request = Request::new(name, collective.clone(), travel_type, shape).in_batch(batch.clone());
            Ok(Member { request, len_bytes, dtype })
        });
        Ok(GradientBatch { group: read_group(group)?, members: members.collect::<PyResult<_>>()? })
    }

    /// Submits all members, each with the memory at its address. The owners, in the same order, live until all are
    /// done.
    fn submit(&self, addresses: &Bound<'_, PyList>, owners: &Bound<'_, PyTuple>) -> PyResult<BatchHandle> {
        let job = world::current()?;
        let memory = self.lend(addresses, owners)?;
        let submissions = self.members.iter().zip(memory.pieces()).map(|(member, piece)| {
            let region = memory.region(piece, member.dtype)?;
            Ok(Submission::new(member.request.clone(), region).in_group(self.group))
        });
        BatchHandle::submit(&job, submissions.collect::<PyResult<_>>()?)
    }

    /// The same for memory on a device (its number and the handle of a stream), which holds its data when the stream
    /// has done what it has.
    fn submit_on_device(
        &self,
        addresses: &Bound<'_, PyList>,
        owners: &Bound<'_, PyTuple>,
        device: (u32, u64),
    ) -> PyResult<DeviceHandle> {
        let job = world::current()?;
        let place = OnStream::record(device.0, device.1)?;
        let memory = self.lend(addresses, owners)?;
        let submissions = self.members.iter().zip(memory.pieces()).map(|(member, piece)| {
            place.submission(member.request.clone(), &memory, piece, member.dtype).in_group(self.group)
        });
        DeviceHandle::submit(&job, submissions.collect(), place)
    }

    fn __len__(&self) -> usize {
        self.members.len()
    }
}

impl GradientBatch {
    /// Registers the memory of all members.
    fn lend(&self, addresses: &Bound<'_, PyList>, owners: &Bound<'_, PyTuple>) -> PyResult<Arc<LentMemory>> {
        if addresses.len() != self.members.len() || owners.len() != self.members.len() {
            return Err(PyValueError::new_err(format!(
                "a batch of {} gradients was given {} addresses and {} owners",
                self.members.len(),
                addresses.len(),
                owners.len()
            )));
        }
        let pieces = self.members.iter().zip(addresses.iter()).map(|(member, address)| {
            let name = Arc::clone(&member.request.name);
            Ok(Piece { address: address.extract()?, len_bytes: member.len_bytes, name })
        });
        // One hold on all owners, which every region shares.
        let pieces = Pieces::Many(pieces.collect::<PyResult<_>>()?);
        Ok(LentMemory::register(owners.clone().into_any().unbind(), pieces))
    }
}

/// Says which gradients an optimizer reduces in every step, from the step on whose gradients have just been submitted.
#[pyfunction]
pub(crate) fn declare_gradients(group: i64, names: Vec<String>) -> PyResult<()> {
    let names = names.into_iter().map(Arc::from).collect();
    world::current()?.world.engine().reduces(read_group(group)?, names);
    Ok(())
}

/// Allreduces that were submitted together and are waited for together.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct BatchHandle {
    tickets: Vec<Ticket>,
    job: Weak<Job>,
    /// Set by the thread that takes the outcomes: the first one that has seen all tickets done.
    taking: AtomicBool,
    /// The first error, once all outcomes have been taken.
    error: OnceLock<Option<EngineError>>,
}

#[pymethods]
impl BatchHandle {
    /// Whether all are done, successfully or not.
    fn poll(&self) -> bool {
        self.tickets.iter().all(Ticket::is_done)
    }

    /// Waits until all are done. Raises the first error.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_until_done(py, |index| &self.tickets[index], self.tickets.len())?;
        match self.take_outcomes(py) {
            None => Ok(()),
            Some(error) => Err(errors::of_job(&self.job, error.clone())),
        }
    }

    /// Waits until all are done or so many seconds have passed; says whether they are done.
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let (begun, limit) = (Instant::now(), Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        // The last first: it is most likely the last to be done.
        for ticket in self.tickets.iter().rev().filter(|ticket| !ticket.is_done()) {
            if !wait_within(py, ticket, limit.saturating_sub(begun.elapsed()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn __len__(&self) -> usize {
        self.tickets.len()
    }

    fn __repr__(&self) -> String {
        let done = self.tickets.iter().filter(|ticket| ticket.is_done()).count();
        format!("<farandole._native.BatchHandle, {done} of {} done>", self.tickets.len())
    }
}

impl BatchHandle {
    /// Submits requests whose results go to their own memory.
    pub(crate) fn submit(job: &Arc<Job>, submissions: Vec<Submission>) -> PyResult<BatchHandle> {
        let engine = job.world.engine();
        let tickets: std::result::Result<Vec<Ticket>, EngineError> =
            submissions.into_iter().map(|submission| engine.submit(submission)).collect();
        let tickets = tickets.map_err(|error| errors::raised(job.world.report(error)))?;
        let (taking, error) = (AtomicBool::new(false), OnceLock::new());
        Ok(BatchHandle { tickets, job: Arc::downgrade(job), taking, error })
    }

    /// Releases all memory that was lent, and returns the first error. Releasing may run Python code and with it other
    /// threads, so no lock is held; a second thread waits until the first one has finished.
    fn take_outcomes(&self, py: Python<'_>) -> Option<&EngineError> {
        if !self.taking.swap(true, Ordering::Relaxed) {
            let (mut first, mut lent) = (None, Vec::new());
            for ticket in &self.tickets {
                match ticket.poll().expect("invariant: all tickets are done before their outcomes are taken") {
                    Ok(outcome) => lent.push(outcome),
                    Err(error) => drop(first.get_or_insert(error)),
                }
            }
            drop(lent);
            return self.error.get_or_init(|| first).as_ref();
        }
        loop {
            match self.error.get() {
                Some(error) => return error.as_ref(),
                None => py.detach(|| std::thread::sleep(RETRY_AFTER)),
            }
        }
    }
}
