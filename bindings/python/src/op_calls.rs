//! Calls of ops that fail with a code and a text, as TensorFlow and XLA have it: [`submit`].
//!
//! Over [`crate::calls`]: answers become outcomes or the first error, and a panic of ours becomes an error.
//!
//! Not here: what a call's memory is, and what its callback does (`tensorflow`, `jax`).

use std::sync::{Arc, Weak};

use farandole::{ErrorClass, Outcome, Submission};

use crate::calls::{self, Answer, Calls};
use crate::op_error::OpError;
use crate::world::Job;

/// Called with the outcomes of all requests, or with the first error.
pub(crate) type Callback = Box<dyn FnOnce(Result<Vec<Outcome>, OpError>) + Send>;

/// Requests that are ready to be submitted.
pub(crate) struct Prepared {
    calls: Arc<Calls>,
    job: Arc<Job>,
    submissions: Vec<Submission>,
}

impl Prepared {
    pub(crate) fn submit(self, callback: Callback) {
        let Prepared { calls, job, submissions } = self;
        calls.submit(&job, submissions, Box::new(move |answers, job| callback(outcomes_of(answers, job))));
    }
}

/// Makes the requests of a call.
pub(crate) fn prepare(make: impl FnOnce(&Job) -> Result<Vec<Submission>, OpError>) -> Result<Prepared, OpError> {
    guarded(|| {
        let (current, job) = calls::current().ok_or_else(OpError::not_initialized)?;
        let submissions = make(&job)?;
        let calls = current.calls(&job).ok_or_else(|| OpError::wrong_use("no thread could be started for ops"))?;
        Ok(Prepared { calls, job, submissions })
    })
}

/// Makes and submits the requests of a call, whose callback runs in any case.
pub(crate) fn submit(make: impl FnOnce(&Job) -> Result<Vec<Submission>, OpError>, callback: Callback) {
    match prepare(make) {
        Ok(prepared) => prepared.submit(callback),
        Err(error) => callback(Err(error)),
    }
}

/// The outcomes of all requests, or the first error.
pub(crate) fn outcomes_of(answers: Vec<Answer>, job: &Weak<Job>) -> Result<Vec<Outcome>, OpError> {
    answers.into_iter().map(|answer| answer.map_err(|returned| OpError::of(job, returned.error))).collect()
}

/// A panic of ours must not unwind into the framework, and the op must end.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, OpError>) -> Result<T, OpError> {
    calls::guarded(work, |bug| OpError::ended(ErrorClass::Other, bug))
}

/// The job.
pub(crate) fn current() -> Result<Arc<Job>, OpError> {
    calls::current().map(|(_, job)| job).ok_or_else(OpError::not_initialized)
}
