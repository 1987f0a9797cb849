//! Who is in the job: how a process learns which rank it is, how ranks find each other, and how jobs are started.
//!
//! - [`Environment`] reads what a launcher, ours or another, has set for a process; [`RendezvousAccess`] is what a rank
//!   needs to join its job.
//! - [`Rendezvous`] lets all ranks exchange one message each before they know each other's addresses.
//! - [`launch`] starts jobs on one host or many, [`live`] shows running ones.
//! - [`channel`] connects the processes of a job outside collectives: encrypted, and closed to processes without the
//!   job's key. It carries bytes; what they mean is the caller's business.

#![forbid(unsafe_code)]

pub mod channel;
mod encoding;
pub mod environment;
pub mod error;
pub mod failure_notice;
pub mod launch;
pub mod live;
mod mailbox;
pub mod rendezvous;

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

pub use environment::{Environment, Launcher, RendezvousAccess};
pub use error::{Error, Result};
pub use failure_notice::{FailureKind, FailureNotice};
pub use rendezvous::{Address, Lifeline, Rendezvous, Server};
