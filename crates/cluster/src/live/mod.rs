//! A running job as its owner may watch it.
//!
//! Ranks send a sample of what they do (`farandole_trace::live`) over the lifeline that they have anyway, once in a
//! second, so nothing new is opened between hosts. Whoever hosts the meeting, the launcher or rank 0, keeps what is
//! known of all ranks on a [`JobState`] and has a [`LiveEndpoint`] where it is shown: at an abstract Unix socket, to
//! processes of the same user, as a [`Snapshot`] in JSON; and, only if that was asked for, at a TCP address in the text
//! form of Prometheus ([`metrics`]). [`find`] is the other end of the socket.
//!
//! **Invariant:** watching changes nothing. Nothing is read from the socket; of a request for metrics a
//! line is understood, and no more than a few kilobytes are read; connections that are slow, or too many, are closed.
//! The state holds no secrets.

mod endpoint;
mod find;
mod http;
mod job_state;
pub mod metrics;
mod snapshot;

pub use endpoint::LiveEndpoint;
pub use find::{FoundJob, find};
pub use http::parse_address;
pub use job_state::JobState;
pub use snapshot::{FORMAT, JobView, LastStall, LiveState, RankView, Snapshot, Totals};

/// The variable that says where metrics are shown, for jobs that another launcher starts; `farandole run` reads it,
/// too.
pub const METRICS: &str = farandole_settings::METRICS.name;
