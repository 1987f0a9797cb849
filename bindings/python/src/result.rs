//! What a finished request leaves for Python: [`Result`].
//!
//! Results of allreduce and broadcast lie in the caller's tensor; there is nothing to fetch. How large those of
//! allgather, alltoall and reducescatter are is known only after the ranks have agreed, so the engine makes their
//! memory and Python takes it over without a copy, through DLPack.

use std::sync::Arc;

use farandole::{Dtype, Outcome};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::dlpack::{self, Giver, Memory, Wish};

/// What is left of an outcome when everything that was lent has been given back.
pub(crate) struct Payload {
    pub(crate) shape: Vec<u64>,
    pub(crate) received_splits: Vec<u64>,
    pub(crate) last_joined: i64,
    pub(crate) source: i64,
    pub(crate) memory: Option<Memory>,
}

impl Payload {
    /// Of a request whose result lies in memory of the engine's.
    pub(crate) fn with_memory(outcome: &mut Outcome) -> Payload {
        Payload { memory: outcome.output.take().map(Memory::new), ..Payload::without_memory(outcome) }
    }

    /// Of a request whose result, if there is one, lies in the caller's memory.
    pub(crate) fn without_memory(outcome: &mut Outcome) -> Payload {
        Payload {
            shape: std::mem::take(&mut outcome.shape),
            received_splits: std::mem::take(&mut outcome.received_splits),
            last_joined: outcome.last_joined.map_or(-1, |rank| i64::from(rank.0)),
            source: outcome.source.map_or(-1, |rank| i64::from(rank.0)),
            memory: None,
        }
    }
}

impl Giver for Payload {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("invariant: only results with memory are given away")
    }

    fn shape(&self) -> &[u64] {
        &self.shape
    }
}

/// What came of a request.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Result(pub(crate) Arc<Payload>);

#[pymethods]
impl Result {
    /// Dimensions of the result.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    /// For alltoall: how many rows came from each rank. Otherwise empty.
    #[getter]
    fn received_splits(&self) -> &[u64] {
        &self.0.received_splits
    }

    /// For join: the last rank (inside the group) to join. Otherwise -1.
    #[getter]
    fn last_joined(&self) -> i64 {
        self.0.last_joined
    }

    /// For a message between two ranks: the other one (inside the group). Otherwise -1.
    #[getter]
    fn source(&self) -> i64 {
        self.0.source
    }

    /// The number of the element type; `None` where the result lies in the caller's memory.
    #[getter]
    fn dtype(&self) -> Option<u8> {
        self.0.memory.as_ref().map(|memory| wire(memory.dtype()))
    }

    /// Gives the memory to each caller: it lives until the last of them has released it.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = stream;
        if self.0.memory.is_none() {
            return Err(PyValueError::new_err("the result of this request lies in the tensor that came with it"));
        }
        let wish = Wish { max_version, dl_device, copy };
        dlpack::capsule(py, Arc::clone(&self.0) as Arc<dyn Giver>, wish)
    }

    /// Host memory, always.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }
}

/// The wire number of an element type, which is its place in the list.
fn wire(dtype: Dtype) -> u8 {
    dtype as u8
}
