//! Who waits for whom, and since when.

use std::sync::Arc;
use std::time::Duration;

use crate::request::Rank;

/// When waiting becomes a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Waiting longer than this is reported.
    pub warn_after: Duration,
    /// Waiting longer than this should end the job; zero means never.
    pub shut_down_after: Duration,
}

/// One request that some ranks have made and others have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The tensor's name.
    pub name: Arc<str>,
    /// When the first rank announced it.
    pub since: Duration,
    /// Ranks that have not announced it.
    pub missing: Vec<Rank>,
}

/// A stall, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The requests that have waited too long, longest first.
    pub stalled: Vec<Waiting>,
    /// Whether one has waited so long that the job should end.
    pub shut_down: bool,
    /// The explanation.
    pub text: String,
}
