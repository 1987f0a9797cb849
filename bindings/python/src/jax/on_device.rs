//! Calls of programs that XLA runs on a GPU.
//!
//! XLA queues a program's work in a stream and calls us when it comes to a collective. What the operands hold is there
//! when the stream has come so far, which an event tells the engine. The call returns when the results are there, or,
//! where the host runs ahead (FARANDOLE_ASYNC_COMPLETION), when the ranks have queued the collective on their devices:
//! the stream then waits for the event behind it, and XLA goes on queueing. It keeps operands and results until its
//! stream has passed.
//!
//! XLA hears nothing of what goes wrong after that, because a rank is lost. It is returned by the next call, or raised
//! by whoever asks ([`jax_raise_late`]): calls outside of compiled functions do, and `shutdown`.
//!
//! What the ranks cannot work on there goes through host memory, and is waited for.
//!
//! This is an unsafe module: it lends the memory of operands and results to the engine.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farandole::device::{self, Event};
use farandole::{Device, EngineError, ErrorClass, Submission};
use pyo3::prelude::*;

use super::call::{self, Asked, Memory};
use crate::errors;
use crate::on_device;
use crate::op_calls;
use crate::op_error::OpError;
use crate::settings;
use crate::world::Job;
use crate::xla_ffi::Buffer;
use crate::xla_ffi::element_type::dtype_of;

/// Behind what streams of XLA's wait for and no host has waited for. Locked for a moment by threads of XLA's and by
/// those that ask for errors.
static UNDER_WAY: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// Carries a call out in the memory of the device that XLA runs it on.
pub(super) fn execute(
    asked: Asked,
    operands: &[Buffer],
    results: &[Buffer],
    (ordinal, stream): (u32, u64),
) -> Result<(), OpError> {
    let job = op_calls::current()?;
    let device = on_device::open(ordinal).map_err(|error| OpError::wrong_use(error.to_string()))?;
    let ready = device.record_in(stream).map_err(failed)?;
    let submissions = asked.submissions(&job, operands, results, Memory::OnDevice(ordinal))?;
    if !works_there(&job, &submissions)? {
        drop((job, submissions));
        return execute_staged(&asked, operands, results, &device, &ready);
    }
    let runs_ahead = settings::runs_ahead();
    let submissions = submissions.into_iter().map(|mut submission| {
        if submission.input.is_some() {
            submission.request.device = Device::Gpu(ordinal);
        }
        Submission { runs_ahead, ..submission.ready_after(ready.clone()) }
    });
    let tickets = job.world.engine().submit_quietly(submissions);
    // The thread that ends the job waits until no other thread holds it.
    let weak = Arc::downgrade(&job);
    drop(job);
    // All of them, before anything is said. XLA reuses the memory of operands and results after an error, and their
    // regions have no owner: neither a request whose sibling was refused nor a queued result may be left behind.
    let answers = tickets.wait_returning();
    asked.note_end();
    let queued: Vec<Event> = answers.iter().flatten().filter_map(|outcome| outcome.after.clone()).collect();
    let waits = queued.iter().try_for_each(|after| after.make_wait(stream)).map_err(failed);
    note_under_way(queued.into_iter());
    waits?;
    let outcomes = op_calls::outcomes_of(answers, &weak)?;
    asked.check(&outcomes, &dims_of(results))
}

/// Reads memory of a device, as it is when the stream has come so far.
pub(super) fn reader(
    (ordinal, stream): (u32, u64),
) -> Result<impl FnMut(u64, &mut [u8]) -> Result<(), OpError>, OpError> {
    let device = on_device::open(ordinal).map_err(|error| OpError::wrong_use(error.to_string()))?;
    let ready = device.record_in(stream).map_err(failed)?;
    while !ready.has_happened().map_err(failed)? {
        std::thread::sleep(on_device::LOOK_EVERY);
    }
    Ok(move |address, bytes: &mut [u8]| device.read_and_wait(address, bytes).map_err(failed))
}

/// Streams wait for these.
fn note_under_way(events: impl Iterator<Item = Event>) {
    let mut under_way = lock();
    under_way.extend(events);
    // They happen in their order. A device that has failed computes nothing more.
    let done = under_way.iter().take_while(|event| event.has_happened().unwrap_or(true)).count();
    under_way.drain(..done);
}

fn dims_of(buffers: &[Buffer]) -> Vec<Vec<u64>> {
    buffers.iter().map(|buffer| buffer.dims.clone()).collect()
}

/// Whether the ranks work on this where it lies; all of them get the same answer.
fn works_there(job: &Job, submissions: &[Submission]) -> Result<bool, OpError> {
    for submission in submissions.iter().filter(|submission| submission.input.is_some()) {
        let request = &submission.request;
        let works = job.world.engine().works_on_devices(submission.group, &request.collective, request.dtype);
        if !works.map_err(|error| OpError::from(&error))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Carries a call out in host memory, and waits for it: groups across hosts, FARANDOLE_PLANE=staged.
fn execute_staged(
    asked: &Asked,
    operands: &[Buffer],
    results: &[Buffer],
    device: &device::Device,
    ready: &device::Event,
) -> Result<(), OpError> {
    while !ready.has_happened().map_err(failed)? {
        std::thread::sleep(on_device::LOOK_EVERY);
    }
    let mut inputs = Vec::with_capacity(operands.len());
    for operand in operands {
        let mut copy = HostCopy::of(operand)?;
        device.read_and_wait(operand.address(), copy.bytes()).map_err(failed)?;
        inputs.push(copy);
    }
    let mut outputs = results.iter().map(HostCopy::of).collect::<Result<Vec<HostCopy>, OpError>>()?;
    let lent = |copies: &mut [HostCopy], like: &[Buffer]| -> Vec<Buffer> {
        copies.iter_mut().zip(like).map(|(copy, like)| like.moved_to(copy.bytes())).collect()
    };
    let (host_operands, host_results) = (lent(&mut inputs, operands), lent(&mut outputs, results));
    call::execute_here(asked, &host_operands, &host_results)?;
    for (copy, result) in outputs.iter_mut().zip(results) {
        device.write_and_wait(result.address(), copy.bytes()).map_err(failed)?;
    }
    Ok(())
}

/// Host memory for an operand or a result, aligned for every element type.
struct HostCopy {
    words: Vec<u64>,
    len_bytes: usize,
}

impl HostCopy {
    fn of(buffer: &Buffer) -> Result<HostCopy, OpError> {
        let elems: u64 = buffer.dims.iter().product();
        let len_bytes = elems as usize * dtype_of(buffer.primitive_type)?.size_bytes();
        Ok(HostCopy { words: vec![0; len_bytes.div_ceil(size_of::<u64>())], len_bytes })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the words have at least so many bytes, and bytes have no invariant.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len_bytes) }
    }
}

/// The job has ended: nothing is under way any more.
pub(crate) fn forget() {
    lock().clear();
}

/// Waits for the collectives of programs on GPUs, and raises what went wrong.
#[pyfunction]
pub(crate) fn jax_raise_late(py: Python<'_>) -> PyResult<()> {
    let under_way = std::mem::take(&mut *lock());
    if under_way.is_empty() {
        return Ok(());
    }
    let is_over = || under_way.iter().all(|event| event.has_happened().unwrap_or(true));
    while !py.detach(|| on_device::happens_soon(is_over)) {
        py.check_signals()?;
    }
    // An engine that was shut down has done before what was queued.
    match op_calls::current().ok().and_then(|job| job.world.engine().failure()) {
        Some(error @ EngineError::Failed(_)) => Err(errors::of_engine(error)),
        _ => Ok(()),
    }
}

fn failed(error: device::Error) -> OpError {
    OpError::ended(ErrorClass::Other, error)
}

fn lock() -> MutexGuard<'static, Vec<Event>> {
    // Valid between any two statements, also if a holder panicked.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}
