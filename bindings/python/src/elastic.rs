//! What Python asks of an elastic job, and the decisions that it shares with Rust.

use farandole::elastic::{SamplePlace, Samples, Standing, decide, pause_before_retry};
use farandole::{RecoveryStage, StepFate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::records::recording;
use crate::world::current;

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

/// Raises on a rank that the job has replaced; otherwise the number of its generation, or 0 in a job of a fixed size.
#[pyfunction]
pub(crate) fn elastic_fence(py: Python<'_>) -> PyResult<u64> {
    let job = current()?;
    if job.world.engine().is_forked() {
        return Err(errors::forked());
    }
    py.detach(|| job.world.fence()).map_err(errors::raised)
}

/// This process has come so far in its generation, by the stage's word.
#[pyfunction]
pub(crate) fn elastic_stage(word: &str) -> PyResult<()> {
    let stage = RecoveryStage::ALL.iter().find(|stage| stage.word() == word);
    let stage = stage.ok_or_else(|| PyValueError::new_err(format!("there is no stage {word:?} of a recovery")))?;
    if let Some(job) = recording().filter(|_| farandole::elastic::is_enabled()) {
        job.world.mark_recovery(*stage);
    }
    Ok(())
}

/// What becomes of the step that was under way when the last generation ended, and was not made.
#[pyfunction]
pub(crate) fn elastic_step_lost(fate: &str) -> PyResult<()> {
    let known = StepFate::ALL.iter().find(|known| known.word() == fate);
    let known = known.ok_or_else(|| PyValueError::new_err(format!("a lost step is never {fate:?}")))?;
    if let Some(job) = recording().filter(|_| farandole::elastic::is_enabled()) {
        job.world.mark_step_lost(*known);
    }
    Ok(())
}

/// What a rank brings: completed blocks (negative: none), epoch, position, and whether its state was streamed to it.
type PythonStanding = (i64, u64, usize, bool);

/// The source, whether it sends its state, completed blocks, epoch, position, and whether streamed states are compared.
type PythonDecision = (usize, bool, u64, u64, usize, bool);

/// Whose state all ranks continue with, by what each of them brings.
#[pyfunction]
pub(crate) fn elastic_decide(standings: Vec<PythonStanding>) -> PyResult<PythonDecision> {
    if standings.is_empty() {
        return Err(PyValueError::new_err("standings: empty; pass one for each rank"));
    }
    let read = |(completed, epoch, position, is_streamed): PythonStanding| Standing {
        completed: u64::try_from(completed).ok(),
        place: SamplePlace { epoch, position },
        is_streamed,
        ..Standing::default()
    };
    let decision = decide(&standings.into_iter().map(read).collect::<Vec<_>>());
    let SamplePlace { epoch, position } = decision.place;
    Ok((decision.source, decision.is_sent, decision.completed, epoch, position, decision.is_to_compare))
}

/// The seconds to wait before a block is computed again that has failed this often before; none: it is not.
#[pyfunction]
pub(crate) fn elastic_retry_pause(failed_before: u64) -> Option<f64> {
    pause_before_retry(failed_before).map(|pause| pause.as_secs_f64())
}

/// Where the step ends that begins at `position` of `length` samples, if each rank takes `batch` of them.
#[pyfunction]
pub(crate) fn elastic_step_end(position: usize, length: usize, batch: usize, size: usize) -> PyResult<usize> {
    Ok(samples(length, batch, size)?.step_end(position, size))
}

/// How many steps `length` samples make.
#[pyfunction]
pub(crate) fn elastic_step_count(length: usize, batch: usize, size: usize) -> PyResult<usize> {
    Ok(samples(length, batch, size)?.steps(size))
}

fn samples(length: usize, batch: usize, size: usize) -> PyResult<Samples> {
    if batch == 0 || size == 0 {
        let text = format!("batch {batch}, size {size}: both must be greater than 0");
        return Err(PyValueError::new_err(text));
    }
    Ok(Samples::for_each_rank(length, batch))
}
