//! What Python asks of an elastic job.

use farandole::{RecoveryStage, StepFate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::records::recording;

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

/// This process has come so far in its generation, by the stage's word.
#[pyfunction]
pub(crate) fn elastic_stage(word: &str) -> PyResult<()> {
    let stage = RecoveryStage::ALL.iter().find(|stage| stage.word() == word);
    let stage = stage.ok_or_else(|| PyValueError::new_err(format!("there is no stage {word:?} of a recovery")))?;
    if let Some(job) = recording().filter(|_| farandole::elastic::is_enabled()) {
        job.world.recovery(*stage);
    }
    Ok(())
}

/// What becomes of the step that was under way when the last generation ended, and was not made.
#[pyfunction]
pub(crate) fn elastic_step_lost(fate: &str) -> PyResult<()> {
    let known = StepFate::ALL.iter().find(|known| known.word() == fate);
    let known = known.ok_or_else(|| PyValueError::new_err(format!("a lost step is never {fate:?}")))?;
    if let Some(job) = recording().filter(|_| farandole::elastic::is_enabled()) {
        job.world.step_lost(*known);
    }
    Ok(())
}
