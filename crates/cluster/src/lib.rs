//! Processes of a job: which rank a process is, how ranks find each other, how a job is started, watched and ended.
//!
//! - [`Environment`] reads what a launcher has set: `farandole run`, `mpirun`, `torchrun`, `srun` or `horovodrun`.
//!   [`Environment::open`] gives a [`RendezvousAccess`]: the job's key, the rendezvous, and an address to listen at.
//! - [`Rendezvous`]: all ranks exchange one message each, before they know each other's addresses. The connection stays
//!   open as the [`Lifeline`]: by it a rank that dies or falls silent is noticed, and the others get a
//!   [`FailureNotice`]. A [`Server`] hosts the rendezvous.
//! - [`launch`]: starts a job on one host or many ([`launch::run`] with a [`launch::JobSpec`]). The launcher decides;
//!   an agent on each host obeys.
//! - [`membership`]: the [`membership::Endpoint`] by which members of an elastic job agree on generations.
//! - [`streaming`]: the state of a training, for a process that is about to join, while the members go on.
//! - [`blocks`]: blocks of data sets, from the cache of one rank to another rank.
//! - [`publish`]: files that only a rank of the newest generation replaces, with a checksum.
//! - [`live`]: the state of a running job for `farandole top` and for Prometheus.
//! - [`channel`]: encrypted messages between processes that hold the job's key.
//!
//! Invariants: the key is never on a command line. A process without the key learns nothing and changes nothing. Agents
//! end their ranks when the launcher is gone, unless the job is elastic. No process outlives its job, except
//! grandchildren of a rank whose agent got SIGKILL. Watching a job changes nothing in it.
//!
//! Not here: tensor data (`farandole-transport`), and reading command lines (`farandole-cli`).

#![forbid(unsafe_code)]

pub mod blocks;
pub mod channel;
mod encoding;
pub mod environment;
pub mod error;
pub mod failure_notice;
pub mod launch;
pub mod live;
mod mailbox;
pub mod membership;
mod peer_listener;
pub mod publish;
pub mod rendezvous;
mod strangers;
pub mod streaming;

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

pub use environment::{ElasticMember, Environment, Launcher, RendezvousAccess};
pub use error::{Error, Result};
pub use failure_notice::{FailureKind, FailureNotice};
pub use rendezvous::{Address, Entry, Generation, Lifeline, Rendezvous, Server};
