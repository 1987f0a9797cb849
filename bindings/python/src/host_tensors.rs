//! Tensors of PyTorch's that are reduced in their own host memory by one call: [`HostTensors`].
//!
//! A tensor is asked here what it is (`torch_tensor`), because asking it in Python takes longer than reducing it. The
//! two calls are apart so that the caller can name the operation by [`HostTensors::form`] in between, which is the same
//! on all ranks.
//!
//! Not here: tensors that are not contiguous or lie elsewhere, which need copies (`farandole/torch/lent_memory.py`).

use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, Request, Submission};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::gradient_batch::BatchHandle;
use crate::lent_memory::{LentMemory, Piece, Pieces};
use crate::request::{len_bytes, read_group, read_op};
use crate::torch_tensor::{HOST, Reader};
use crate::world;

/// Contiguous tensors in host memory, as one dimension each.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct HostTensors {
    tensors: Vec<HostTensor>,
    /// The storages, which own the bytes.
    owners: Py<PyTuple>,
}

struct HostTensor {
    address: usize,
    elems: u64,
    dtype: Dtype,
}

/// Reads tensors. Nothing if one of them cannot be worked on as it is, or if this PyTorch does not say what it is.
#[pyfunction]
pub(crate) fn host_tensors(tensors: &Bound<'_, PyList>) -> PyResult<Option<HostTensors>> {
    let py = tensors.py();
    let Some(reader) = Reader::get(py) else { return Ok(None) };
    let (mut read, mut owners) = (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
    for tensor in tensors {
        let Some(found) = reader.read(&tensor)?.filter(|found| found.device.0 == HOST) else { return Ok(None) };
        // The bytes of such a view are those of the negative.
        if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Ok(None);
        }
        read.push(HostTensor { address: found.address, elems: found.shape.iter().product(), dtype: found.dtype });
        owners.push(found.storage);
    }
    Ok(Some(HostTensors { tensors: read, owners: PyTuple::new(py, owners)?.unbind() }))
}

#[pymethods]
impl HostTensors {
    /// What ranks must agree on: element type (one byte) and number of elements (eight, the least significant first) of
    /// each.
    fn form<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let form = self.tensors.iter().flat_map(|tensor| {
            let [a, b, c, d, e, f, g, h] = tensor.elems.to_le_bytes();
            [tensor.dtype as u8, a, b, c, d, e, f, g, h]
        });
        PyBytes::new(py, &form.collect::<Vec<u8>>())
    }

    /// Asks for the combination of all ranks' tensors, in place. Several are named `name_0`, `name_1`, …, and run
    /// together or not at all.
    fn allreduce(
        &self,
        py: Python<'_>,
        name: &str,
        op: u8,
        prescale: f64,
        postscale: f64,
        group: i64,
    ) -> PyResult<BatchHandle> {
        let job = world::current()?;
        let (collective, group) = (Collective::Allreduce { op: read_op(op)?, prescale, postscale }, read_group(group)?);
        let members =
            u32::try_from(self.tensors.len()).map_err(|_| PyValueError::new_err("a call of too many tensors"))?;
        let batch = (members > 1).then(|| Batch { name: name.into(), members });
        let pieces = self.tensors.iter().enumerate().map(|(index, tensor)| {
            let name: Arc<str> = if members > 1 { format!("{name}_{index}").into() } else { name.into() };
            Ok(Piece { address: tensor.address, len_bytes: len_bytes(&[tensor.elems], tensor.dtype)?, name })
        });
        let pieces = pieces.collect::<PyResult<Vec<Piece>>>()?;
        let memory = LentMemory::register(self.owners.clone_ref(py).into_any(), Pieces::Many(pieces));
        let submissions = self.tensors.iter().zip(memory.pieces()).map(|(tensor, piece)| {
            let request = Request::new(Arc::clone(&piece.name), collective.clone(), tensor.dtype, vec![tensor.elems])
                .in_batch(batch.clone());
            Ok(Submission::new(request, memory.region(piece, tensor.dtype)?).in_group(group))
        });
        BatchHandle::submit(&job, submissions.collect::<PyResult<_>>()?)
    }

    /// The place of the first tensor, of those that were read, whose bytes are elsewhere by now.
    fn first_moved(&self, tensors: &Bound<'_, PyList>) -> PyResult<Option<usize>> {
        let Some(reader) = Reader::get(tensors.py()) else { return Ok(None) };
        for (place, (tensor, read)) in tensors.iter().zip(&self.tensors).enumerate() {
            if reader.address(&tensor) != Some(read.address) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}
