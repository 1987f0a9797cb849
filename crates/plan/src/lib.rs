//! Decides what the ranks of a job do: which requests are ready everywhere, in what order they run,
//! which of them travel together, and the exact steps of every rank.
//!
//! Everything here is a function from values to values. There is no I/O, no clock (time is a parameter called `now`),
//! no thread, no unsafe code and no tensor memory: a [`Request`] describes a tensor, it does not hold one. This is why
//! every algorithm can be proved by running all ranks symbolically (`tests/schedules`) and why tests drive the very
//! code that production drives, without a socket or a thread: `tests/agree` runs agreement among ranks over a simulated
//! network.
//!
//! The words used throughout: a *rank* is one process of the job; a *group* is a set of ranks that talk to
//! each other, numbered anew from zero inside the group; a *request* is what a rank asks for; a *bucket* is a set of
//! requests that travel together; a *chunk* is the part of a buffer that one rank is responsible for; a *schedule* is
//! the list of *steps* of one rank.

#![forbid(unsafe_code)]

pub mod agree;
pub mod algorithm;
mod alltoall;
mod barrier;
mod broadcast;
pub mod choose;
pub mod cost;
mod doubling;
pub mod fuse;
mod gather;
mod halving;
mod hierarchical;
pub mod item;
pub mod message;
pub mod plane;
pub mod request;
mod ring;
mod scatter;
pub mod schedule;
pub mod stall;
pub mod table;
mod team;
pub mod topology;
mod tree;
pub mod validate;
mod window;
mod wire;

pub use algorithm::{Algorithm, Tuning};
pub use request::{Batch, Collective, Device, Dtype, GroupId, Rank, ReduceOp, Request, Shape};
pub use schedule::{Arrival, Buffer, Results, Schedule, Span, Step};
pub use topology::Topology;
