//! Which exception an error becomes, and the words that Horovod's users look for.
//!
//! Wrong use, found before anything was sent, is a `ValueError`: the job goes on. What ranks have refused, and whatever
//! ended the job, is a [`FarandoleError`] with the engine's text, which names the first cause. Its subclasses are the
//! classes of errors that callers handle differently ([`ErrorClass`]). All derive from [`HorovodInternalError`], which
//! is never raised itself: scripts of Horovod catch it. Where they look for the beginning of one of Horovod's texts,
//! ours begins with it.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use farandole::{EngineError, Error, ErrorClass};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::world::{Job, joins_later};

pyo3::create_exception!(
    farandole.exceptions,
    HorovodInternalError,
    PyRuntimeError,
    "What Horovod raises when a collective fails. Here it is the base class of farandole.FarandoleError."
);

pyo3::create_exception!(
    farandole,
    FarandoleError,
    HorovodInternalError,
    "A collective was refused by the ranks, or the job cannot go on. The text names the first cause."
);

pyo3::create_exception!(
    farandole,
    RankLostError,
    FarandoleError,
    "A rank died, was cut off or left while others needed it. An elastic job continues without it."
);

pyo3::create_exception!(
    farandole,
    MismatchError,
    FarandoleError,
    "The requests of the ranks differ, or ask for something that cannot be done. The program needs a change."
);

pyo3::create_exception!(
    farandole,
    StallError,
    FarandoleError,
    "A wait has passed its limit, and no rank is known to be lost. The text says who waited for what."
);

/// Whether scripts of this process import the library as `horovod`. Set by that package, read by whoever makes a
/// message; only a word depends on it, so its order relative to other memory does not matter.
static IMPORTED_AS_HOROVOD: AtomicBool = AtomicBool::new(false);

/// What messages call this library: what scripts import.
#[pyfunction]
pub(crate) fn product() -> &'static str {
    if IMPORTED_AS_HOROVOD.load(Ordering::Relaxed) { "Horovod" } else { "Farandole" }
}

/// Messages of this process speak of Horovod from now on, or of Farandole again.
#[pyfunction]
pub(crate) fn set_imported_as_horovod(imported: bool) {
    IMPORTED_AS_HOROVOD.store(imported, Ordering::Relaxed);
}

/// For calls that need a world before there is one.
pub(crate) fn not_initialized_text() -> String {
    format!("{} has not been initialized; use hvd.init().", product())
}

/// For such calls where `hvd.init` was told to join later.
const JOINS_LATER: &str = "this process has not joined its elastic job yet, because hvd.init(elastic_join=\"later\") \
                           leaves that to the training: there is no rank and no size before. Ask for them after \
                           training.join() of hvd.elastic.Training or in its steps, or leave elastic_join out.";

/// For calls in a child of a rank, where only questions are answered.
const FORKED: &str = "this process was forked from a rank and is not a rank itself: collectives, init and process sets are for \
                      the process that called hvd.init(). Start workers that need them with the method \"spawn\".";

pub(crate) fn not_initialized() -> PyErr {
    PyValueError::new_err(if joins_later() { JOINS_LATER.to_owned() } else { not_initialized_text() })
}

pub(crate) fn forked() -> PyErr {
    PyValueError::new_err(FORKED)
}

/// The exception for an error of the library.
pub(crate) fn raised(error: Error) -> PyErr {
    match error {
        Error::Engine(error) => of_engine(error),
        Error::WrongElement => PyValueError::new_err(error.to_string()),
        other => of_class(other.class(), other.to_string()),
    }
}

/// The exception for an error of a request, of which the launcher is told, if the job is still the
/// same.
pub(crate) fn of_job(job: &Weak<Job>, error: EngineError) -> PyErr {
    match job.upgrade() {
        Some(job) => raised(job.world.report(error)),
        None => of_engine(error),
    }
}

/// The exception for an error of the engine.
pub(crate) fn of_engine(error: EngineError) -> PyErr {
    if is_wrong_use(&error) { PyValueError::new_err(text(&error)) } else { of_class(error.class(), text(&error)) }
}

/// The exception of a class.
pub(crate) fn of_class(class: ErrorClass, text: String) -> PyErr {
    match class {
        ErrorClass::RankLost => RankLostError::new_err(text),
        ErrorClass::Mismatch => MismatchError::new_err(text),
        ErrorClass::Stall => StallError::new_err(text),
        _ => FarandoleError::new_err(text),
    }
}

/// The name of that exception, for frameworks that carry texts.
pub(crate) fn name_of(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::RankLost => "RankLostError",
        ErrorClass::Mismatch => "MismatchError",
        ErrorClass::Stall => "StallError",
        _ => "FarandoleError",
    }
}

/// Whether an error was found before anything was sent. The others: shut down, refused, timed out, failed.
pub(crate) fn is_wrong_use(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Duplicate { .. }
            | EngineError::UnknownGroup(_)
            | EngineError::ForeignGroup(_)
            | EngineError::ExistingGroup(_)
            | EngineError::InvalidGroup(_)
            | EngineError::WrongMemory { .. }
            | EngineError::Setting(_)
            | EngineError::Taken
            | EngineError::Forked
    )
}

/// The words for an error of the engine.
pub(crate) fn text(error: &EngineError) -> String {
    match error {
        EngineError::Duplicate { .. } => format!(
            "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is \
             currently being processed. If you want to request another tensor, use a different tensor name. ({error})"
        ),
        EngineError::Forked => FORKED.to_owned(),
        EngineError::ShutDown => {
            format!("{} has been shut down by this rank; call init() again to go on", product())
        }
        _ => error.to_string(),
    }
}
