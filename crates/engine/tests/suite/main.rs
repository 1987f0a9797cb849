//! The tests of the whole crate: one module for each subject, one binary, because linking the crate takes longer than
//! compiling the tests of a subject. They run in processes of their own (`cargo nextest`).

mod harness;

mod abort;
mod collectives;
mod device_adasum;
mod device_failures;
mod device_hosts;
mod devices;
mod direct;
mod direct_hosts;
mod disagreement;
mod faults;
mod faults_direct;
mod faults_windows;
mod fork;
mod joined;
mod misuse;
mod nccl;
mod panics;
mod patterns;
mod planes;
mod programs;
mod queue;
mod recording;
mod rooted;
mod same_bits;
mod stalls;
mod stalls_direct;
mod tables;
mod transfers;
