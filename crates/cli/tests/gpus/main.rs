//! `farandole run` on a host with GPUs, which are pretended: how many ranks there are and what they see, and the job's
//! MPS daemon, whose program is a stand-in (`control.sh`).
//!
//! `job.rs` starts jobs and knows their processes; the other files are tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod job;
mod mps;
mod ranks;
