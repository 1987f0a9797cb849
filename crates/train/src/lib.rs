//! The built-in trainer: networks, data sets, and the loop that trains a network on many ranks.
//!
//! This crate uses the public API of `farandole` with its adapter for Burn, and nothing below it. The parts:
//!
//! - a *model* ([`model`], made of [`layer`] and [`kernel`]) turns images into outputs;
//! - a *data set* ([`farandole_data`]) makes samples by number, generated or read from files; a *loader* makes batches
//!   of this rank's share of them, ahead of time;
//! - a *task* ([`task`]) says what outputs mean: the loss, and what is counted to judge a network;
//! - the *trainer* ([`trainer`]) puts them together; [`checkpoint`] saves everything that it needs to go on.
//!
//! Invariants: what a step learns from follows from seed, epoch, step and global batch, not from the number of ranks or
//! threads. What a network computes for a sample depends on neither. Ranks decide by sums over all ranks, before they
//! change their weights, so they continue or stop together.
//!
//! Entry points: [`job::TrainJob`] says what to train; [`check`] tells whether that is possible; [`run`] trains as one
//! rank of the job.
//!
//! Not here: the command line and starting ranks (`farandole-cli`).

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod error;
pub mod evaluate;
pub mod job;
pub mod kernel;
pub mod layer;
pub mod log;
pub mod model;
pub mod optimizer;
pub mod progress;
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
pub use trainer::{Ended, Failed, check, limit_threads, run};
