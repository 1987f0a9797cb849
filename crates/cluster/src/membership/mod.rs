//! Members of an elastic job keep a connection with each other and agree on generations.
//!
//! The agreement is `farandole_plan::membership`, a state machine. Here is what carries it: the [`Endpoint`] of a
//! process, a thread of its own (`endpoint_thread`) with one channel to each other member, over Unix sockets within a
//! host and TCP between hosts, and the encodings (`wire`). It shares no lock with the engine, so it is heard while the
//! engine waits.
//!
//! **What the end of a connection proves.** Within a host, a process that ends has its connections closed by its
//! kernel, and what it had sent arrives before that. Children that a process has forked may keep its connections open,
//! so its pidfd is watched as well. A refused connection is a reason for suspicion only. Between hosts the end of a
//! connection, closed or reset, proves nothing: the connection is made again, and the member is suspected if it is not
//! heard soon. Its death is certain when an agent, or a member of its host, says so.
//!
//! **Invariant:** silence is judged in awake time (`farandole_transport::awake`): whoever was stopped judges nobody.
//!
//! **Records.** All that a state machine was told can be kept in a file and told again (`record`).
//!
//! Not here: starting processes, and what a rank does with a generation.

mod connection;
mod endpoint;
mod endpoint_core;
mod endpoint_thread;
mod network;
mod record;
mod wire;

pub use endpoint::{Endpoint, EndpointOptions, LossNotice};
pub use record::{Replayed, replay};
pub(crate) use wire::Whereabouts;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use wire::check_any_packet;

pub use farandole_plan::membership::{Generation, Introduction, Limits, Loss, MemberId};

/// What a simulation drives: an endpoint without its thread, its sockets and its clock. For tests of this crate.
#[doc(hidden)]
pub mod simulated {
    pub use super::connection::MemberMedium;
    pub use super::endpoint::{BoundaryOutcome, Command, EndpointState, Shared};
    pub use super::endpoint_core::{After, ConnectionId, EndpointCore, PeerProcess};
    pub use super::network::{MemberCall, MemberChannel, MemberNetwork, Rule};
    pub use super::wire::Whereabouts;
}
