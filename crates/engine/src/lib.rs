//! Drives: takes requests, agrees with peers, runs schedules over links.

#![forbid(unsafe_code)]

mod completion;
pub mod config;
pub mod error;
mod intake;
mod sync;

pub use config::Config;
pub use error::{Error, Failure, Result};
