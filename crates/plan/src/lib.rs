//! Decides what the ranks of a job do: which requests are ready on all ranks, in which order they run, which are fused
//! into one bucket, which plane and algorithm a bucket uses, and the steps of each rank.
//!
//! Invariant: every decision is a function of values. There is no I/O, no clock (time is a parameter called `now`), no
//! thread, no unsafe code and no tensor memory: a [`Request`] describes a tensor, it does not hold one. For equal
//! arguments the schedules of all ranks fit together. So tests run the production code without sockets and threads:
//! `tests/schedules` proves every algorithm by executing all ranks symbolically, `tests/agree` and `tests/membership`
//! run agreements over a simulated network.
//!
//! Terms: a *rank* is a process of the job. A *group* is a set of ranks, numbered from zero inside the group. A
//! *request* is what a rank asks for. A *bucket* is a set of requests that are reduced together. A *chunk* is the part
//! of a buffer that one rank reduces. A *schedule* is the list of *steps* of one rank for one collective.
//!
//! Entry points:
//!
//! - [`Request`]: one tensor, one collective.
//! - [`agree::Member`]: one rank's side of the agreement, a state machine; it gives out buckets ([`fuse`]).
//! - [`plane`]: the plane, the element type and the schedule of a bucket; [`choose`] has the limits, [`table`] what was
//!   measured.
//! - [`algorithm`]: the [`Schedule`] of one rank, by algorithm; [`adasum`] says who combines with whom there.
//! - [`membership::Membership`]: one member's side of the agreement on who is in the job, generation by generation.
//! - [`stall`]: who waits for whom, and the report about it.
//! - [`straggler`]: which rank keeps the others waiting.
//!
//! Not here: carrying out steps (`farandole-engine`), arithmetic (`farandole-tensor`), links (`farandole-transport`).

#![forbid(unsafe_code)]

pub mod adasum;
pub mod agree;
pub mod algorithm;
mod alltoall;
mod barrier;
mod broadcast;
pub mod choose;
pub mod cost;
pub mod departure;
pub mod device;
mod doubling;
pub mod error_class;
pub mod fuse;
mod gather;
mod halving;
mod hierarchical;
pub mod item;
pub mod membership;
pub mod message;
pub mod p2p;
pub mod plane;
mod reduce;
pub mod request;
mod ring;
mod scatter;
pub mod schedule;
pub mod slices;
pub mod stall;
pub mod straggler;
pub mod table;
mod team;
pub mod topology;
mod tree;
pub mod validate;
mod window;
mod wire;

pub use algorithm::{Algorithm, Tuning};
pub use departure::{Exit, RankDeparture, RankProgress};
pub use error_class::ErrorClass;
pub use request::{Batch, Collective, Device, Dtype, GroupId, Rank, ReduceOp, Request, Shape};
pub use schedule::{Arrival, Buffer, Results, Schedule, Span, Step};
pub use topology::Topology;
