//! Whether all ranks have the same parameters, asked by an optimizer of Python: [`ParameterCheck`].
//!
//! What is compared, and how, is in `farandole::parameter_check`. Here are the memory of the parameters, the wait for
//! the other ranks, which Ctrl-C interrupts, and the count of steps, which begins anew when the job does: after a
//! change of an elastic job all ranks count from the same moment.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use farandole::parameter_check::{CheckSchedule, Depth, Divergence, Due, MatchedBy, ParameterList, request};
use farandole::{EngineError, GroupId, ReduceOp, Region, Submission};
use pyo3::prelude::*;

use crate::errors;
use crate::lent_memory;
use crate::request::read_group;
use crate::waiting::wait_until_done;
use crate::world::{self, Job};

/// Under which ranks compare; those of one process set do so one check at a time.
const NAME: &str = "check_parameters";

/// Name, address, bytes, bytes of the parameter that this is a sample of (as many if it is all), owner.
type Piece = (String, usize, usize, usize, Py<PyAny>);

/// The checks of one optimizer.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct ParameterCheck {
    identity: MatchedBy,
    after: u64,
    remedy: String,
    /// Of the job of this process. Taken by the threads that call the optimizer, one at a time, and never while they
    /// wait.
    counted: Mutex<Counted>,
}

struct Counted {
    job: Weak<Job>,
    schedule: CheckSchedule,
    due: Option<Due>,
}

#[pymethods]
impl ParameterCheck {
    /// The first check comes after so many steps. `remedy` is what a program gives all ranks the same parameters with;
    /// `by_name` says that names are the same on all ranks, otherwise it is the order.
    #[new]
    fn new(after: u64, remedy: String, by_name: bool) -> ParameterCheck {
        let identity = if by_name { MatchedBy::Name } else { MatchedBy::Place };
        let counted = Counted { job: Weak::new(), schedule: CheckSchedule::new(Some(0), after), due: None };
        ParameterCheck { identity, after, remedy, counted: Mutex::new(counted) }
    }

    /// A step of this group begins. `None` if parameters need not be compared; otherwise whether all of their bits are
    /// (or a sample).
    fn next_step(&self, group: i64) -> PyResult<Option<bool>> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = world::peek() else { return Ok(None) };
        if !Weak::ptr_eq(&counted.job, &Arc::downgrade(&job)) {
            let engine = job.world.engine();
            let members = engine.group(read_group(group)?).map_err(errors::of_engine)?;
            let every = engine.config().check_parameters;
            let every = if members.len() > 1 { every } else { Some(0) };
            counted.job = Arc::downgrade(&job);
            counted.schedule = CheckSchedule::new(every, self.after);
        }
        counted.due = counted.schedule.next_step();
        Ok(counted.due.map(|due| due.depth == Depth::Whole))
    }

    /// Compares what [`ParameterCheck::next_step`] has asked for. All ranks of the group call this together. One of
    /// them warns of a difference; all know the name and the ranks in the minority.
    fn compare(&self, py: Python<'_>, group: i64, pieces: Vec<Piece>) -> PyResult<Option<Found>> {
        let group = read_group(group)?;
        let counted = || self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = counted().due.take() else { return Ok(None) };
        let Some(found) = compared(py, NAME, group, listed(py, self.identity, &pieces, due.depth)?)? else {
            return Ok(None);
        };
        counted().schedule.end();
        found.warn(due, &self.remedy);
        Ok(Some(found_in_words(&found)))
    }
}

/// Compares all bits of parameters with all ranks, by their order. All ranks call this together, with the same name.
/// The first that differs, and the ranks in the minority.
#[pyfunction]
pub(crate) fn compare_parameters(py: Python<'_>, name: &str, pieces: Vec<Piece>) -> PyResult<Option<Found>> {
    let list = listed(py, MatchedBy::Place, &pieces, Depth::Whole)?;
    Ok(compared(py, name, GroupId::WORLD, list)?.as_ref().map(found_in_words))
}

/// The name of a parameter, and ranks.
type Found = (String, Vec<usize>);

fn found_in_words(found: &Divergence) -> Found {
    (found.parameter.clone().unwrap_or_default(), found.minority())
}

fn compared(py: Python<'_>, name: &str, group: GroupId, mut list: ParameterList) -> PyResult<Option<Divergence>> {
    let job = world::current()?;
    let engine = job.world.engine();
    let members = engine.group(group).map_err(errors::of_engine)?;
    let Some(place) = engine.rank_in(group).map_err(errors::of_engine)? else { return Ok(None) };
    // A thread that ends the job waits until no other thread holds it.
    let weak = Arc::downgrade(&job);
    drop(job);
    list.compare_by(name, &members, place.index(), |name, values, op| allreduce(py, &weak, group, name, values, op))
}

/// Digests of parameters.
fn listed(py: Python<'_>, identity: MatchedBy, pieces: &[Piece], depth: Depth) -> PyResult<ParameterList> {
    let memory: PyResult<Vec<(&Piece, &[u8])>> =
        pieces.iter().map(|piece| Ok((piece, lent_memory::read(&piece.4, piece.1, piece.2)?))).collect();
    let memory: Vec<(&str, usize, &[u8])> =
        memory?.into_iter().map(|((name, _, _, whole_bytes, _), bytes)| (name.as_str(), *whole_bytes, bytes)).collect();
    Ok(py.detach(|| {
        let mut list = ParameterList::new(identity);
        for (name, whole_bytes, bytes) in memory {
            match bytes.len() == whole_bytes {
                true => list.add(name, bytes, depth),
                false => list.add_digest(name, whole_bytes, farandole::elastic::state_digest(bytes)),
            }
        }
        list
    }))
}

fn allreduce(
    py: Python<'_>,
    job: &Weak<Job>,
    group: GroupId,
    name: &str,
    values: Vec<u64>,
    op: ReduceOp,
) -> PyResult<Vec<u64>> {
    let submission = Submission::new(request(name, &values, op), Region::from_vec(values)).in_group(group);
    let submitted = match job.upgrade() {
        Some(job) => job.world.engine().submit(submission),
        None => Err(EngineError::ShutDown),
    };
    let ticket = submitted.map_err(|error| errors::of_job(job, error))?;
    wait_until_done(py, |_| &ticket, 1)?;
    let outcome = ticket.wait().map_err(|error| errors::of_job(job, error))?;
    Ok(outcome.into_result().and_then(|region| region.into_vec().ok()).expect("invariant: it was lent as a vector"))
}

/// Which parts of so many bytes are their sample: the number of blocks, the bytes of each, and their distance. One
/// block of everything, if that is little.
#[pyfunction]
pub(crate) fn sample_of(len_bytes: usize) -> (usize, usize, usize) {
    let mut blocks = farandole::parameter_check::sample_of(len_bytes);
    let first = blocks.next().unwrap_or_default();
    let second = blocks.next();
    (1 + usize::from(second.is_some()) + blocks.count(), first.len(), second.map_or(0, |block| block.start))
}
