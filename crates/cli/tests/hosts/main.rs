//! `farandole run` on several hosts: network namespaces of this machine that are as much like machines of their own as
//! a test can make them, with a real `sshd` in each.
//!
//! `lab.rs` makes the hosts and the network between them, `host.rs` is one of them, `running.rs` a command that runs
//! there. The other files are tests: `laboratory.rs` of the laboratory itself, `jobs.rs` of jobs that go well,
//! `faults.rs` of jobs that are hit by something, `elastic.rs` of those that go on then, `frozen.rs` of jobs that are
//! stopped for a while, `unreachable.rs` of jobs that cannot start, `cycles.rs` of what is left after many, `tasks.rs`
//! of jobs with more than a command, `doctoring.rs` of the doctor's visits, `benching.rs` of benchmarks, `training.rs`
//! of the built-in trainer, `wire.rs` of what can be read on the network. Everything here needs root, iproute2 and
//! openssh-server; where one of these is missing, tests fail with a line that says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benching;
mod cycles;
mod doctoring;
mod elastic;
mod faults;
mod frozen;
mod host;
mod jobs;
mod lab;
mod laboratory;
mod running;
mod tasks;
#[cfg(feature = "train")]
mod training;
mod unreachable;
mod wire;
