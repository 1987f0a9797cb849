//! Members of an elastic job keep a connection with each other and agree on generations.
//!
//! The agreement is `farandole_plan::membership`, a state machine. Here is what carries it: the [`Endpoint`] of a
//! process, a thread of its own (`endpoint_thread`) with one channel to each other member, over Unix sockets within a
//! host and TCP between hosts, and the encodings (`wire`). It shares no lock with the engine, so it is heard while the
//! engine waits.
//!
//! **What the kernel says.** A process that ends, however it ends, has its connections closed by its kernel, and what
//! it had sent arrives before that. So an end of the stream is a certain loss. A reset is one, too, unless the other
//! side was suspected already: within a host nothing is lost with it, and between hosts what was sent before the last
//! heartbeat has arrived. Whatever else ends a connection proves nothing, and it is made again. Children that a process
//! has forked may keep its connections open; so within a host its end is taken from its pidfd, and between hosts it is
//! known when an agent, or a member of its host, says so.
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
    pub use super::connection::Medium;
    pub use super::endpoint::{Command, Outcome, Shared, State};
    pub use super::endpoint_core::{After, ConnectionId, EndpointCore, Process};
    pub use super::network::{Call, MemberChannel, Network};
    pub use super::wire::Whereabouts;
}
