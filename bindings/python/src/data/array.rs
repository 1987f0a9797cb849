//! Memory of a batch that frameworks take over without a copy: [`DataArray`].

use std::sync::Arc;

use farandole::Dtype;
use farandole_data::loader::BatchMemory;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::dlpack::{self, Giver, Memory, Wish};

struct Array {
    memory: Memory,
    shape: Vec<u64>,
}

impl Giver for Array {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn shape(&self) -> &[u64] {
        &self.shape
    }
}

/// Numbers of a batch. The memory goes back to where it came from when the last that has taken it lets it go.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct DataArray(Arc<Array>);

impl DataArray {
    pub(super) fn of_images(images: BatchMemory, dtype: Dtype, shape: Vec<u64>) -> DataArray {
        DataArray(Arc::new(Array { memory: Memory::of_batch(images, dtype), shape }))
    }

    pub(super) fn of_floats(numbers: Vec<f32>, shape: Vec<u64>) -> DataArray {
        DataArray(Arc::new(Array { memory: Memory::of_numbers(numbers, Dtype::F32), shape }))
    }

    pub(super) fn of_integers(numbers: Vec<i64>) -> DataArray {
        let shape = vec![numbers.len() as u64];
        DataArray(Arc::new(Array { memory: Memory::of_numbers(numbers, Dtype::I64), shape }))
    }
}

#[pymethods]
impl DataArray {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
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
        let wish = Wish { max_version, dl_device, copy };
        dlpack::capsule(py, Arc::clone(&self.0) as Arc<dyn Giver>, wish)
    }

    /// Host memory, always.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }
}
