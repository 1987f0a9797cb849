//! What Python asks of an elastic job.

use pyo3::prelude::*;

/// Whether this process is a member of an elastic job.
#[pyfunction]
pub(crate) fn elastic_enabled() -> bool {
    farandole::elastic::is_enabled()
}

/// How many processes wait to join, as far as this one knows.
#[pyfunction]
pub(crate) fn elastic_candidates() -> usize {
    farandole::elastic::candidates()
}

/// The number of the generation that this process is in; `None` outside of one.
#[pyfunction]
pub(crate) fn elastic_generation() -> Option<u64> {
    farandole::elastic::generation()
}
