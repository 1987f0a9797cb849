//! Parameters that a JAX program hands to the reduction of its gradients, compared with those of other ranks.
//!
//! They are operands behind the gradients. When the call runs for the first time, or as often as is asked for, it makes
//! digests of them, and a thread compares these with the other ranks': the program does not wait for it. Calls of one
//! name have one count of steps, and threads take their turns, in the order of the calls, which is the same on all
//! ranks.
//!
//! Comparing continues after a difference was found; only the warning is not repeated. Ranks find a difference at
//! different times, so a rank that stopped comparing would let others wait for it.
//!
//! On a GPU the call waits until its stream has come so far and copies samples to the host.
//!
//! This is an unsafe module: it reads the memory of operands, which XLA keeps until the call returns.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};

use farandole::parameter_check::{CheckSchedule, Depth, Due, MatchedBy, ParameterList, request, sample_of};
use farandole::{EngineError, GroupId, ReduceOp, Region, Submission};
use pyo3::prelude::*;

use crate::op_error::OpError;
use crate::world::Job;
use crate::xla_ffi::Buffer;
use crate::xla_ffi::element_type::dtype_of;

/// What ranks ask for each other's digests under.
const NAME: &str = "check_parameters";

/// What gives all ranks the same parameters.
const REMEDY: &str = "hvd.broadcast_parameters(params, root_rank=0)";

/// The counts of steps, of the job that is now; by the names of calls and their groups. Locked for a moment by threads
/// that run programs.
static COUNTS: Mutex<Counts> = Mutex::new(Counts { job: Weak::new(), by_call: None });

/// The last thread that compares. Locked by threads that begin another one or wait for it.
static LAST: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

struct Counts {
    job: Weak<Job>,
    by_call: Option<HashMap<(Arc<str>, GroupId), Call>>,
}

/// The calls of one name in one group.
struct Call {
    schedule: CheckSchedule,
    has_warned: bool,
}

/// Copies memory of a device, from this address on.
type Read<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), OpError> + 'a;

/// A call of this name runs: is a check due?
pub(super) fn due(job: &Arc<Job>, call: &Arc<str>, group: GroupId) -> Option<Due> {
    let mut counts = lock(&COUNTS);
    if !Weak::ptr_eq(&counts.job, &Arc::downgrade(job)) {
        *counts = Counts { job: Arc::downgrade(job), by_call: None };
    }
    let engine = job.world.engine();
    let by_call = counts.by_call.get_or_insert_default();
    let call = by_call.entry((Arc::clone(call), group)).or_insert_with(|| {
        let is_alone = engine.group(group).is_ok_and(|members| members.len() == 1);
        let every = if is_alone { Some(0) } else { engine.config().check_parameters };
        Call { schedule: CheckSchedule::new(every, 0), has_warned: false }
    });
    call.schedule.next_step()
}

/// Compares parameters with these names, which lie in host memory, or are read from a device.
pub(super) fn compare(
    job: &Arc<Job>,
    call: &Arc<str>,
    group: GroupId,
    due: Due,
    names: &str,
    operands: &[Buffer],
    mut read: Option<&mut Read<'_>>,
) -> Result<(), OpError> {
    let mut list = ParameterList::new(MatchedBy::Place);
    for (name, operand) in names.lines().zip(operands) {
        let elems: u64 = operand.dims.iter().product();
        let len_bytes = elems as usize * dtype_of(operand.primitive_type)?.size_bytes();
        match &mut read {
            // SAFETY: XLA keeps operands, unwritten, until the call returns.
            None => list.add(name, unsafe { operand.bytes(len_bytes) }, due.depth),
            Some(read) => {
                let blocks: Vec<_> = match due.depth {
                    Depth::Sample => sample_of(len_bytes).collect(),
                    Depth::Whole => std::iter::once(0..len_bytes).collect(),
                };
                let mut bytes = vec![0; blocks.iter().map(ExactSizeIterator::len).sum()];
                let mut rest = &mut bytes[..];
                for block in blocks.into_iter().filter(|block| !block.is_empty()) {
                    let (part, behind) = rest.split_at_mut(block.len());
                    read(operand.address() + block.start as u64, part)?;
                    rest = behind;
                }
                list.add_digest(name, len_bytes, farandole::elastic::state_digest(&bytes));
            }
        }
    }
    let (job, call) = (Arc::downgrade(job), Arc::clone(call));
    let mut last = lock(&LAST);
    let before = last.take();
    let turn = move || {
        // Threads of ours do not panic: there is nothing to be done about one that did.
        drop(before.map(JoinHandle::join));
        // Callers that wait for the job's collectives get the cause.
        drop(with_other_ranks(&job, &call, group, due, list));
    };
    *last = Builder::new().name("parameters".into()).spawn(turn).ok();
    Ok(())
}

fn with_other_ranks(
    weak: &Weak<Job>,
    call: &Arc<str>,
    group: GroupId,
    due: Due,
    mut list: ParameterList,
) -> Result<(), EngineError> {
    let job = weak.upgrade().ok_or(EngineError::ShutDown)?;
    let members = job.world.engine().group(group)?;
    let Some(place) = job.world.engine().rank_in(group)? else { return Ok(()) };
    // The thread that ends the job waits until no other thread holds it.
    drop(job);
    let allreduce = |name: &str, values: Vec<u64>, op: ReduceOp| -> Result<Vec<u64>, EngineError> {
        let submission = Submission::new(request(name, &values, op), Region::from_vec(values)).in_group(group);
        let ticket = weak.upgrade().ok_or(EngineError::ShutDown)?.world.engine().submit(submission)?;
        let region = ticket.wait()?.into_result().and_then(|region| region.into_vec().ok());
        Ok(region.expect("invariant: it was lent as a vector"))
    };
    if let Some(found) = list.compare_by(NAME, &members, place.index(), allreduce)? {
        let mut counts = lock(&COUNTS);
        let call = counts.by_call.as_mut().and_then(|all| all.get_mut(&(Arc::clone(call), group)));
        let has_warned = call.is_some_and(|call| std::mem::replace(&mut call.has_warned, true));
        drop(counts);
        if !has_warned {
            found.warn(due, REMEDY);
        }
    }
    Ok(())
}

/// Waits until parameters that programs have handed over are compared. They are compared by all ranks or, if one is
/// lost, the comparison fails.
#[pyfunction]
pub(crate) fn jax_finish_comparing(py: Python<'_>) {
    py.detach(|| {
        let last = lock(&LAST).take();
        drop(last.map(JoinHandle::join));
    });
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Valid between any two statements, also if a holder panicked.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
