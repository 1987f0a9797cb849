//! Calls of TensorFlow's kernels: what [`crate::op_calls`] carries out, and TensorFlow's callback at the end.
//!
//! An op that Python runs eagerly is waited for by its caller anyway, and so is carried out on the caller's thread: no
//! other thread is woken for it.
//!
//! Invariant: a kernel's callback runs once, after all its requests have been answered, so that the engine no longer
//! has its memory.
//!
//! This is an unsafe module: it keeps the addresses of kernels and contexts, which TensorFlow keeps alive until the
//! callback has run.

#![allow(unsafe_code)]

use std::sync::Arc;

use farandole::Outcome;

use super::api::{Opaque, Status, api};
use super::done::{self, Done};
use super::kernel::Kernel;
use crate::op_calls::{current, guarded, outcomes_of, prepare};
use crate::op_error::OpError;

/// What TensorFlow keeps alive until the callback has run.
#[derive(Clone, Copy)]
struct KernelCall {
    kernel: *const Kernel,
    context: Opaque,
}

// SAFETY: TensorFlow's contexts may be used by any thread until the callback has run, by one at a time; a kernel is
// only read.
unsafe impl Send for KernelCall {}

/// A call of an asynchronous kernel.
///
/// # Safety
/// What TensorFlow passes to such a kernel.
pub(crate) unsafe fn compute_async(kernel: *const Kernel, context: Opaque, callback: Opaque) {
    // SAFETY: promised by the caller.
    let done = unsafe { if (*kernel).caller_waits { None } else { Done::copy(callback) } };
    let Some(done) = done else {
        // SAFETY: promised by the caller; nothing of the call is in use when it has been computed.
        unsafe {
            compute(kernel, context);
            done::run_original(callback);
        }
        return;
    };
    let call = KernelCall { kernel, context };
    // SAFETY: the callback runs after everything has been answered.
    if let Err(error) = unsafe { start(call, done) } {
        let (error, done) = error;
        // SAFETY: the callback has not run.
        unsafe { call.fail(&error) };
        done.run();
    }
}

/// A call of a kernel that is over when it returns.
///
/// # Safety
/// What TensorFlow passes to a kernel.
pub(crate) unsafe fn compute(kernel: *const Kernel, context: Opaque) {
    let call = KernelCall { kernel, context };
    // SAFETY: promised by the caller; nothing of the call is in use when it is over.
    unsafe {
        if let Err(error) = guarded(|| compute_blocking(call)) {
            call.fail(&error);
        }
    }
}

/// # Safety
/// As for [`compute`].
unsafe fn compute_blocking(call: KernelCall) -> Result<(), OpError> {
    let job = current()?;
    // SAFETY: promised by the caller.
    let kernel = unsafe { &*call.kernel };
    if kernel.kind.is_local() {
        // SAFETY: promised by the caller.
        return unsafe { kernel.answer_locally(&job, call.context) };
    }
    // SAFETY: promised by the caller: the call is over after all memory has been given back, below.
    let submissions = unsafe { kernel.submissions(&job, call.context)? };
    let tickets = job.world.engine().submit_quietly(submissions);
    // The thread that ends the job waits until no other thread holds it.
    let weak = Arc::downgrade(&job);
    drop(job);
    // All of them, before anything is said: the engine works on the memory of the others.
    let answers = tickets.wait_returning();
    // SAFETY: the call is not over.
    unsafe { call.set_outputs(outcomes_of(answers, &weak)?) }
}

/// Submits a call's requests. If there is nothing to wait for, the callback comes back.
///
/// # Safety
/// As for [`compute_async`].
unsafe fn start(call: KernelCall, done: Done) -> Result<(), (OpError, Done)> {
    // SAFETY: promised by the caller.
    let prepared = match prepare(|job| unsafe { (*call.kernel).submissions(job, call.context) }) {
        Ok(prepared) => prepared,
        Err(error) => return Err((error, done)),
    };
    prepared.submit(Box::new(move |outcomes| {
        let call = call;
        // SAFETY: the callback runs below.
        unsafe {
            if let Err(error) = guarded(|| call.set_outputs(outcomes?)) {
                call.fail(&error);
            }
        }
        done.run();
    }));
    Ok(())
}

impl KernelCall {
    /// Gives TensorFlow the results.
    ///
    /// # Safety
    /// The callback of the call has not run.
    unsafe fn set_outputs(&self, outcomes: Vec<Outcome>) -> Result<(), OpError> {
        for (index, outcome) in outcomes.into_iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe { (*self.kernel).put_result(self.context, index, outcome)? };
        }
        Ok(())
    }

    /// # Safety
    /// The callback of the call has not run.
    unsafe fn fail(&self, error: &OpError) {
        let status = Status::new();
        status.set(error.code, &error.text);
        // SAFETY: promised by the caller.
        unsafe { (api().compute_failed)(self.context, status.raw()) };
    }
}
