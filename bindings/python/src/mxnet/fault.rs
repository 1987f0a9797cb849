//! Why a call was not carried out, in Python's and in MXNet's terms: [`Fault`].
//!
//! MXNet carries texts. Its Python package makes an exception of the class that stands before the first colon, if it
//! knows one of that name: `ValueError` for wrong use, and for what the ranks refuse and for the end of the job
//! `FarandoleError` and its subclasses, which `farandole/mxnet/faults.py` has registered.

use std::sync::Weak;

use farandole::{EngineError, ErrorClass};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::world::Job;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The engine's answer.
    Engine(EngineError),
    /// There is no job, or no longer.
    NotInitialized,
    /// The thread that ends calls could not be started.
    NoThread,
    /// MXNet has refused something, for this reason.
    MXNet(String),
    /// MXNet has not run the operation, because an array that it depends on has an error.
    Skipped,
    /// A panic.
    Bug(String),
}

impl Fault {
    /// For an error of a request. The launcher is told of it.
    pub(super) fn of(job: &Weak<Job>, error: EngineError) -> Fault {
        if let Some(job) = job.upgrade() {
            let _ = job.world.report(error.clone());
        }
        Fault::Engine(error)
    }

    /// As MXNet carries it.
    pub(super) fn text(&self) -> String {
        let class = if self.is_wrong_use() { "ValueError" } else { errors::name_of(self.class()) };
        format!("{class}: {}", self.words())
    }

    /// As Python raises it.
    pub(super) fn raised(&self) -> PyErr {
        if self.is_wrong_use() {
            PyValueError::new_err(self.words())
        } else {
            errors::of_class(self.class(), self.words())
        }
    }

    fn class(&self) -> ErrorClass {
        if let Fault::Engine(error) = self { error.class() } else { ErrorClass::Other }
    }

    fn is_wrong_use(&self) -> bool {
        match self {
            Fault::Engine(error) => errors::is_wrong_use(error),
            Fault::NotInitialized => true,
            Fault::NoThread | Fault::MXNet(_) | Fault::Skipped | Fault::Bug(_) => false,
        }
    }

    fn words(&self) -> String {
        match self {
            Fault::Engine(error) => errors::text(error),
            Fault::NotInitialized => errors::not_initialized_text(),
            Fault::NoThread => "no thread could be started for MXNet's operations".to_owned(),
            Fault::MXNet(text) => format!("MXNet refuses: {text}"),
            Fault::Skipped => {
                "an array that this operation needs has an error; wait for the array to learn it".to_owned()
            }
            Fault::Bug(text) => text.clone(),
        }
    }
}
