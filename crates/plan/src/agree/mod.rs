//! Which requests are ready on every rank, in what order they run, and when nobody needs to ask any more.
//!
//! One [`Member`] for each rank of each group. It is a state machine without I/O: the driver tells it what happened
//! ([`Member::submit`], [`Member::receive`], [`Member::finished`], [`Member::handle_timeout`]) and asks it what to do
//! ([`Member::poll_send`], [`Member::poll_action`], [`Member::next_timeout`]). Rank 0 of the group also plays the
//! *coordinator*; its messages to itself never leave the machine.
//!
//! **Negotiation.** Members *announce* requests to the coordinator. Once every rank has announced a name (or has
//! joined), the coordinator checks the requests against each other and appends the agreed [`Item`](crate::item::Item)
//! to the *agreed stream*, which every member receives in the same batches. Each member turns each batch into buckets
//! with [`fuse`](crate::fuse::fuse), a pure function, so that all ranks hold the same buckets in the same order.
//!
//! **Replay.** When the stream repeats itself, the coordinator says so, once. From then on every rank runs the buckets
//! of the *cycle* in order, each as soon as its requests have been submitted here, and no message passes at all.
//!
//! **Break.** A rank on which something does not fit *stops*: it enters no more buckets, and `Stopped` says how many it
//! has *entered*. At the first `Stopped` the coordinator sends `Halt`, at which the others stop. The least of the
//! numbers, `until`, comes back in `Resume`: every bucket before `until` has been entered by all ranks and therefore
//! finishes on all; no bucket from `until` on can have finished anywhere, because some rank never entered it. These are
//! *abandoned*, their requests are announced again, and the next *round* negotiates. For this to be true a replayed
//! bucket must not finish, nor touch the caller's memory, before all ranks have entered it: buckets that could are
//! marked [`Bucket::entry_barrier`], and the driver runs a barrier first.
//!
//! A rank that runs no replayed bucket when it stops has nothing to abandon: it goes to the next round at once, and its
//! announcements follow its `Stopped`. So ranks that all come to the same change negotiate within one round trip, and
//! within two if one of them did not notice the change.
//!
//! What does not fit: an unknown name, other metadata, a join, a close; or that the next bucket lacks requests which
//! will not come. They will not come when the thread that submits waits ([`Member::awaits`]): the rank stops at once.
//! Where no thread waits, or another one, the rank stops when the program has paused for longer than
//! [`Settings::patience`], which never grows. What comes after a pause is not fused with what came before it when this
//! is learned, because that has finished by then (`seen`), so a program that always pauses there loses a replay once.
//!
//! Buckets run one at a time: after [`Action::Run`] the next one comes only after [`Member::finished`].
//!
//! Not here: memory, sockets, threads, clocks (`now` is a parameter, counted from any fixed start), and the steps of a
//! collective (`schedule`). Groups know nothing of each other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fuse::{BatchFusion, BucketPlan};
use crate::request::Rank;

mod coordinator;
mod follow;
mod gradient_sets;
mod learn;
mod member;
mod negotiation;
mod replay;
mod table;

pub use member::Member;

/// A request that was accepted and is not yet settled. Small numbers that are used again, fit to index a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

impl RequestId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a bucket that runs in a group: the same on all ranks, never used twice.
///
/// The upper bits hold the round, the lower [`Operation::INDEX_BITS`] count buckets. An abandoned bucket
/// and the one that takes its place have the same index and different rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(pub u64);

impl Operation {
    /// Width of the counter: at a million buckets a second it lasts twelve days in one round and never
    /// restarts; the 24 bits above allow sixteen million breaks.
    pub const INDEX_BITS: u32 = 40;

    /// The `index`-th bucket, run in `round`.
    pub fn new(round: u32, index: u64) -> Operation {
        Operation(u64::from(round) << Operation::INDEX_BITS | index & ((1 << Operation::INDEX_BITS) - 1))
    }

    /// The round in which it was agreed.
    pub fn round(self) -> u32 {
        (self.0 >> Operation::INDEX_BITS) as u32
    }

    /// How many buckets ran before it.
    pub fn index(self) -> u64 {
        self.0 & ((1 << Operation::INDEX_BITS) - 1)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.round(), self.index())
    }
}

/// Whether agreed cycles are replayed without messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// As soon as the stream repeats itself.
    #[default]
    Allowed,
    /// Never: every request is negotiated.
    Never,
}

/// What the ranks that go on may do while another rank has joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joining {
    /// Every collective; see `validate` for what a joined rank contributes.
    #[default]
    Everything,
    /// What Horovod allows: allreduce and barrier. The others are refused in its words.
    LikeHorovod,
}

/// What can be set. `threshold_bytes`, `stage_below_bytes`, `alone_from_bytes`, `batches`, `joining` and `replay` must
/// be equal on all ranks of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Largest bucket of more than one tensor; zero turns fusion off.
    pub threshold_bytes: u64,
    /// An allreduce of one tensor up to this size travels through the fusion buffer too (`BucketPlan::staged`), so that
    /// its replay needs no entry barrier.
    pub stage_below_bytes: u64,
    /// An allreduce of one tensor from this size on travels alone.
    pub alone_from_bytes: u64,
    /// With what the requests of a batch fuse.
    pub batches: BatchFusion,
    /// How long a replaying rank may see no progress while requests wait that no thread is known to need.
    pub patience: Duration,
    /// How long a replayed bucket may run before the rank stops, so that the coordinator, which sees nothing during
    /// replay, learns who is missing and a stall can be explained.
    pub run_limit: Duration,
    /// Whether cycles are replayed.
    pub replay: Replay,
    /// What goes on while a rank has joined.
    pub joining: Joining,
    /// World rank of each rank of the group, for texts that users read; empty if they are the same.
    pub world_ranks: Vec<Rank>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            // Horovod's default: large enough for line rate, small enough that the first bucket leaves early.
            threshold_bytes: 64 << 20,
            // Copying 256 KiB in and out costs about as much as the barrier that it saves.
            stage_below_bytes: 256 << 10,
            alone_from_bytes: u64::MAX,
            batches: BatchFusion::WithOthers,
            // Longer than any pause of the scheduler, short against a training iteration.
            patience: Duration::from_millis(10),
            run_limit: Duration::from_secs(5),
            replay: Replay::Allowed,
            joining: Joining::Everything,
            world_ranks: Vec::new(),
        }
    }
}

/// One bucket, ready to run on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Its number, to be carried in frames.
    pub operation: Operation,
    /// What it consists of; shared between iterations.
    pub plan: Arc<BucketPlan>,
    /// This rank's request for each part of the plan, in order. `None` where this rank has joined: it takes part with
    /// a neutral contribution and drops what it receives.
    pub requests: Vec<Option<RequestId>>,
    /// Whether it was replayed rather than negotiated.
    pub replayed: bool,
    /// Whether the driver must run a barrier before it touches any memory for this bucket.
    pub entry_barrier: bool,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run the bucket, then call [`Member::finished`], then tell the callers.
    Run(Bucket),
    /// Drop the run of this bucket, which is the last one given out. Caller memory is untouched; its requests stay
    /// valid and will run later. Do not call [`Member::finished`] for it.
    Abandon {
        /// The number of the bucket.
        operation: Operation,
    },
    /// These requests will not run. Their ids are free again.
    Refuse {
        /// The requests.
        requests: Vec<RequestId>,
        /// Why; the same text on all ranks.
        reason: Arc<str>,
    },
    /// All ranks have joined. The id is free again.
    Joined {
        /// This rank's join.
        request: RequestId,
        /// The rank that joined last.
        last: Rank,
    },
    /// The group is closed: nothing is in flight, nothing more will come, requests are refused.
    Closed {
        /// Why.
        cause: Arc<str>,
    },
}

/// A request that is refused at once, on this rank alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why, for the user.
    pub reason: Arc<str>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// A peer sent something that no correct peer sends in this state. The group cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who sent it.
    pub from: Rank,
    /// What was wrong with it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} broke the agreement protocol: {}", self.from, self.what)
    }
}

impl std::error::Error for Violation {}
