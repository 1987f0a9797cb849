//! What measurements mean: studies of scaling, calibration of algorithms, and the input pipeline.
//!
//! A study is a sweep ([`sweep`]) over points ([`point`], [`input`], [`planes`]). The command measures each point
//! several times ([`run`]); the figures of a run come from the program's output ([`throughput`]) and from its trace
//! ([`times`]). [`findings`] has a row for each point, fits laws and puts the result into sentences; [`table`] and
//! [`page`] show it. [`calibration`] decides which algorithms are measured how often and which of them are faster;
//! [`pipeline`] says what the figures of `farandole data bench` mean.
//!
//! Everything here is a function from values to values. This crate opens no file, starts no process, reads no clock and
//! knows no command line; the command `farandole` parses, measures, keeps and prints.

#![forbid(unsafe_code)]

pub mod calibration;
mod error;
pub mod findings;
mod fit;
pub mod input;
mod input_findings;
pub mod page;
pub mod pipeline;
pub mod planes;
pub mod point;
pub mod run;
pub mod sweep;
pub mod table;
pub mod throughput;
pub mod times;

pub use error::{Error, Result};
