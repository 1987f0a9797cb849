//! What can go wrong, by what the caller can do about it.
//!
//! Three kinds. *Wrong use* is found before anything is sent and costs nothing: the engine goes on. *Refused* means
//! that the ranks do not ask for the same thing; every rank gets the same explanation and the engine goes on. *Failed*
//! means that the group (and, for the world, the engine) cannot go on: every outstanding and every later ticket carries
//! the same [`Failure`], the first cause, not whatever broke next because of it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use farandole_plan::{ErrorClass, GroupId, Rank, RankDeparture};
use farandole_trace::Recorder;

use crate::record::progress;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request was not carried out. Cheap to clone: many tickets share one cause.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The engine has been shut down by this process. Start a new one to go on.
    ShutDown,
    /// Another rank has left the job in order, and this one waits for it.
    PeerLeft(Arc<PeerLeft>),
    /// There is no such group.
    UnknownGroup(GroupId),
    /// This rank is not a member of the group.
    ForeignGroup(GroupId),
    /// A group of exactly these ranks exists already.
    ExistingGroup(GroupId),
    /// These ranks do not make a group.
    InvalidGroup(Arc<str>),
    /// A request of this name is still under way in the group.
    Duplicate {
        /// The name.
        name: Arc<str>,
        /// The group.
        group: GroupId,
    },
    /// The memory that came with the request does not fit its description.
    WrongMemory {
        /// The request's name.
        name: Arc<str>,
        /// What does not fit.
        what: Arc<str>,
    },
    /// The ranks do not ask for the same thing, or for something that cannot be done. All ranks get the same words.
    Refused {
        /// The request's name.
        name: Arc<str>,
        /// What differs, and on which ranks.
        explanation: Arc<str>,
    },
    /// The wait's own deadline passed. The request is still under way; the ticket can be waited for again.
    TimedOut {
        /// The request's name.
        name: Arc<str>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The result of this ticket has been taken before.
    Taken,
    /// This process is a fork of the one that started the engine. Start an engine in the child instead.
    Forked,
    /// A setting cannot be understood.
    Setting(Arc<str>),
    /// The group cannot go on; this is the first cause.
    Failed(Arc<Failure>),
}

/// The first cause of a group's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened, complete with rank, host, tensor and times, in the words of the rank that noticed first.
    pub what: String,
    /// What the caller can do about it: the same on all ranks.
    pub class: ErrorClass,
    /// The world rank that is to blame, if one can be named.
    pub rank: Option<Rank>,
    /// The request that was under way.
    pub tensor: Option<Arc<str>>,
    /// How long that request had been under way.
    pub elapsed: Option<Duration>,
}

/// A rank that has left the job in order, as another one that waits for it sees it.
///
/// The words say where the waiting rank is. It may learn of the departure before it asks for anything that the other
/// rank would have to take part in, so they are made when they are first read.
pub struct PeerLeft {
    departure: RankDeparture,
    waiting: Rank,
    recorder: Arc<Recorder>,
    words: OnceLock<String>,
}

impl PeerLeft {
    pub(crate) fn new(departure: RankDeparture, waiting: Rank, recorder: Arc<Recorder>) -> PeerLeft {
        PeerLeft { departure, waiting, recorder, words: OnceLock::new() }
    }

    /// Who has left, and how.
    pub fn departure(&self) -> &RankDeparture {
        &self.departure
    }
}

impl fmt::Display for PeerLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words.get_or_init(|| self.departure.missed_by(self.waiting, progress(&self.recorder))))
    }
}

impl fmt::Debug for PeerLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerLeft").field("departure", &self.departure).finish_non_exhaustive()
    }
}

impl Error {
    /// The rank of the world that has ended the collectives of this one, if it is known.
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            Error::PeerLeft(left) => Some(left.departure.rank),
            Error::Failed(failure) => failure.rank,
            _ => None,
        }
    }

    /// What the caller can do about it, where other ranks have a part in it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::PeerLeft(_) => ErrorClass::RankLost,
            Error::Refused { .. } => ErrorClass::Mismatch,
            Error::TimedOut { .. } => ErrorClass::Stall,
            Error::Failed(failure) => failure.class,
            Error::ShutDown
            | Error::UnknownGroup(_)
            | Error::ForeignGroup(_)
            | Error::ExistingGroup(_)
            | Error::InvalidGroup(_)
            | Error::Duplicate { .. }
            | Error::WrongMemory { .. }
            | Error::Taken
            | Error::Forked
            | Error::Setting(_) => ErrorClass::Other,
        }
    }

    /// Whether the engine (or the group) can still be used after this error.
    pub fn is_recoverable(&self) -> bool {
        !matches!(self, Error::ShutDown | Error::PeerLeft(_) | Error::Failed(_) | Error::Forked)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShutDown => f.write_str("Farandole has been shut down by this rank; call init again to go on"),
            Error::PeerLeft(left) => left.fmt(f),
            Error::UnknownGroup(group) => write!(f, "there is no group {group}"),
            Error::ForeignGroup(group) => write!(f, "this rank is not a member of group {group}"),
            Error::ExistingGroup(group) => write!(f, "a group of exactly these ranks exists already: group {group}"),
            Error::InvalidGroup(why) => write!(f, "these ranks do not make a group: {why}"),
            Error::Duplicate { name, group } => write!(
                f,
                "a request named \"{name}\" is still under way in group {group}; wait for it or choose another name"
            ),
            Error::WrongMemory { name, what } => write!(f, "memory of \"{name}\" does not fit the request: {what}"),
            Error::Refused { name, explanation } => write!(f, "\"{name}\": {explanation}"),
            Error::TimedOut { name, waited } => {
                write!(f, "\"{name}\" is not done after {:.3} s; it is still under way", waited.as_secs_f64())
            }
            Error::Taken => f.write_str("the result of this ticket has been taken before"),
            Error::Forked => f.write_str(
                "this process was forked from the one that started the engine; start an engine here instead",
            ),
            Error::Setting(what) => write!(f, "setting {what}"),
            Error::Failed(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Failed(failure) => Some(&**failure),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Failed(Arc::new(failure))
    }
}
