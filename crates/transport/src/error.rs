//! What can go wrong between two ranks, by what the caller can do about it.

use std::fmt;
use std::io;
use std::time::Duration;

use farandole_plan::{ErrorClass, Rank};

use crate::key::JobId;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The world misbehaved. Each variant names the peer; layers above add the tensor and the time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer's process ended or its host went away: the connection was closed without a word.
    PeerGone {
        /// The peer.
        peer: Rank,
        /// What showed it: end of file, connection reset, …
        how: String,
    },
    /// The peer gave up and said why before it closed.
    PeerAborted {
        /// The peer that told us.
        peer: Rank,
        /// The rank that it blames, if it can name one, as the layers above count ranks.
        blamed: Option<Rank>,
        /// The class that it gives the error.
        class: ErrorClass,
        /// Its own words: the first cause.
        cause: String,
    },
    /// The peer sent something that is not our protocol, or not what both had agreed on.
    Garbled {
        /// The peer.
        peer: Rank,
        /// What was wrong.
        what: String,
    },
    /// The peer has begun the operation, but takes it to be another one: the ranks do not make the same calls in
    /// the same order.
    Disagree {
        /// The peer.
        peer: Rank,
        /// Number of the operation.
        operation: u64,
        /// What this rank takes it to be, in a form that only the layers above can read.
        ours: u64,
        /// What the peer takes it to be.
        theirs: u64,
    },
    /// The peer speaks another version of the protocol.
    Version {
        /// The peer, if it had said who it is.
        peer: Option<Rank>,
        /// Our version.
        ours: u16,
        /// Its version.
        theirs: u16,
    },
    /// Payload arrived with a wrong checksum or seal.
    Corrupt {
        /// The peer.
        peer: Rank,
        /// What was wrong.
        what: String,
    },
    /// Nothing moved for too long.
    Deadline {
        /// The peer that we were waiting for, if one can be named.
        peer: Option<Rank>,
        /// What we were waiting for.
        waiting_for: String,
        /// For how long.
        waited: Duration,
    },
    /// Somebody outside knows that the ranks cannot be connected.
    Interrupted {
        /// The rank that is to blame, if one can be named.
        peer: Option<Rank>,
        /// The class of the cause.
        class: ErrorClass,
        /// Why.
        cause: String,
    },
    /// The peer does not hold the job's key.
    Untrusted {
        /// Where it came from.
        from: String,
    },
    /// The peer holds the job's key, but is a rank of another job.
    OtherJob {
        /// Where it is.
        at: String,
        /// Our job.
        ours: JobId,
        /// Its job.
        theirs: JobId,
    },
    /// This process may not open as many files as it needs.
    Descriptors {
        /// What it needs them for.
        what: String,
        /// How many that takes.
        needed: u64,
        /// How many are open.
        open: u64,
        /// How many it may open at most.
        limit: u64,
    },
    /// The operating system refused something on this side.
    Local {
        /// What we tried.
        doing: String,
        /// Its answer.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the operating system with what was being tried.
    pub fn local(doing: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Local { doing: doing.into(), source: source.into() }
    }

    /// The peer that is to blame, if one can be named.
    pub fn peer(&self) -> Option<Rank> {
        match self {
            Error::PeerGone { peer, .. }
            | Error::PeerAborted { peer, .. }
            | Error::Garbled { peer, .. }
            | Error::Disagree { peer, .. }
            | Error::Corrupt { peer, .. } => Some(*peer),
            Error::Version { peer, .. } | Error::Deadline { peer, .. } | Error::Interrupted { peer, .. } => *peer,
            Error::Untrusted { .. } | Error::OtherJob { .. } | Error::Descriptors { .. } | Error::Local { .. } => None,
        }
    }

    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::PeerGone { .. } => ErrorClass::RankLost,
            Error::PeerAborted { class, .. } | Error::Interrupted { class, .. } => *class,
            Error::Disagree { .. } => ErrorClass::Mismatch,
            Error::Deadline { .. } => ErrorClass::Stall,
            Error::Garbled { .. }
            | Error::Version { .. }
            | Error::Corrupt { .. }
            | Error::Untrusted { .. }
            | Error::OtherJob { .. }
            | Error::Descriptors { .. }
            | Error::Local { .. } => ErrorClass::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PeerGone { peer, how } => write!(f, "rank {peer} is gone ({how})"),
            Error::PeerAborted { cause, .. } | Error::Interrupted { cause, .. } => f.write_str(cause),
            Error::Garbled { peer, what } => write!(f, "rank {peer} sent something unexpected: {what}"),
            Error::Disagree { peer, operation, ours, theirs } => write!(
                f,
                "rank {peer} takes operation {operation} to be {theirs:016x}, this rank takes it to be {ours:016x}: \
                 the ranks disagree: they do not make the same calls in the same order, or their settings differ"
            ),
            Error::Version { peer: Some(peer), ours, theirs } => {
                write!(
                    f,
                    "rank {peer} speaks protocol version {theirs}, this rank speaks {ours}: install the same farandole everywhere"
                )
            }
            Error::Version { peer: None, ours, theirs } => {
                write!(
                    f,
                    "a peer speaks protocol version {theirs}, this rank speaks {ours}: install the same farandole everywhere"
                )
            }
            Error::Corrupt { peer, what } => write!(f, "data from rank {peer} arrived damaged: {what}"),
            Error::Deadline { peer: Some(peer), waiting_for, waited } => {
                write!(f, "waited {:.1} s for rank {peer}: {waiting_for}", waited.as_secs_f64())
            }
            Error::Deadline { peer: None, waiting_for, waited } => {
                write!(f, "waited {:.1} s: {waiting_for}", waited.as_secs_f64())
            }
            Error::Untrusted { from } => write!(f, "a connection from {from} does not hold this job's key"),
            Error::OtherJob { at, ours, theirs } => write!(
                f,
                "a rank of job '{theirs}' is at {at}, and this rank belongs to job '{ours}': both jobs have the same \
                 key"
            ),
            Error::Descriptors { what, needed, open, limit } => write!(
                f,
                "{what} needs {needed} descriptors beside the {open} that are open, and this process may open {limit}: raise \
                 the hard limit of open files (`* hard nofile` in /etc/security/limits.conf, LimitNOFILE= of a service, \
                 --ulimit nofile= of a container)"
            ),
            Error::Local { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Local { source, .. } => Some(source),
            _ => None,
        }
    }
}
