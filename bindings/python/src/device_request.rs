//! Requests of tensors on a device: from Python arguments to a [`DeviceHandle`].
//!
//! One function serves all collectives: a tuple says which, as [`read_collective`] reads it. All tensors of a call lie
//! on one device, and their data are there when a stream has done what it has.
//!
//! Whatever can be found wrong without asking other ranks is found here or in the engine's own check, before anything
//! is sent. Host memory has calls of its own (`request`).

use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, GroupId, Rank, Region, Request, Submission};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::device_handle::DeviceHandle;
use crate::errors;
use crate::lent_memory::{LentMemory, Piece, Pieces};
use crate::on_device::{self, OnStream};
use crate::request::{element_type, len_bytes, rank_in_group, read_group, read_numbers, read_op};
use crate::torch_tensor::{self, Reader};
use crate::world::{self, Job};

/// How many entries the tuple of a tensor has: name, address, shape, element type, owner, output.
const TENSOR_ARGUMENTS: usize = 6;

/// Asks for a collective of tensors on a device: tuples of name, address, shape, element type, owner, and where the
/// result goes (address, number of elements, owner) or nothing. `device` is its number and the handle of a stream. With
/// `batch`, a name that is the same on all ranks, they run together or not at all. All of them are read before the
/// first is submitted.
#[pyfunction]
#[pyo3(signature = (collective, tensors, group, batch, device, *, priority=0))]
pub(crate) fn submit_on_device(
    collective: &Bound<'_, PyTuple>,
    tensors: &Bound<'_, PyList>,
    group: i64,
    batch: Option<&str>,
    device: (u32, u64),
    priority: i32,
) -> PyResult<DeviceHandle> {
    let job = world::current()?;
    let group = read_group(group)?;
    let asked = Asked { collective: read_collective(&job, group, collective)?, group, batch, device, priority };
    let read = tensors.iter().map(|tensor| Read::tensor(&tensor));
    asked.submit(&job, read.collect::<PyResult<_>>()?)
}

/// The same for tensors of PyTorch's whose results replace them, each under its name. They are asked here what they
/// are. Nothing if one of them is not contiguous, on another device, or of a type that is not worked on there.
#[pyfunction]
#[pyo3(signature = (collective, names, tensors, group, batch, device, *, priority=0))]
pub(crate) fn submit_tensors_on_device(
    collective: &Bound<'_, PyTuple>,
    names: Vec<Bound<'_, PyString>>,
    tensors: &Bound<'_, PyList>,
    group: i64,
    batch: Option<&str>,
    device: (u32, u64),
    priority: i32,
) -> PyResult<Option<DeviceHandle>> {
    let Some(reader) = Reader::get(tensors.py()) else { return Ok(None) };
    let job = world::current()?;
    let group = read_group(group)?;
    let asked = Asked { collective: read_collective(&job, group, collective)?, group, batch, device, priority };
    let kind = if on_device::device_stands_in() { torch_tensor::HOST } else { torch_tensor::CUDA };
    let mut read = Vec::with_capacity(tensors.len());
    let mut works = Vec::new();
    for (name, tensor) in names.iter().zip(tensors.iter()) {
        let Some(tensor) = reader.read(&tensor)? else { return Ok(None) };
        let torch_tensor::Tensor { address, shape, dtype, device: place, storage: owner } = tensor;
        if place != (kind, device.0.cast_signed()) {
            return Ok(None);
        }
        if !works.contains(&dtype) {
            if !asked.works(&job, dtype)? {
                return Ok(None);
            }
            works.push(dtype);
        }
        read.push(Read { name: name.to_str()?.into(), address, shape, dtype, owner, output: None });
    }
    asked.submit(&job, read).map(Some)
}

/// Whether a collective of device memory is carried out in a group where the tensors lie: the same on all ranks.
#[pyfunction]
pub(crate) fn works_on_devices(group: i64, collective: &Bound<'_, PyTuple>, dtype: u8) -> PyResult<bool> {
    let (job, group) = (world::current()?, read_group(group)?);
    let collective = read_collective(&job, group, collective)?;
    Asked { collective, group, batch: None, device: (0, 0), priority: 0 }.works(&job, element_type(dtype)?)
}

/// A tensor as Python describes it.
struct Read {
    name: Arc<str>,
    address: usize,
    shape: Vec<u64>,
    dtype: Dtype,
    owner: Py<PyAny>,
    /// Address, number of elements and owner.
    output: Option<(usize, usize, Py<PyAny>)>,
}

impl Read {
    fn tensor(tuple: &Bound<'_, PyAny>) -> PyResult<Read> {
        let tuple = tuple.cast::<PyTuple>()?;
        if tuple.len() != TENSOR_ARGUMENTS {
            let what = format!("a tuple of {TENSOR_ARGUMENTS} arguments was expected, not of {}", tuple.len());
            return Err(PyTypeError::new_err(what));
        }
        let argument = |index: usize| tuple.get_borrowed_item(index);
        Ok(Read {
            name: argument(0)?.extract::<&str>()?.into(),
            address: argument(1)?.extract()?,
            shape: read_numbers(&tuple.get_item(2)?, "shape")?,
            dtype: element_type(argument(3)?.extract()?)?,
            owner: argument(4)?.to_owned().unbind(),
            output: argument(5)?.extract()?,
        })
    }
}

/// What is asked for, of tensors of one device.
struct Asked<'a> {
    collective: Collective,
    group: GroupId,
    batch: Option<&'a str>,
    /// Its number, and the handle of the stream that computes the data.
    device: (u32, u64),
    priority: i32,
}

impl Asked<'_> {
    /// Whether it is carried out on devices, for this element type.
    fn works(&self, job: &Job, dtype: Dtype) -> PyResult<bool> {
        job.world.engine().works_on_devices(self.group, &self.collective, dtype).map_err(errors::of_engine)
    }

    fn submit(&self, job: &Arc<Job>, tensors: Vec<Read>) -> PyResult<DeviceHandle> {
        let place = OnStream::record(self.device.0, self.device.1)?;
        let members =
            u32::try_from(tensors.len()).map_err(|_| PyValueError::new_err("too many tensors in one call"))?;
        let batch = self.batch.map(|name| Batch { name: name.into(), members });
        let submissions = tensors.into_iter().map(|tensor| self.submission(tensor, &place, batch.clone()));
        let submissions = submissions.collect::<PyResult<Vec<Submission>>>()?;
        DeviceHandle::submit(job, submissions, place)
    }

    fn submission(&self, tensor: Read, place: &OnStream, batch: Option<Batch>) -> PyResult<Submission> {
        let Read { name, address, shape, dtype, owner, output } = tensor;
        let piece = Piece { address, len_bytes: len_bytes(&shape, dtype)?, name: Arc::clone(&name) };
        let output = output.map(|output| lend_output(&name, &piece, dtype, output, place)).transpose()?;
        let memory = LentMemory::register(owner, Pieces::One(piece));
        let request =
            Request::new(name, self.collective.clone(), dtype, shape).in_batch(batch).with_priority(self.priority);
        let submission = place.submission(request, &memory, &memory.pieces()[0], dtype).in_group(self.group);
        Ok(Submission { output, ..submission })
    }
}

/// The caller's memory for a result.
fn lend_output(
    name: &Arc<str>,
    input: &Piece,
    dtype: Dtype,
    (address, elements, owner): (usize, usize, Py<PyAny>),
    place: &OnStream,
) -> PyResult<Region> {
    let len_bytes = len_bytes(&[elements as u64], dtype)?;
    if input.address < address.saturating_add(len_bytes) && address < input.address.saturating_add(input.len_bytes) {
        return Err(PyValueError::new_err(format!("{name}: the input lies in the output")));
    }
    let memory = LentMemory::register(owner, Pieces::One(Piece { address, len_bytes, name: Arc::clone(name) }));
    Ok(memory.region_on_device(&memory.pieces()[0], dtype, place.ordinal()))
}

/// Which collective a tuple names, by its first entry:
///
/// - allreduce, reducescatter: operation, prescale, postscale
/// - broadcast: the root, a rank of the world
/// - reduce: the root, a rank inside the group, then as allreduce
/// - gather: the root, a rank inside the group; scatter: the same, and splits or `None`
/// - alltoall: splits or `None`
/// - allgather: nothing
fn read_collective(job: &Job, group: GroupId, words: &Bound<'_, PyTuple>) -> PyResult<Collective> {
    let argument = |index: usize| words.get_borrowed_item(index);
    let reduction = |from: usize| -> PyResult<_> {
        let (op, prescale, postscale) = (argument(from)?, argument(from + 1)?, argument(from + 2)?);
        Ok((read_op(op.extract()?)?, prescale.extract()?, postscale.extract()?))
    };
    let root = || -> PyResult<Rank> { Ok(Rank(argument(1)?.extract()?)) };
    let splits = |at: usize| -> PyResult<Option<Vec<u64>>> {
        let splits = words.get_item(at)?;
        if splits.is_none() { Ok(None) } else { read_numbers(&splits, "splits").map(Some) }
    };
    let word = argument(0)?;
    Ok(match word.extract::<&str>()? {
        "allreduce" => {
            let (op, prescale, postscale) = reduction(1)?;
            Collective::Allreduce { op, prescale, postscale }
        }
        "reducescatter" => {
            let (op, prescale, postscale) = reduction(1)?;
            Collective::ReduceScatter { op, prescale, postscale }
        }
        "broadcast" => Collective::Broadcast { root: rank_in_group(job, group, argument(1)?.extract()?)? },
        "reduce" => {
            let (op, prescale, postscale) = reduction(2)?;
            Collective::Reduce { root: root()?, op, prescale, postscale }
        }
        "allgather" => Collective::Allgather,
        "alltoall" => Collective::Alltoall { splits: splits(1)? },
        "gather" => Collective::Gather { root: root()? },
        "scatter" => Collective::Scatter { root: root()?, splits: splits(2)? },
        other => return Err(PyValueError::new_err(format!("there is no collective {other:?}"))),
    })
}
