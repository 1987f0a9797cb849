//! From Python arguments to submissions.
//!
//! A training step makes hundreds of these calls, so arguments are read where they lie and nothing is allocated but
//! what the engine keeps: the name, the shape and the hold on the owner. Whatever can be found wrong without asking
//! other ranks is found here or in the engine's own check, before anything is sent.

use std::sync::Arc;

use farandole::{Batch, Collective, Device, Dtype, GroupId, Rank, ReduceOp, Region, Request, Submission};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors;
use crate::handle::{Handle, Whose};
use crate::region;
use crate::world::{self, Job};

/// How many arguments [`allreduce`] has, and hence each tuple of [`allreduce_many`].
const ALLREDUCE_WORDS: usize = 12;

/// A tensor as Python describes it.
pub(crate) struct Tensor<'a, 'py> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) address: usize,
    pub(crate) shape: &'a Bound<'py, PyAny>,
    pub(crate) dtype: u8,
    pub(crate) owner: &'a Bound<'py, PyAny>,
}

impl Tensor<'_, '_> {
    /// What it is, how large it is, and its memory on loan.
    pub(crate) fn lend(&self) -> PyResult<(Vec<u64>, Dtype, Region)> {
        let shape = read_shape(self.shape)?;
        let dtype = element_type(self.dtype)?;
        let len_bytes = len_bytes(&shape, dtype)?;
        let region = region::lend(self.name, self.address, len_bytes, dtype, self.owner.clone().unbind())?;
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
    let request = Request { batch: read_batch(batch), priority, ..request(name, collective, dtype, shape) };
    let output = lend_output(output, name, &input)?;
    let submission = Submission { group: read_group(group)?, request, input: Some(input), output };
    submit(&job, submission, Whose::Callers)
}

/// As [`allreduce`], for many tensors: tuples of its arguments. All of them are read before the first is asked for.
#[pyfunction]
pub(crate) fn allreduce_many(py: Python<'_>, requests: &Bound<'_, PyAny>) -> PyResult<Vec<Py<Handle>>> {
    let job = world::current()?;
    let submissions: Vec<Submission> = match requests.cast::<PyList>() {
        Ok(list) => list.iter().map(|words| read_allreduce(&words)).collect::<PyResult<_>>()?,
        Err(_) => requests.try_iter()?.map(|words| read_allreduce(&words?)).collect::<PyResult<_>>()?,
    };
    submissions.into_iter().map(|submission| Py::new(py, submit(&job, submission, Whose::Callers)?)).collect()
}

fn read_allreduce(words: &Bound<'_, PyAny>) -> PyResult<Submission> {
    let words = words.cast::<PyTuple>()?;
    if words.len() != ALLREDUCE_WORDS {
        let what = format!("allreduce has {ALLREDUCE_WORDS} arguments, a tuple has {}", words.len());
        return Err(PyTypeError::new_err(what));
    }
    let word = |index: usize| words.get_borrowed_item(index);
    let (name, batch) = (&Arc::from(word(0)?.extract::<&str>()?), word(9)?);
    let (shape, owner) = (word(2)?, word(4)?);
    let tensor =
        Tensor { name, address: word(1)?.extract()?, shape: &shape, dtype: word(3)?.extract()?, owner: &owner };
    let (shape, dtype, input) = tensor.lend()?;
    let (prescale, postscale) = (word(6)?.extract()?, word(7)?.extract()?);
    let collective = Collective::Allreduce { op: read_op(word(5)?.extract()?)?, prescale, postscale };
    let mut request = request(name, collective, dtype, shape);
    request.batch = read_batch(batch.extract()?);
    request.priority = word(10)?.extract()?;
    let output = lend_output(word(11)?.extract()?, name, &input)?;
    Ok(Submission { group: read_group(word(8)?.extract()?)?, request, input: Some(input), output })
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
    let request = request(name, collective, dtype, shape);
    submit(&job, Submission { group, request, input: Some(input), output }, Whose::Callers)
}

/// Asks for all ranks' tensors, one after the other along the first dimension.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn allgather(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    group: i64,
    batch: Option<(&str, u32)>,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let request = Request { batch: read_batch(batch), ..request(name, Collective::Allgather, dtype, shape) };
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), Whose::Engines)
}

/// Sends `splits[r]` rows to each rank `r` of the group, and asks for the rows that they send here.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn alltoall(
    name: &str,
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: u8,
    owner: &Bound<'_, PyAny>,
    splits: Option<&Bound<'_, PyAny>>,
    group: i64,
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let splits = splits.map(|splits| read_numbers(splits, "splits")).transpose()?;
    let request = request(name, Collective::Alltoall { splits }, dtype, shape);
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), Whose::Engines)
}

/// Asks for this rank's part, along the first dimension, of the combination of all ranks' tensors.
#[pyfunction]
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
) -> PyResult<Handle> {
    let (job, name) = (world::current()?, &Arc::from(name));
    let (shape, dtype, input) = Tensor { name, address, shape, dtype, owner }.lend()?;
    let collective = Collective::ReduceScatter { op: read_op(op)?, prescale, postscale };
    let request = Request { batch: read_batch(batch), ..request(name, collective, dtype, shape) };
    submit(&job, Submission::new(request, input).in_group(read_group(group)?), Whose::Engines)
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
    let request = request(&Arc::from(name), collective, Dtype::U8, Vec::new());
    submit(&job, Submission::without_memory(request).in_group(read_group(group)?), Whose::Callers)
}

fn submit(job: &Arc<Job>, submission: Submission, whose: Whose) -> PyResult<Handle> {
    match job.world.engine().submit(submission) {
        Ok(ticket) => Ok(Handle::new(ticket, job, whose)),
        Err(error) => Err(errors::raised(job.world.report(error))),
    }
}

pub(crate) fn request(name: &Arc<str>, collective: Collective, dtype: Dtype, shape: Vec<u64>) -> Request {
    Request { name: Arc::clone(name), collective, dtype, shape, device: Device::Cpu, batch: None, priority: 0 }
}

/// The place of its own that the caller has for the result: as large as the input.
fn lend_output(output: Option<(usize, Py<PyAny>)>, name: &Arc<str>, input: &Region) -> PyResult<Option<Region>> {
    output.map(|(address, owner)| region::lend(name, address, input.len_bytes(), input.dtype(), owner)).transpose()
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
fn rank_in_group(job: &Job, group: GroupId, root: i64) -> PyResult<Rank> {
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
fn read_numbers(numbers: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
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
