//! Why training ended before its time.

use std::fmt;
use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. The text names the cause and what can be done.
#[derive(Debug)]
pub enum Error {
    /// What was asked for makes no sense.
    TrainJob(String),
    /// There is no such model, or it cannot have this shape.
    Model(String),
    /// There is no such data set, or it cannot be read.
    Data(String),
    /// A checkpoint cannot be written, read, or used for this job.
    Checkpoint(String),
    /// A file of ours cannot be written.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The loss is infinite or no number; every rank ends with this.
    NotFinite {
        /// The epoch, from one.
        epoch: u64,
        /// The step of the epoch, from one.
        step: u64,
        /// Ranks whose own loss it was.
        ranks: Vec<usize>,
    },
    /// Another rank could not begin, and says why.
    SaidElsewhere(usize),
    /// This rank has lost its place in the job, and the other ranks continue without it.
    Replaced(String),
    /// The ranks have lost each other.
    World(farandole::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::TrainJob(why)
            | Error::Model(why)
            | Error::Data(why)
            | Error::Checkpoint(why)
            | Error::Replaced(why) => text.write_str(why),
            Error::File { path, cause } => write!(text, "{}: {cause}", path.display()),
            Error::NotFinite { epoch, step, ranks } => {
                let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                let whose = match ranks.len() {
                    0 => "the sum over all ranks".to_owned(),
                    1 => format!("rank {}", names[0]),
                    _ => format!("ranks {}", names.join(", ")),
                };
                write!(
                    text,
                    "the loss is not finite any more in step {step} of epoch {epoch} ({whose}): all ranks end. A lower --lr or a \
                     longer --warmup mostly helps; data with infinite values would do this, too"
                )
            }
            Error::SaidElsewhere(rank) => write!(text, "rank {rank} could not begin"),
            Error::World(error @ farandole::Error::Overflow(_)) => write!(text, "{error} (--precision bf16-wire)"),
            Error::World(error) => error.fmt(text),
        }
    }
}

impl std::error::Error for Error {}

impl From<farandole::Error> for Error {
    fn from(error: farandole::Error) -> Error {
        Error::World(error)
    }
}

impl Error {
    /// Whether a rank has to say this: not where another one says it, or every rank ends with the same and rank 0 is
    /// there to say so.
    pub fn is_to_be_said_by(&self, rank: usize) -> bool {
        match self {
            Error::Checkpoint(_) | Error::NotFinite { .. } | Error::World(farandole::Error::Overflow(_)) => rank == 0,
            Error::SaidElsewhere(_) => false,
            _ => true,
        }
    }
}
