//! Who is in the job: how a process learns which rank it is, how ranks find each other, and how ranks are started on
//! this machine.
//!
//! [`Environment`] reads what a launcher, ours or another, has left for a process; its [`RendezvousAccess`] is where
//! ranks meet. [`Rendezvous`] lets all ranks swap one message each, before any of them knows where the others are.
//! [`Job`] starts ranks as children of this process and ends them all when one of them fails.
//! [`launch`] is the vocabulary of jobs that may span hosts, [`live`] how a running one is watched.
//! [`channel`] is how processes of a job talk before and beside their collectives: encrypted, and closed to whoever
//! does not hold the job's key. What the messages say (addresses, versions) is not this crate's business; it carries
//! bytes.

#![forbid(unsafe_code)]

pub mod channel;
mod encoding;
pub mod environment;
pub mod error;
pub mod failure_notice;
pub mod launch;
pub mod live;
pub mod rendezvous;
pub mod spawn;

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

pub use environment::{Environment, Launcher, RendezvousAccess};
pub use error::{Error, Result};
pub use failure_notice::{FailureKind, FailureNotice};
pub use rendezvous::{Address, Lifeline, Rendezvous, Server};
pub use spawn::Job;
