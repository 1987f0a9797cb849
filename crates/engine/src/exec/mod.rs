//! The executor: how one collective is carried out, whoever asked for it.
//!
//! Named requests (`group`) and direct calls (`direct`) say what is wanted. From there on both are the same. A
//! collective takes a *plane* (`plan::plane`): links, windows, the mapped fusion buffer, or one that was added. Its
//! [`Buffers`] are lent to every call. An [`Execution`] is its state; [`Execution::advance`] does what can be done now
//! and never blocks, so giving a collective up means dropping its execution.
//!
//! - `planes`: the planes of a group, and the execution of a bucket on one of them.
//! - `links`: steps over links; `windows`: steps through shared memory; `reads`: out of the peers' own memory;
//!   `adasum`: exchanges of whole vectors.
//! - `device`: in the memory of devices; `nccl`: there, by NCCL.
//! - `fusion_buffer`: the group's own memory for buckets; `plan_cache`: what was worked out for collectives that
//!   repeat.
//! - `backoff`: spin, yield, sleep; `crowd`: whether others compute on this rank's cores.
//! - `store_policy`: whether bytes for other ranks leave around the cache; `step_trace`: which steps were taken when.
//!
//! Who drives an execution, and where a thread sleeps, is not decided here.

pub(crate) mod adasum;
pub(crate) mod backoff;
pub(crate) mod buffers;
pub(crate) mod crowd;
pub(crate) mod device;
pub(crate) mod execution;
pub(crate) mod fusion_buffer;
pub(crate) mod links;
pub(crate) mod nccl;
pub(crate) mod plan_cache;
pub(crate) mod planes;
pub(crate) mod reads;
pub(crate) mod step_trace;
pub(crate) mod store_policy;
pub(crate) mod windows;

pub(crate) use buffers::{Buffers, Halves};
pub(crate) use execution::Execution;
