//! MXNet's arrays: collectives as operations of its dependency engine, through its C API and without a compiler.
//!
//! The way of one call: the functions here read Python's arguments → `call` (MXNet's engine, ours, and back) →
//! `complete` (MXNet's callback). `array` holds arrays, `fault` says how errors read, and `api` has MXNet's functions.
//!
//! Arrays come as MXNet's Python objects, with the shape and element type that Python knows. They lie in host memory;
//! the Python package copies those of other devices (`farandole/mxnet/arrays.py`).
//!
//! What is deliberately not here: Horovod's names and arguments (`farandole/mxnet/mpi_ops.py`).
//!
//! This is an unsafe module: Python's objects hold addresses of arrays.

#![allow(unsafe_code)]

mod api;
mod array;
mod call;
mod complete;
mod fault;

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole::{Collective, GroupId};
use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::library::Library;
use crate::request::{element_type, len_bytes, rank_in_group, read_group, read_op};
use crate::waiting::Waiting;
use crate::world;
use array::Array;
use call::{Call, Made, Member, Place, Progress};

/// How often a waiting thread checks for signals, as elsewhere in this module's crate.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often a thread that leaves the job looks whether operations are over. They mostly are within milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// An array, as Python describes it: name, shape, element type, the array, and where the result goes: nothing for the
/// engine's memory, the same array for its own, another one with its number of elements for that one.
type Description<'py> = (String, Vec<u64>, u8, Bound<'py, PyAny>, Option<(Bound<'py, PyAny>, u64)>);

/// Finds MXNet's functions in its library, which is loaded. By an array, a part of it and another array it is made sure
/// that we tell their variables apart. Does nothing the second time.
#[pyfunction]
pub(crate) fn load_mxnet(
    library: &str,
    version: &str,
    array: &Bound<'_, PyAny>,
    part: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
) -> PyResult<()> {
    if api::is_loaded() {
        return Ok(());
    }
    let refuse = |what: String| {
        PyImportError::new_err(format!("MXNet {version} cannot be used: {what}. farandole.mxnet is for MXNet 1.9"))
    };
    let path = CString::new(library).map_err(|_| PyImportError::new_err("a path holds no zero"))?;
    let library = Library::already_loaded(&path).map_err(refuse)?;
    api::load(&library).map_err(|symbol| refuse(format!("it has no {symbol}")))?;
    if !array::tells_variables_apart(&copy(array)?, &copy(part)?, &copy(other)?) {
        return Err(refuse("its arrays are made in a way that is not known".to_owned()));
    }
    Ok(())
}

/// Asks for the combination of all ranks' arrays.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn mxnet_allreduce(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<&str>,
    priority: i32,
) -> PyResult<MxnetCall> {
    let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
    push(py, arrays, collective, read_group(group)?, batch, priority)
}

/// Asks for the array of `root`, a rank of the world, on all ranks of the group.
#[pyfunction]
pub(crate) fn mxnet_broadcast(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    root: i64,
    group: i64,
    priority: i32,
) -> PyResult<MxnetCall> {
    let group = read_group(group)?;
    let collective = Collective::Broadcast { root: rank_in_group(&*world::current()?, group, root)? };
    push(py, arrays, collective, group, None, priority)
}

/// Asks for all ranks' arrays, one after the other along the first dimension.
#[pyfunction]
pub(crate) fn mxnet_allgather(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    group: i64,
    batch: Option<&str>,
    priority: i32,
) -> PyResult<MxnetCall> {
    push(py, arrays, Collective::Allgather, read_group(group)?, batch, priority)
}

/// Sends `splits[r]` rows to each rank `r` of the group, and asks for the rows that they send here.
#[pyfunction]
pub(crate) fn mxnet_alltoall(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    splits: Option<Vec<u64>>,
    group: i64,
    priority: i32,
) -> PyResult<MxnetCall> {
    push(py, arrays, Collective::Alltoall { splits }, read_group(group)?, None, priority)
}

/// Asks for this rank's part, along the first dimension, of the combination of all ranks' arrays.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
pub(crate) fn mxnet_reducescatter(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    op: u8,
    prescale: f64,
    postscale: f64,
    group: i64,
    batch: Option<&str>,
    priority: i32,
) -> PyResult<MxnetCall> {
    let collective = Collective::ReduceScatter { op: read_op(op)?, prescale, postscale };
    push(py, arrays, collective, read_group(group)?, batch, priority)
}

/// Waits until the operations that this process has asked for are over, for at most so long. Scripts do not see which
/// of them are under way, and mean to leave when they are done. They are over, too, if another rank leaves the job.
pub(crate) fn let_operations_end(py: Python<'_>, at_most: Duration) -> PyResult<()> {
    let deadline = Instant::now() + at_most;
    while !call::all_ended() && Instant::now() < deadline {
        py.detach(|| std::thread::sleep(LOOK_INTERVAL));
        py.check_signals()?;
    }
    Ok(())
}

fn push(
    py: Python<'_>,
    arrays: Vec<Description<'_>>,
    collective: Collective,
    group: GroupId,
    batch: Option<&str>,
    priority: i32,
) -> PyResult<MxnetCall> {
    let job = world::current()?;
    let engine = job.world.engine();
    if engine.is_forked() {
        return Err(errors::forked());
    }
    // What goes wrong later is told where somebody waits for an array. A script that never does learns it here.
    if let Some(error) = engine.failure() {
        return Err(errors::raised(job.world.report(error)));
    }
    drop(job);
    let members = arrays.into_iter().map(read_member).collect::<PyResult<Vec<_>>>()?;
    let call = Call { collective, group, batch: batch.map(Arc::from), priority, members };
    // MXNet may run other operations on this thread, and waits for this one if it is told to be synchronous.
    let progress = py.detach(|| {
        let _waiting = Waiting::begin();
        call::push(call)
    });
    Ok(MxnetCall(progress.map_err(PyRuntimeError::new_err)?))
}

fn read_member((name, shape, dtype, input, result): Description<'_>) -> PyResult<Member> {
    let dtype = element_type(dtype)?;
    let bytes = len_bytes(&shape, dtype)?;
    let result = match result {
        None => Place::Engine,
        Some((output, _)) if output.is(&input) => Place::Input,
        Some((output, elements)) => Place::Array(copy(&output)?, len_bytes(&[elements], dtype)?),
    };
    Ok(Member { name: name.into(), shape, dtype, len_bytes: bytes, input: copy(&input)?, result })
}

/// A copy of an array, which lives as long as we need it.
fn copy(array: &Bound<'_, PyAny>) -> PyResult<Array> {
    let handle: usize = array.getattr("handle")?.getattr("value")?.extract()?;
    // SAFETY: the handle of an array that Python holds during this call.
    unsafe { Array::of(handle) }.map_err(PyRuntimeError::new_err)
}

/// A call of one collective, for one array or several that go together.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct MxnetCall(Arc<Progress>);

#[pymethods]
impl MxnetCall {
    /// Waits until the call is over. Raises what went wrong.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let wait = || {
            let _waiting = Waiting::begin();
            self.0.wait(SIGNAL_CHECK_INTERVAL)
        };
        while !py.detach(wait) {
            py.check_signals()?;
        }
        self.with_made(|_| Ok(()))
    }

    /// Dimensions of the result for the array at this place.
    fn shape(&self, place: usize) -> PyResult<Vec<u64>> {
        self.with_made(|made| Ok(at(made, place)?.shape.clone()))
    }

    /// Of alltoall: how many rows came from each rank.
    fn received_splits(&self, place: usize) -> PyResult<Vec<u64>> {
        self.with_made(|made| Ok(at(made, place)?.received_splits.clone()))
    }

    /// Copies the engine's memory for the array at this place to an array that has the result's shape and element type,
    /// and that nobody else knows yet.
    fn copy_to(&self, py: Python<'_>, place: usize, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let array = copy(array)?;
        let copy_bytes = |made: &[Made]| {
            let memory = at(made, place)?.memory.as_ref();
            let bytes = memory.ok_or_else(|| PyValueError::new_err("the result lies in an array"))?.as_bytes();
            let data = array.data().map_err(PyRuntimeError::new_err)?;
            // SAFETY: the array is as large as the result (promised by the caller) and known to nobody else.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
            Ok(())
        };
        py.detach(|| self.with_made(copy_bytes))
    }
}

impl MxnetCall {
    fn with_made<T>(&self, use_it: impl FnOnce(&[Made]) -> PyResult<T>) -> PyResult<T> {
        match &*self.0.lock() {
            Some(Ok(made)) => use_it(made),
            Some(Err(fault)) => Err(fault.raised()),
            None => Err(PyValueError::new_err("the call is under way; wait for it first")),
        }
    }
}

fn at(made: &[Made], place: usize) -> PyResult<&Made> {
    made.get(place).ok_or_else(|| PyValueError::new_err(format!("the call has {} arrays", made.len())))
}
