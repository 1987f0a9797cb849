//! From Python arguments to submissions.
//!
//! A training step makes hundreds of these calls, so arguments are read where they lie and nothing is allocated but
//! what the engine keeps: the name, the shape and the hold on the owner. Whatever can be found wrong without asking
//! other ranks is found here or in the engine's own check, before anything is sent.

use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, EngineError, GroupId, Rank, ReduceOp, Region, Request, Submission, Ticket};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors;
use crate::gradient_batch::BatchHandle;
use crate::handle::{Handle, ResultMemory};
use crate::lent_memory;
use crate::world::{self, Job};

/// How many arguments [`allreduce`] has, and hence each tuple of [`allreduce_many`].
const ALLREDUCE_ARGUMENTS: usize = 12;

/// How many entries a tuple of [`allreduce_batch`] has: name, address, shape, element type, owner.
const TENSOR_ARGUMENTS: usize = 5;

/// A tensor as Python describes it.
pub(crate) struct Tensor<'a, 'py> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) address: usize,
    pub(crate) shape: &'a Bound<'py, PyAny>,
    pub(crate) dtype: u8,
    pub(crate) owner: &'a Bound<'py, PyAny>,
}

impl Tensor<'_, '_> {
    /// What it is, how large it is, and the memory that is lent.
    pub(crate) fn lend(&self) -> PyResult<(Vec<u64>, Dtype, Region)> {
        let shape = read_shape(self.shape)?;
        let dtype = element_type(self.dtype)?;
        let len_bytes = len_bytes(&shape, dtype)?;
        let region = lent_memory::lend(self.name, self.address, len_bytes, dtype, self.owner.clone().unbind())?;
        Ok((shape, dtype, region))
    }
}

/// Asks for the combination of all ranks' tensors. The result goes to `output` (address, owner), or in place.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position, once for each gradient")]
pub(crate) fn allreduce(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<(&str, u32)>,
    priority: i32,
    output: Option<(usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
    let request =
        Request::new(Arc::clone(name), collective, dtype, shape).in_batch(read_batch(batch)).with_priority(priority);
    let output = lend_output(output, name, &input)?;
    let submission =
        Submission { group: read_group(group)?, request, input: Some(input), output, ready: None, runs_ahead: false };
    submit(&job, submission, ResultMemory::Caller)
}

/// As [`allreduce`], for many tensors: tuples of its arguments. All of them are read before the first is asked for.
#[pyfunction]
pub(crate) fn allreduce_many(py: Python<'_>, requests: &Bound<'_, PyAny>) -> PyResult<Vec<Py<Handle>>> {
    let job = world::current()?;
    let submissions = read_each(requests, read_allreduce)?;
    submissions.into_iter().map(|submission| Py::new(py, submit(&job, submission, ResultMemory::Caller)?)).collect()
}

fn read_allreduce(arguments: &Bound<'_, PyAny>) -> PyResult<Submission> {
    let arguments = arguments.cast::<PyTuple>()?;
    let (name, shape, dtype, input) = read_tensor(arguments, ALLREDUCE_ARGUMENTS)?;
    let argument = |index: usize| arguments.get_borrowed_item(index);
    let (prescale, postscale) = (argument(6)?.extract()?, argument(7)?.extract()?);
    let collective = Collective::Allreduce { op: read_op(argument(5)?.extract()?)?, prescale, postscale };
    let output = lend_output(argument(11)?.extract()?, &name, &input)?;
    let request = Request::new(name, collective, dtype, shape)
        .in_batch(read_batch(argument(9)?.extract()?))
        .with_priority(argument(10)?.extract()?);
    Ok(Submission {
        group: read_group(argument(8)?.extract()?)?,
        request,
        input: Some(input),
        output,
        ready: None,
        runs_ahead: false,
    })
}

/// Asks for the combination of all ranks' tensors, in place, for each of `tensors`: tuples of name, address, shape,
/// element type and owner. With `batch`, a name that is the same on all ranks, they run together or not at all. All of
/// them are read before the first is submitted.
#[pyfunction]
pub(crate) fn allreduce_batch(
    tensors: &Bound<'_, PyAny>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<&str>,
) -> PyResult<BatchHandle> {
    let job = world::current()?;
    let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
    let group = read_group(group)?;
    let mut submissions = read_each(tensors, |arguments| {
        let arguments = arguments.cast::<PyTuple>()?;
        let (name, shape, dtype, input) = read_tensor(arguments, TENSOR_ARGUMENTS)?;
        Ok(Submission::new(Request::new(name, collective.clone(), dtype, shape), input).in_group(group))
    })?;
    if let Some(name) = batch {
        let members = u32::try_from(submissions.len()).expect("invariant: a list has fewer than 2^32 entries here");
        let batch = Batch { name: name.into(), members };
        submissions.iter_mut().for_each(|submission| submission.request.batch = Some(batch.clone()));
    }
    BatchHandle::submit(&job, submissions)
}

/// Reads submissions from a list, or from anything else that can be iterated over.
fn read_each(
    all: &Bound<'_, PyAny>,
    read: impl Fn(&Bound<'_, PyAny>) -> PyResult<Submission>,
) -> PyResult<Vec<Submission>> {
    match all.cast::<PyList>() {
        Ok(list) => list.iter().map(|one| read(&one)).collect(),
        Err(_) => all.try_iter()?.map(|one| read(&one?)).collect(),
    }
}

/// Name, address, shape, element type and owner: the first of a tuple of `count` arguments. The memory is lent.
fn read_tensor(arguments: &Bound<'_, PyTuple>, count: usize) -> PyResult<(Arc<str>, Vec<u64>, Dtype, Region)> {
    if arguments.len() != count {
        let what = format!("a tuple of {count} arguments was expected, not of {}", arguments.len());
        return Err(PyTypeError::new_err(what));
    }
    let argument = |index: usize| arguments.get_borrowed_item(index);
    let (name, shape, owner) = (Arc::from(argument(0)?.extract::<&str>()?), argument(2)?, argument(4)?);
    let (address, dtype) = (argument(1)?.extract()?, argument(3)?.extract()?);
    let (shape, dtype, input) = Tensor { name: &name, address, shape: &shape, dtype, owner: &owner }.lend()?;
    Ok((name, shape, dtype, input))
}

/// Asks for the tensor of `root`, a rank of the world, on all ranks of the group.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn broadcast(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    root: i64,
    group: i64,
    output: Option<(usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let group = read_group(group)?;
    let collective = Collective::Broadcast { root: rank_in_group(&job, group, root)? };
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let output = lend_output(output, name, &input)?;
    let request = Request::new(Arc::clone(name), collective, dtype, shape);
    submit(
        &job,
        Submission { group, request, input: Some(input), output, ready: None, runs_ahead: false },
        ResultMemory::Caller,
    )
}

/// Asks for all ranks' tensors, one after the other along the first dimension.
#[pyfunction]
#[pyo3(signature = (name, address, shape, dtype, owner, group, batch, output=None))]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn allgather(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    group: i64,
    batch: Option<(&str, u32)>,
    output: Option<(usize, usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let request = Request::new(Arc::clone(name), Collective::Allgather, dtype, shape).in_batch(read_batch(batch));
    submit_with_result(&job, Submission::new(request, input).in_group(read_group(group)?), output)
}

/// Sends `splits[r]` rows to each rank `r` of the group, and asks for the rows that they send here.
#[pyfunction]
#[pyo3(signature = (name, address, shape, dtype, owner, splits, group, output=None))]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn alltoall(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    splits: Option<&Bound<'_, PyAny>>,
    group: i64,
    output: Option<(usize, usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let splits = splits.map(|splits| read_numbers(splits, "splits")).transpose()?;
    let request = Request::new(Arc::clone(name), Collective::Alltoall { splits }, dtype, shape);
    submit_with_result(&job, Submission::new(request, input).in_group(read_group(group)?), output)
}

/// Asks for this rank's part, along the first dimension, of the combination of all ranks' tensors.
#[pyfunction]
#[pyo3(signature = (name, address, shape, dtype, owner, op, prescale, postscale, group, batch, output=None))]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn reducescatter(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<(&str, u32)>,
    output: Option<(usize, usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let collective = Collective::ReduceScatter { op: read_op(op)?, prescale, postscale };
    let request = Request::new(Arc::clone(name), collective, dtype, shape).in_batch(read_batch(batch));
    submit_with_result(&job, Submission::new(request, input).in_group(read_group(group)?), output)
}

/// Asks for the combination of all ranks' tensors on `root`, a rank inside the group, in place. The others' stay as
/// they are.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn reduce(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    root: u32,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let collective = Collective::Reduce { root: Rank(root), op: read_op(op)?, prescale, postscale };
    let request = Request::new(Arc::clone(name), collective, dtype, shape);
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), ResultMemory::Caller)
}

/// Asks for all ranks' tensors on `root`, a rank inside the group, one after the other along the first dimension.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn gather(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    root: u32,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let request = Request::new(Arc::clone(name), Collective::Gather { root: Rank(root) }, dtype, shape);
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), ResultMemory::Engine)
}

/// Asks for this rank's part of the tensor of `root`, a rank inside the group, which gives `splits[r]` rows to each
/// rank `r`. The others' tensors have no rows.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn scatter(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    root: u32,
    splits: Option<&Bound<'_, PyAny>>,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let splits = splits.map(|splits| read_numbers(splits, "splits")).transpose()?;
    let request = Request::new(Arc::clone(name), Collective::Scatter { root: Rank(root), splits }, dtype, shape);
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), ResultMemory::Engine)
}

/// Sends a tensor to a rank of the group, by its number there. `what` names the memory while it is lent.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn send(
    what: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    to: u32,
    tag: u32,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(what));
    let (_, _, memory) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let ticket = job.world.engine().send(read_group(group)?, Rank(to), tag, memory);
    handle_of(&job, ticket, ResultMemory::Caller)
}

/// Receives into a tensor what a rank of the group, by its number there, sends with this tag; any rank, without one.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn recv(
    what: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    from: Option<u32>,
    tag: u32,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(what));
    let (_, _, memory) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let ticket = job.world.engine().recv(read_group(group)?, from.map(Rank), tag, memory);
    handle_of(&job, ticket, ResultMemory::Caller)
}

/// Done when all ranks of the group have asked for it.
#[pyfunction]
pub(crate) fn barrier(name: &str, group: i64) -> PyResult<Handle> {
    without_memory(name, Collective::Barrier, group)
}

/// Says that this rank has no more data. Done when all ranks of the group have said so.
#[pyfunction]
pub(crate) fn join(group: i64) -> PyResult<Handle> {
    without_memory("join", Collective::Join, group)
}

fn without_memory(name: &str, collective: Collective, group: i64) -> PyResult<Handle> {
    let job = world::current()?;
    let request = Request::new(name, collective, Dtype::U8, []);
    submit(&job, Submission::without_memory(request).in_group(read_group(group)?), ResultMemory::Caller)
}

/// Submits a request whose result goes to memory of the caller's (address, number of elements, owner), if there is any
/// and the result fits; otherwise to memory of the engine's.
fn submit_with_result(
    job: &Arc<Job>,
    mut submission: Submission,
    output: Option<(usize, usize, Py<PyAny>)>,
) -> PyResult<Handle> {
    let Some((address, elements, owner)) = output else { return submit(job, submission, ResultMemory::Engine) };
    let Request { name, dtype, .. } = &submission.request;
    let len_bytes = len_bytes(&[elements as u64], *dtype)?;
    let input = submission.input.as_ref().map(|input| input.as_bytes().as_ptr_range());
    if input.is_some_and(|input| (input.start as usize) < address + len_bytes && address < input.end as usize) {
        return Err(PyValueError::new_err(format!("{name}: the input lies in the output")));
    }
    submission.output = Some(lent_memory::lend(name, address, len_bytes, *dtype, owner)?);
    submit(job, submission, ResultMemory::Caller)
}

fn submit(job: &Arc<Job>, submission: Submission, memory: ResultMemory) -> PyResult<Handle> {
    handle_of(job, job.world.engine().submit(submission), memory)
}

fn handle_of(job: &Arc<Job>, ticket: Result<Ticket, EngineError>, memory: ResultMemory) -> PyResult<Handle> {
    match ticket {
        Ok(ticket) => Ok(Handle::new(ticket, job, memory)),
        Err(error) => Err(errors::raised(job.world.report(error))),
    }
}

/// The place of its own that the caller has for the result: as large as the input.
fn lend_output(output: Option<(usize, Py<PyAny>)>, name: &Arc<str>, input: &Region) -> PyResult<Option<Region>> {
    output.map(|(address, owner)| lent_memory::lend(name, address, input.len_bytes(), input.dtype(), owner)).transpose()
}

fn read_batch(batch: Option<(&str, u32)>) -> Option<Batch> {
    batch.map(|(name, members)| Batch { name: name.into(), members })
}

pub(crate) fn element_type(number: u8) -> PyResult<Dtype> {
    Dtype::from_wire(number)
        .ok_or_else(|| PyValueError::new_err(format!("there is no element type with the number {number}")))
}

pub(crate) fn read_op(op: u8) -> PyResult<ReduceOp> {
    ReduceOp::from_wire(op)
        .ok_or_else(|| PyValueError::new_err(format!("there is no reduction operation with the number {op}")))
}

pub(crate) fn read_group(group: i64) -> PyResult<GroupId> {
    let number = u32::try_from(group).map_err(|_| PyValueError::new_err(format!("there is no process set {group}")))?;
    Ok(GroupId(number))
}

/// The number inside a group of a rank of the world.
pub(crate) fn rank_in_group(job: &Job, group: GroupId, root: i64) -> PyResult<Rank> {
    let members = job.world.engine().group(group).map_err(errors::of_engine)?;
    let number = members.iter().position(|rank| i64::from(rank.0) == root).ok_or_else(|| {
        PyValueError::new_err(format!("broadcast received invalid root rank {root} for provided process set {group}"))
    })?;
    Ok(Rank::from(number))
}

fn read_shape(shape: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    read_numbers(shape, "shape")
}

/// Whole numbers from zero. Tuples, which shapes nearly always are, are read without an iterator.
pub(crate) fn read_numbers(numbers: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
    let read = |number: &Bound<'_, PyAny>| {
        let number: i64 = number.extract()?;
        u64::try_from(number).map_err(|_| PyValueError::new_err(format!("{what} holds {number}, which is below zero")))
    };
    match numbers.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter_borrowed().map(|number| read(&number)).collect(),
        Err(_) => numbers.try_iter()?.map(|number| read(&number?)).collect(),
    }
}

pub(crate) fn len_bytes(shape: &[u64], dtype: Dtype) -> PyResult<usize> {
    let bytes = shape.iter().try_fold(dtype.size_bytes() as u64, |bytes, &dim| bytes.checked_mul(dim));
    bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| PyValueError::new_err(format!("the shape {shape:?} has more elements than there is memory")))
}
