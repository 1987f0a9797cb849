//! The state of a training, from the memory of a member to that of a process that is about to join, while the members
//! go on training.
//!
//! A process that is not a candidate yet (the *follower*) connects to one member (the *source*, [`StateSource`]) and
//! asks for its state. After its next step the source's training hands over a copy, the *snapshot*, and from then on
//! the *update* of every step: what all ranks have computed together, from which the state of the next step follows.
//! Threads of the source send them, in order. The follower ([`StateReceiver`]) makes the same steps with the same
//! updates, and becomes a candidate when little is left to send; the stream goes on until it is let in.
//!
//! **What ends a stream.** Updates wait in a log of limited size; if the follower is too slow for it, if the members
//! are at the boundary for long (they may be waiting for this very process), or if there is nothing to gain, the
//! follower is told to join as it is. It then gets the whole state when it is let in. The same if the source is lost.
//! A change of the state without an update makes the stream begin anew, with another snapshot.
//!
//! Invariant: a training that has no followers pays two loads of a number in each step; one that has some pays a copy
//! of its state for each of them, and a copy of each update. It never waits for them.
//!
//! Not here: what snapshots and updates are (bytes), which member is asked, and whether the follower's state is right,
//! which the ranks find out when it has joined.

mod receiver;
mod source;
mod wire;

use std::time::Duration;

use farandole_transport::{JobId, Key};

pub use receiver::{StateReceiver, Streamed};
pub use source::{StateSource, StreamLimits};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use wire::check_any_word;

/// For a connection and its handshake. Somebody who is well answers at once, unless the machine is very busy.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);

/// A process as a side of a stream.
#[derive(Clone, Debug)]
pub struct StreamPeer {
    /// The job's key.
    pub key: Key,
    /// Which job this is; others may have the same key.
    pub job: JobId,
    /// Identity of this host, within which Unix sockets are used.
    pub host: String,
    /// The number of this process among the members.
    pub member: u64,
}
