//! What this process has for collectives on GPUs, as Python asks for it.

use std::path::PathBuf;

use pyo3::prelude::*;

/// NCCL's version as a number, or 0 where there is none that can be used. `files` are files in which it may be.
#[pyfunction]
pub(crate) fn nccl_version(py: Python<'_>, files: Vec<PathBuf>) -> u32 {
    py.detach(|| farandole::nccl_version(&files)).map_or(0, |version| version.0)
}

/// Whether CUDA's driver is there and has a device.
#[pyfunction]
pub(crate) fn has_cuda(py: Python<'_>) -> bool {
    py.detach(farandole::has_cuda)
}
