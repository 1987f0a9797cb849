//! A running job as its owner may watch it.
//!
//! Ranks send a sample of what they do (`farandole_trace::live`) over the lifeline that they have anyway, once in a
//! second, so nothing new is opened between hosts. Whoever hosts the meeting, the launcher or rank 0, keeps what is
//! known of all ranks on a [`Board`] and has a [`Stand`] where it is shown: at an abstract Unix socket, to processes of
//! the same user, as a [`Snapshot`] in JSON; and, only if that was asked for, at a TCP address in the text form of
//! Prometheus ([`metrics`]). [`find`] is the other end of the socket.
//!
//! **Invariant:** watching changes nothing. At the socket nothing is read from onlookers; of a request for metrics a
//! line is understood, and no more than a few kilobytes are read; onlookers that are slow, or too many, are sent away.
//! There are no secrets on a board.

mod board;
mod find;
mod http;
pub mod metrics;
mod snapshot;
mod stand;

pub use board::Board;
pub use find::{Found, find};
pub use http::parse_address;
pub use snapshot::{FORMAT, JobView, LastStall, RankView, Snapshot, State, Totals};
pub use stand::Stand;

/// The variable that says where metrics are shown, for jobs that another launcher starts; `farandole run` reads it,
/// too.
pub const METRICS: &str = "FARANDOLE_METRICS";
