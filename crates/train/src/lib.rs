//! The built-in trainer: networks, data for them, and the loop that trains them on many ranks.
//!
//! Everything here is ordinary use of the crate `farandole` with its adapter for Burn; nothing reaches below it. A
//! *model* turns images into outputs; a *data set* makes samples by number; a *loader* turns its share of them into
//! batches; a *task* says what the outputs mean, how wrong they are, and what is counted to judge them. The *trainer*
//! puts them together, the same on one rank as on many: what the ranks of a job compute together in one step is what
//! one rank would compute with all their batches.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod data;
pub mod error;
pub mod evaluate;
pub mod job;
pub mod kernel;
pub mod layer;
pub mod log;
pub mod model;
pub mod optimizer;
pub mod progress;
pub mod sample;
pub mod schedule;
pub mod share;
pub mod source;
pub mod stop;
pub mod stopwatch;
pub mod summary;
pub mod tap;
pub mod task;
pub mod trainer;
pub mod weights;

pub use error::{Error, Result};
pub use source::GENERATED;
pub use trainer::{Ended, check, limit_threads, run};
