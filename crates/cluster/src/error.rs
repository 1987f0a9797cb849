//! What can go wrong while a job comes together or is kept together.

use std::fmt;
use std::io;
use std::time::Duration;

use farandole_plan::Rank;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The world misbehaved.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A variable of the environment has no meaning, or does not fit the others.
    Environment {
        /// Which variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// What was asked for makes no sense, or does not fit together: hosts, a host file, a number of ranks.
    Order {
        /// Which words, or which line of which file.
        at: String,
        /// What is wrong with them, and what would be right.
        problem: String,
    },
    /// Some ranks did not come to the rendezvous in time.
    Missing {
        /// Who.
        ranks: Vec<Rank>,
        /// How long the others waited.
        waited: Duration,
    },
    /// Nobody answers at the rendezvous.
    Unreachable {
        /// Where it should be.
        address: String,
        /// How long we tried.
        waited: Duration,
        /// The last answer of the operating system.
        source: io::Error,
    },
    /// The other side does not hold the job's key, or is not a farandole process at all.
    Untrusted {
        /// Where we met it.
        at: String,
    },
    /// The other side has another version of this program.
    Version {
        /// Where we met it.
        at: String,
        /// Its version of the channel protocol.
        theirs: u8,
    },
    /// The rendezvous turned this rank away.
    Refused {
        /// Its reason: the rank is taken, the sizes differ, …
        why: String,
    },
    /// A message is longer than the rendezvous carries.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is carried.
        most: usize,
    },
    /// The others have gone on without this process.
    Evicted {
        /// The first generation that it knows to be without it.
        generation: u64,
        /// Why.
        cause: String,
    },
    /// The members have not confirmed that this process is still in the job.
    Unconfirmed(String),
    /// There was no next generation in time.
    NoGeneration {
        /// How long this process was at the boundary.
        waited: Duration,
        /// What it waited for.
        cause: String,
    },
    /// Recorded decisions of an elastic job do not come out the same.
    Replay {
        /// Of which member.
        member: u64,
        /// What is different.
        cause: String,
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
    /// Something asked for that cannot be done as it stands.
    pub fn job_spec(at: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Order { at: at.into(), problem: problem.into() }
    }

    /// Wraps an error of the operating system with what was being tried.
    pub fn local(doing: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Local { doing: doing.into(), source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Environment { variable, problem } => write!(f, "{variable}: {problem}"),
            Error::Order { at, problem } => write!(f, "{at}: {problem}"),
            Error::Missing { ranks, waited } if ranks.is_empty() => {
                write!(f, "no rank stayed away, but in {:.1} s they were not all there at once", waited.as_secs_f64())
            }
            Error::Missing { ranks, waited } => {
                write!(f, "{} did not come to the rendezvous within {:.1} s", name_ranks(ranks), waited.as_secs_f64())
            }
            Error::Unreachable { address, waited, source } => {
                write!(f, "no answer for {:.1} s from the rendezvous {address}: {source}", waited.as_secs_f64())
            }
            Error::Untrusted { at } => write!(f, "whoever is at {at} does not hold this job's key"),
            Error::Version { at, theirs } => write!(
                f,
                "whoever is at {at} speaks version {theirs} of the channel protocol, and this process version {}: install the \
                 same farandole everywhere",
                crate::channel::VERSION
            ),
            Error::Refused { why } => write!(f, "the rendezvous turned this rank away: {why}"),
            Error::TooLong { bytes, most } => {
                write!(f, "a message of {bytes} bytes is too long for the rendezvous, which carries {most}")
            }
            Error::Evicted { generation, cause } => {
                write!(f, "this process is evicted from generation {generation}: {cause}; it can join again")
            }
            Error::NoGeneration { waited, cause } => {
                write!(f, "no next generation within {:.1} s (elastic timeout): {cause}", waited.as_secs_f64())
            }
            Error::Unconfirmed(cause) => f.write_str(cause),
            Error::Replay { member, cause } => {
                write!(f, "the decisions of member {member} cannot be repeated: {cause}")
            }
            Error::Local { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Local { source, .. } | Error::Unreachable { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// So many ranks are named one by one; of more, the first and the count say as much.
const MOST_NAMED: usize = 8;

fn name_ranks(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().take(MOST_NAMED).map(Rank::to_string).collect();
    match (ranks.len(), names.as_slice()) {
        (1, [only]) => format!("rank {only}"),
        (count, names) if count > MOST_NAMED => format!("ranks {}, … ({count} in all)", names.join(", ")),
        (_, [first @ .., last]) => format!("ranks {} and {last}", first.join(", ")),
        (_, []) => "nobody".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named() {
        let missing = |ranks: std::ops::Range<u32>| {
            Error::Missing { ranks: ranks.map(Rank).collect(), waited: Duration::from_secs(2) }.to_string()
        };
        assert_eq!(missing(3..4), "rank 3 did not come to the rendezvous within 2.0 s");
        assert_eq!(missing(1..4), "ranks 1, 2 and 3 did not come to the rendezvous within 2.0 s");
        assert!(missing(0..100).starts_with("ranks 0, 1, 2, 3, 4, 5, 6, 7, … (100 in all) did not"));
    }
}
