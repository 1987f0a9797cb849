//! How errors reach TensorFlow and XLA: a code and a text, [`OpError`].
//!
//! Codes are Horovod's, so that scripts catch what they have always caught. What the ranks refused is
//! FAILED_PRECONDITION, wrong use is INVALID_ARGUMENT, and the end of the job is UNKNOWN with a text that begins with
//! the whole name of an exception, `farandole.RankLostError: ` for instance, which the Python package raises wherever
//! Python is on the way.
//!
//! `TF_Code`, `XLA_FFI_Error_Code` and `absl::StatusCode` have the same numbers.

use std::ffi::c_int;
use std::fmt::Display;
use std::sync::Weak;

use farandole::{EngineError, ErrorClass};

use crate::errors;
use crate::world::Job;

pub(crate) const UNKNOWN: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = 3;
pub(crate) const FAILED_PRECONDITION: c_int = 9;
pub(crate) const UNIMPLEMENTED: c_int = 12;
pub(crate) const INTERNAL: c_int = 13;

/// What the ranks are told if the splits of one of them are wrong. Horovod finds it before it asks the others: wrong
/// use.
const WRONG_SPLITS: [&str; 3] = ["splits not provided", "Number of entries in splits", "Sum of splits entries"];

/// Why an op is not carried out.
#[derive(Debug)]
pub(crate) struct OpError {
    pub(crate) code: c_int,
    pub(crate) text: String,
}

impl OpError {
    pub(crate) fn wrong_use(text: impl Into<String>) -> OpError {
        OpError { code: INVALID_ARGUMENT, text: text.into() }
    }

    /// The job cannot go on.
    pub(crate) fn ended(class: ErrorClass, text: impl Display) -> OpError {
        OpError { code: UNKNOWN, text: format!("farandole.{}: {text}", errors::name_of(class)) }
    }

    pub(crate) fn not_initialized() -> OpError {
        OpError { code: FAILED_PRECONDITION, text: errors::not_initialized_text() }
    }

    /// For an error of a request. The launcher is told of it.
    pub(crate) fn of(job: &Weak<Job>, error: EngineError) -> OpError {
        let of_op = OpError::from(&error);
        if let Some(job) = job.upgrade() {
            let _ = job.world.report(error);
        }
        of_op
    }
}

impl From<&EngineError> for OpError {
    fn from(error: &EngineError) -> OpError {
        let text = errors::text(error);
        match error {
            EngineError::ShutDown
            | EngineError::PeerLeft(_)
            | EngineError::Failed(_)
            | EngineError::TimedOut { .. } => OpError::ended(error.class(), text),
            EngineError::Refused { explanation, .. }
                if WRONG_SPLITS.iter().any(|words| explanation.contains(words)) =>
            {
                OpError::wrong_use(text)
            }
            EngineError::Refused { .. } | EngineError::Forked => OpError { code: FAILED_PRECONDITION, text },
            _ => OpError::wrong_use(text),
        }
    }
}
