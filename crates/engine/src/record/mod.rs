//! What the engine records: the one place that says the engine's words in those of `trace`.
//!
//! - [`group`]: requests and buckets of a group, written by its driver.
//! - [`rare`]: the same outside the steady state.
//! - [`call`]: direct calls, written by the caller's thread.

pub(crate) mod call;
pub(crate) mod group;
mod rare;
