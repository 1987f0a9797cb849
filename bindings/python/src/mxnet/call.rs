//! One call of a collective: pushed to MXNet's engine, submitted to ours, and back: [`MxnetCall`].
//!
//! MXNet's engine runs a pushed operation when the arrays that it names are ready, in the order of priorities. What it
//! runs here submits the requests and returns; the thread of `calls` is told of their end, and tells MXNet's engine. So
//! no thread of MXNet's waits for other ranks, and any number of collectives may be under way in any order.
//!
//! An operation that depends on an array with an error is not run: MXNet passes the error on to what it would have
//! written and deletes the operation, which is how we learn of it ([`Fault::Skipped`]).
//!
//! Invariants: MXNet is told of the end once, after the engine has given all memory back. Arrays live until then.
//! Nothing here needs the interpreter's lock, except to answer Python.
//!
//! This is an unsafe module: MXNet calls into it with addresses, and it lends the memory of arrays.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use farandole::{Batch, Collective, Dtype, GroupId, Outcome, Region, Request, Submission};

use super::api::{HOST, PRIORITIZED, api, check};
use super::array::Array;
use super::complete::OnComplete;
use super::fault::Fault;
use crate::calls::{self, Answer};
use crate::library::Opaque;
use crate::world::Job;

/// What is asked for, for each of some arrays.
pub(super) struct Call {
    pub(super) collective: Collective,
    pub(super) group: GroupId,
    /// Several arrays run together or not at all.
    pub(super) batch: Option<Arc<str>>,
    /// Of MXNet's engine and of ours.
    pub(super) priority: i32,
    pub(super) members: Vec<Member>,
}

/// One array of a call.
pub(super) struct Member {
    pub(super) name: Arc<str>,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: Dtype,
    pub(super) len_bytes: usize,
    pub(super) input: Array,
    pub(super) result: Place,
}

/// Where the result of a member goes.
pub(super) enum Place {
    /// To its own memory.
    Input,
    /// To an array that is as large as the result.
    Array(Array, usize),
    /// To memory of the engine's: only the ranks together know how large it is.
    Engine,
}

/// What a member leaves.
pub(super) struct Made {
    pub(super) shape: Vec<u64>,
    pub(super) received_splits: Vec<u64>,
    /// With [`Place::Engine`].
    pub(super) memory: Option<Region>,
}

/// What has come of a call. Changed by the thread that ends it; waited for by threads of Python's.
#[derive(Default)]
pub(super) struct Progress {
    ended: Mutex<Option<Result<Vec<Made>, Fault>>>,
    bell: Condvar,
}

impl Progress {
    /// Waits until the call has ended or the time is up, and says whether it has ended.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let ended = self.bell.wait_timeout_while(self.lock(), at_most, |ended| ended.is_none());
        ended.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// What has come of it, if it has ended.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Result<Vec<Made>, Fault>>> {
        // Valid between any two statements, also if a holder panicked.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, how: Result<Vec<Made>, Fault>) {
        self.lock().get_or_insert(how);
        self.bell.notify_all();
    }
}

/// What MXNet's engine holds from the push to the end.
struct Pushed {
    /// Taken by the run.
    call: Mutex<Option<Call>>,
    progress: Arc<Progress>,
    _counted: Counted,
}

/// Operations that MXNet's engine holds. Counted by threads that push and by MXNet's; read by the thread that ends the
/// job.
static PUSHED: AtomicUsize = AtomicUsize::new(0);

/// One of them.
struct Counted;

impl Counted {
    fn new() -> Counted {
        PUSHED.fetch_add(1, Ordering::AcqRel);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        PUSHED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether every operation that was pushed is over.
pub(super) fn all_ended() -> bool {
    PUSHED.load(Ordering::Acquire) == 0
}

/// Pushes a call to MXNet's engine. The error is MXNet's.
pub(super) fn push(call: Call) -> Result<Arc<Progress>, String> {
    let progress = Arc::new(Progress::default());
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut seen = Vec::new();
    for member in &call.members {
        member.input.put_into_rows();
        match &member.result {
            // Parts of one array have one variable; an operation that named it twice would wait for itself.
            Place::Input if seen.contains(&member.input.variable()) => {}
            Place::Input => {
                seen.push(member.input.variable());
                writes.push(member.input.raw());
            }
            Place::Array(output, _) => {
                reads.push(member.input.raw());
                writes.push(output.raw());
            }
            Place::Engine => reads.push(member.input.raw()),
        }
    }
    let priority = call.priority;
    let (call, counted) = (Mutex::new(Some(call)), Counted::new());
    let pushed = Box::new(Pushed { call, progress: Arc::clone(&progress), _counted: counted });
    // SAFETY: all arrays live: those of the call until `delete`. MXNet deletes what was pushed once, also if it
    // refuses.
    let code = unsafe {
        (api().push)(
            run,
            Box::into_raw(pushed).cast(),
            delete,
            &raw const HOST,
            reads.as_ptr(),
            reads.len() as c_int,
            writes.as_ptr(),
            writes.len() as c_int,
            &raw const PRIORITIZED,
            priority,
            c"farandole".as_ptr(),
            false,
        )
    };
    check(code)?;
    Ok(progress)
}

/// MXNet's engine runs the operation.
unsafe extern "C" fn run(_context: Opaque, on_complete: Opaque, pushed: Opaque) {
    // SAFETY: MXNet passes its callback, and what `push` has made, which lives until the operation is over.
    let (on_complete, pushed) = unsafe { (OnComplete::copy(on_complete), &*pushed.cast::<Pushed>()) };
    let call = pushed.call.lock().unwrap_or_else(PoisonError::into_inner).take();
    let progress = Arc::clone(&pushed.progress);
    let call = call.expect("invariant: MXNet runs an operation once");
    if let Err((fault, on_complete)) = start(call, progress.clone(), on_complete) {
        finish(&progress, Err(fault), on_complete);
    }
}

/// MXNet's engine has done with the operation, or has not run it.
unsafe extern "C" fn delete(pushed: Opaque) {
    // SAFETY: made by `push`; MXNet deletes it once.
    let pushed = unsafe { Box::from_raw(pushed.cast::<Pushed>()) };
    // After a run this changes nothing.
    if pushed.call.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        pushed.progress.end(Err(Fault::Skipped));
    }
}

/// Submits the requests. If there is nothing to wait for, the callback comes back.
fn start(call: Call, progress: Arc<Progress>, on_complete: OnComplete) -> Result<(), (Fault, OnComplete)> {
    let prepare = || {
        let (current, job) = calls::current().ok_or(Fault::NotInitialized)?;
        let calls = current.calls(&job).ok_or(Fault::NoThread)?;
        let in_engine: Vec<bool> = call.members.iter().map(|member| matches!(member.result, Place::Engine)).collect();
        Ok((calls, job, in_engine, call.submissions()?))
    };
    let (calls, job, in_engine, submissions) = match calls::guarded(prepare, Fault::Bug) {
        Ok(prepared) => prepared,
        Err(fault) => return Err((fault, on_complete)),
    };
    let end = move |answers: Vec<Answer>, job: &Weak<Job>| {
        let made = calls::guarded(|| collect(answers, &in_engine, job), Fault::Bug);
        finish(&progress, made, on_complete);
    };
    calls.submit(&job, submissions, Box::new(end));
    Ok(())
}

/// What the members of a call leave, or the first error. Whatever was lent is given back.
fn collect(answers: Vec<Answer>, in_engine: &[bool], job: &Weak<Job>) -> Result<Vec<Made>, Fault> {
    let made = answers.into_iter().zip(in_engine).map(|(answer, &in_engine)| match answer {
        Ok(Outcome { shape, received_splits, output, .. }) => {
            Ok(Made { shape, received_splits, memory: output.filter(|_| in_engine) })
        }
        Err(returned) => Err(Fault::of(job, returned.error)),
    });
    // All of them, also behind an error: the memory of each is given back.
    let made: Vec<Result<Made, Fault>> = made.collect();
    made.into_iter().collect()
}

/// Tells Python's threads and MXNet's engine.
fn finish(progress: &Progress, made: Result<Vec<Made>, Fault>, on_complete: OnComplete) {
    let text = made.as_ref().err().map(Fault::text);
    progress.end(made);
    on_complete.run(text.as_deref());
}

impl Call {
    /// The requests, with the memory of the arrays.
    fn submissions(self) -> Result<Vec<Submission>, Fault> {
        let Call { collective, group, batch, priority, members } = self;
        let count = members.len() as u32;
        let batch = batch.map(|name| Batch { name, members: count });
        let submission = |member: Member| {
            let Member { name, shape, dtype, len_bytes, input, result } = member;
            let request =
                Request::new(name, collective.clone(), dtype, shape).in_batch(batch.clone()).with_priority(priority);
            let submission = Submission::new(request, lend(input, len_bytes, dtype)?).in_group(group);
            Ok(match result {
                Place::Array(output, len_bytes) => submission.with_output(lend(output, len_bytes, dtype)?),
                Place::Input | Place::Engine => submission,
            })
        };
        members.into_iter().map(submission).collect()
    }
}

/// The memory of an array that MXNet's engine has given us, with the array as its owner.
fn lend(array: Array, len_bytes: usize, dtype: Dtype) -> Result<Region, Fault> {
    let data = array.data().map_err(Fault::MXNet)?;
    // SAFETY: MXNet runs the operation that named this array: until it is told of the end, which is when the region is
    // gone, nobody writes the data, and nobody reads it if it was named as written. The array keeps it alive.
    Ok(unsafe { Region::from_raw_parts(data, len_bytes, dtype, array) })
}
