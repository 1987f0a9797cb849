//! Why a call of this crate failed.

use std::fmt;

use farandole_plan::ErrorClass;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by the layer that says so. The text names rank, cause and, where there is one, the remedy.
#[non_exhaustive]
pub enum Error {
    /// This process could not find the other ranks.
    Cluster(farandole_cluster::Error),
    /// The ranks could not be connected, or a setting is wrong.
    Transport(farandole_transport::Error),
    /// A collective was refused or failed.
    Engine(farandole_engine::Error),
    /// A rank was lost before all were connected.
    Lost(farandole_cluster::FailureNotice),
    /// A peer's message at the rendezvous cannot be understood: it runs another version.
    Rendezvous(String),
    /// The ranks have different values of a setting that must be the same on all of them, or not all of them have what
    /// it needs.
    Settings(String),
    /// The result has another element type than was asked for.
    WrongElement,
    /// The parts into which data is to be divided do not fit it.
    Parts(String),
    /// The parameters of a module, or what was done with their gradients, do not fit together.
    Parameters(String),
    /// A gradient has become infinite on its way, because it travels in fewer bits than it has. All ranks get this in
    /// the same step, and nobody has learned from it.
    Overflow(String),
}

impl Error {
    /// What the caller can do about it, where other ranks have a part in it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Engine(error) => error.class(),
            Error::Transport(error) => error.class(),
            Error::Lost(notice) => notice.class(),
            Error::Cluster(farandole_cluster::Error::Evicted { .. } | farandole_cluster::Error::Unconfirmed(_)) => {
                ErrorClass::RankLost
            }
            Error::Cluster(
                farandole_cluster::Error::Missing { .. }
                | farandole_cluster::Error::Unreachable { .. }
                | farandole_cluster::Error::NoGeneration { .. },
            ) => ErrorClass::Stall,
            Error::Settings(_) => ErrorClass::Mismatch,
            Error::Cluster(_)
            | Error::Rendezvous(_)
            | Error::WrongElement
            | Error::Parts(_)
            | Error::Parameters(_)
            | Error::Overflow(_) => ErrorClass::Other,
        }
    }

    /// Whether a rank is lost: one died (its process, its host or their connection), was stopped or silent for too
    /// long, or left while this rank waited for it; or this rank is the one that the others have continued without. A
    /// smaller world can continue, as [`crate::elastic::Training`] does.
    ///
    /// By variant: [`Error::Engine`] with [`crate::EngineError::PeerLeft`], or with [`crate::EngineError::Failed`] for
    /// such a cause; [`Error::Transport`] with a peer that is gone or that reports a lost rank; [`Error::Lost`], unless
    /// only the launcher was lost; [`Error::Cluster`] with an evicted or unconfirmed process. Never: limits of waits,
    /// requests that differ, settings, and all other variants.
    pub fn is_rank_lost(&self) -> bool {
        self.class() == ErrorClass::RankLost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Cluster(error) => error.fmt(f),
            Error::Transport(error) => error.fmt(f),
            Error::Engine(error) => error.fmt(f),
            Error::Lost(verdict) => verdict.fmt(f),
            Error::Rendezvous(what)
            | Error::Settings(what)
            | Error::Parts(what)
            | Error::Parameters(what)
            | Error::Overflow(what) => f.write_str(what),
            Error::WrongElement => f.write_str("the result has another element type than the one asked for"),
        }
    }
}

/// The same words: what a `main` that returns a [`Result`] ends with, and what `unwrap` panics with.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    /// The cause behind the layer's own error, whose words this error has taken over.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Cluster(error) => error.source(),
            Error::Transport(error) => error.source(),
            Error::Engine(error) => error.source(),
            _ => None,
        }
    }
}

impl From<farandole_cluster::Error> for Error {
    fn from(error: farandole_cluster::Error) -> Error {
        Error::Cluster(error)
    }
}

impl From<farandole_transport::Error> for Error {
    fn from(error: farandole_transport::Error) -> Error {
        Error::Transport(error)
    }
}

impl From<farandole_engine::Error> for Error {
    fn from(error: farandole_engine::Error) -> Error {
        Error::Engine(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_reads_as_a_sentence() {
        let error = Error::Engine(farandole_engine::Error::ShutDown);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(!format!("{error:?}").contains("ShutDown"), "{error:?}");
        assert_eq!(format!("{:?}", Err::<(), _>(Error::Parts("3 parts of 2".to_owned()))), "Err(3 parts of 2)");
    }
}
