//! Members of an elastic job keep a connection with each other and agree on generations.
//!
//! The agreement is `farandole_plan::membership`, a state machine. Here is what carries it: the [`Endpoint`] of a
//! process, a thread of its own (`endpoint_thread`) with one channel to each other member, over Unix sockets within a
//! host and TCP between hosts, and the encodings (`wire`). It shares no lock with the engine, so it is heard while the
//! engine waits.
//!
//! **What proves an end.** A connection that ends, by a FIN, a reset or an error, proves nothing: a middlebox can end
//! it while both processes live. The peer is redialled, and is suspected if it is not heard within two heartbeats,
//! which is half of the heartbeat timeout. A refused connection is a reason for suspicion as well. Three things prove
//! that a process has ended or takes part no more: its sealed `Leave`; on the same host its pidfd, once the Unix stream
//! was read to the end; and the report of the agent that reaped it, with the record of its votes (`vote_file`).
//! Children that a process has forked may keep its connections open; they do not delay the pidfd or the agent.
//!
//! Within a host an endpoint does not close an established connection to a member first, except after its `Leave`. So a
//! Unix stream whose end was read, and whose process then ends, has carried all that the process sent.
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
mod vote_file;
mod wire;

pub use endpoint::{Endpoint, EndpointOptions, LossNotice};
pub use record::{Replayed, replay};
pub(crate) use vote_file::{make_vote_file, votes_of};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use wire::check_any_packet;
pub(crate) use wire::{Whereabouts, answer_as_witness};

pub use farandole_plan::membership::{ConfirmRefusal, Generation, Introduction, Limits, Loss, MemberId};

/// What a simulation drives: an endpoint without its thread, its sockets and its clock. For tests of this crate.
#[doc(hidden)]
pub mod simulated {
    pub use super::connection::MemberMedium;
    pub use super::endpoint::{BoundaryOutcome, Command, EndpointState, Shared};
    pub use super::endpoint_core::{After, ConnectionId, EndpointCore, PeerProcess};
    pub use super::network::{MemberCall, MemberChannel, MemberNetwork, PeerWatch, Rule};
    pub use super::wire::{Whereabouts, answer_as_witness};
}
