//! Why a file was not published, and which file is there now.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::seal::{NotSealable, Token};

/// Why a file was not published.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// A later generation of this job has published: this rank was replaced.
    Replaced {
        /// The file.
        path: PathBuf,
        /// What is there.
        present: Token,
    },
    /// Another job has published here.
    OtherJob {
        /// The file.
        path: PathBuf,
        /// What is there.
        present: Token,
    },
    /// The fence refused this rank.
    Fenced {
        /// The file.
        path: PathBuf,
        /// The fence's reason.
        why: String,
    },
    /// The content cannot be sealed.
    Content(NotSealable),
    /// The new content could not be written. The file is unchanged.
    Unchanged {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The new content is in place, but its folder could not be synced.
    Unsynced {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl PublishError {
    /// The file that is there is not older than the one to publish.
    pub(super) fn newer(path: &Path, present: Token, own: Token) -> PublishError {
        let path = path.to_path_buf();
        if present.run == own.run && present.generation > own.generation {
            PublishError::Replaced { path, present }
        } else {
            PublishError::OtherJob { path, present }
        }
    }

    /// Whether other ranks of the job can publish although this one cannot.
    pub fn is_of_this_rank_alone(&self) -> bool {
        matches!(self, PublishError::Replaced { .. } | PublishError::Fenced { .. })
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Replaced { path, present: Token { generation, step, .. } } => write!(
                f,
                "{}: a newer checkpoint exists (generation {generation}, step {step}); this rank was replaced and must \
                 not write",
                path.display()
            ),
            PublishError::OtherJob { path, present } => write!(
                f,
                "{}: another job has written here ({present}); give each job a folder of its own, or resume from that \
                 file",
                path.display()
            ),
            PublishError::Fenced { path, why } => write!(f, "{}: not written: {why}", path.display()),
            PublishError::Content(error) => error.fmt(f),
            PublishError::Unchanged { path, source } => {
                write!(f, "{}: cannot be written: {source}; what was there before is unchanged", path.display())
            }
            PublishError::Unsynced { path, source } => write!(
                f,
                "{}: written, but its folder could not be synced: {source}; after a power cut the previous content may \
                 be back",
                path.display()
            ),
        }
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PublishError::Unchanged { source, .. } | PublishError::Unsynced { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<NotSealable> for PublishError {
    fn from(error: NotSealable) -> PublishError {
        PublishError::Content(error)
    }
}
