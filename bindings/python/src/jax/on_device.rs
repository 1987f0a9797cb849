//! Calls of programs that XLA runs on a GPU.
//!
//! XLA queues a program's work in a stream and calls us when it comes to a collective. What the operands hold is there
//! when the stream has come so far, which an event tells the engine; and what comes after the collective waits in the
//! stream for a signal, which the engine sets when the requests are over. So the call returns at once, and XLA goes on
//! queueing. It keeps operands and results until its stream has passed.
//!
//! XLA hears nothing of what goes wrong later. It is returned by the next call, or raised by whoever asks
//! ([`jax_raise_late`]): calls outside of compiled functions do, and `shutdown`. So that what ranks refuse is told
//! where it was asked for, a call that has not gone well yet is waited for here; without a word of the user's
//! (FARANDOLE_ASYNC_COMPLETION) every call is, because running ahead can deadlock (docs/gpu.md).
//!
//! What the ranks cannot work on there goes through host memory, and is waited for.
//!
//! The invariant: requests of one name are not under way twice. A program that is queued again while its last run is
//! under way waits here, at its first collective; so the host is one run ahead at most.
//!
//! This is an unsafe module: it lends the memory of operands and results to the engine.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farandole::device;
use farandole::{Device, Submission, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::call::{self, Asked, Memory};
use crate::errors::HorovodInternalError;
use crate::on_device;
use crate::op_calls;
use crate::op_error::{INTERNAL_ERROR, INVALID_ARGUMENT, OpError, UNKNOWN};
use crate::settings;
use crate::world::Job;
use crate::xla_ffi::Buffer;
use crate::xla_ffi::element_type::dtype_of;

/// Locked by threads of XLA's and by those that ask for errors, and never while one waits.
static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Default)]
struct State {
    /// By name.
    under_way: HashMap<Arc<str>, Run>,
    /// What has gone well, by name and the dimensions of the operands.
    proven: HashSet<Key>,
}

type Key = (Arc<str>, Vec<Vec<u64>>);

/// One run of a call.
struct Run {
    asked: Asked,
    tickets: Vec<Ticket>,
    /// The dimensions of the results.
    dims: Vec<Vec<u64>>,
}

impl Run {
    fn is_over(&self) -> bool {
        self.tickets.iter().all(Ticket::is_done)
    }

    /// Waits until it is over; what went wrong is returned.
    fn end(self) -> Result<(), OpError> {
        let outcomes: Vec<_> = self.tickets.into_iter().map(Ticket::wait).collect();
        self.asked.note_end();
        let outcomes: Result<Vec<_>, _> = outcomes.into_iter().collect();
        let outcomes = outcomes.map_err(|error| OpError::from(&error))?;
        self.asked.check(&outcomes, &self.dims)
    }
}

/// Carries a call out in the memory of the device that XLA runs it on.
pub(super) fn execute(
    asked: Asked,
    operands: &[Buffer],
    results: &[Buffer],
    (ordinal, stream): (u32, u64),
) -> Result<(), OpError> {
    settle(|name, run| *name == asked.name || run.is_over())?;
    let job = op_calls::current()?;
    let device = on_device::open(ordinal).map_err(|error| OpError::wrong_use(error.to_string()))?;
    let ready = device.record_in(stream).map_err(failed)?;
    let submissions = asked.submissions(&job, operands, results, Memory::OnDevice(ordinal))?;
    if !works_there(&job, &submissions)? {
        drop((job, submissions));
        return execute_staged(&asked, operands, results, &device, &ready);
    }
    let signal = device.signal_of(submissions.len()).map_err(failed)?;
    let engine = job.world.engine();
    let tickets = submissions.into_iter().map(|mut submission| {
        if submission.input.is_some() {
            submission.request.device = Device::Gpu(ordinal);
        }
        engine.submit(submission.ready_after(ready.clone()).signalling(signal.clone()))
    });
    let tickets = tickets.collect::<Result<Vec<Ticket>, _>>().map_err(|error| OpError::from(&error))?;
    // The thread that ends the job waits until nobody has it.
    drop(job);
    let (name, dims) = (Arc::clone(&asked.name), dims_of(results));
    let run = Run { asked, tickets, dims };
    let key = (Arc::clone(&name), dims_of(operands));
    let is_proven = lock().as_ref().is_some_and(|state| state.proven.contains(&key));
    if !is_proven || !settings::runs_ahead() {
        run.end()?;
        lock().get_or_insert_default().proven.insert(key);
        return Ok(());
    }
    lock().get_or_insert_default().under_way.insert(name, run);
    signal.make_wait(stream).map_err(failed)
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

/// Carries a call out in host memory, and waits for it: Adasum, groups across hosts, FARANDOLE_PLANE=staged.
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

/// Ends runs of which this is said, and returns what went wrong first.
fn settle(ends: impl Fn(&Arc<str>, &Run) -> bool) -> Result<(), OpError> {
    let ended: Vec<Run> = match lock().as_mut() {
        None => return Ok(()),
        Some(state) => state.under_way.extract_if(|name, run| ends(name, run)).map(|(_, run)| run).collect(),
    };
    // All of them, before anything is said.
    let errors: Vec<OpError> = ended.into_iter().filter_map(|run| run.end().err()).collect();
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// The job has ended: nothing is under way any more.
pub(crate) fn forget() {
    *lock() = None;
}

/// Waits for the collectives of programs on GPUs, and raises what went wrong.
#[pyfunction]
pub(crate) fn jax_raise_late(py: Python<'_>) -> PyResult<()> {
    py.detach(|| settle(|_, _| true)).map_err(|error| {
        let OpError { code, text } = error;
        if code == INVALID_ARGUMENT {
            return PyValueError::new_err(text);
        }
        HorovodInternalError::new_err(text.strip_prefix(INTERNAL_ERROR).unwrap_or(&text).to_owned())
    })
}

fn failed(error: device::Error) -> OpError {
    OpError { code: UNKNOWN, text: format!("{INTERNAL_ERROR}{error}") }
}

fn lock() -> MutexGuard<'static, Option<State>> {
    // Valid between any two statements, also if a holder panicked.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
