//! Why a rank leaves its job, and how far it was: what it tells its peers, and what a peer that waits for it says.
//!
//! A rank that leaves sends its [`RankDeparture`] with its last message, so every survivor names the same rank, the
//! same cause and the same number of steps. A departure *fails* the job if it has a cause or an exit code other than
//! zero; any other is an orderly end, which only matters to ranks that still wait for the one that left.
//!
//! Not here: how a process finds out why it ends (front ends), and who is told (`agree`, the engine).

use std::fmt;
use std::sync::Arc;

use crate::message::Malformed;
use crate::request::Rank;
use crate::wire::{Reader, put_i32, put_str, put_u64};

/// Longest cause in characters: a mismatch is told whole, with the shapes of two ranks.
const MOST_CAUSE_CHARS: usize = 400;

/// What ranks that make different numbers of steps have in common.
const UNEVEN_STEPS: &str = "ranks have different numbers of batches; see join, drop_last, DistributedSampler";

/// The same of programs that mark no steps.
const UNEVEN_CALLS: &str = "ranks make different numbers of collective calls";

/// How far a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankProgress {
    /// Steps of training that are complete; zero where no steps are known.
    pub steps: u64,
    /// The step in which the rank is, counted from one; zero where no steps are known.
    pub step: u64,
    /// Collectives that are complete.
    pub collectives: u64,
}

/// How a process leaves its job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, where it is known before the process has exited.
    pub code: Option<i32>,
    /// What ends it, as a predicate of the rank: `raised ValueError: a bad batch`.
    pub cause: Option<Arc<str>>,
}

/// A rank that leaves its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDeparture {
    /// The rank, in the world.
    pub rank: Rank,
    /// How its process ends.
    pub exit: Exit,
    /// How far it was.
    pub progress: RankProgress,
}

impl Exit {
    /// The same with a cause that fits into a message: its first line, shortened.
    pub fn because(self, cause: &str) -> Exit {
        let first = cause.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let mut text: String = first.chars().take(MOST_CAUSE_CHARS).collect();
        if text.len() < first.len() {
            text.push('…');
        }
        Exit { cause: (!text.is_empty()).then(|| text.into()), ..self }
    }

    /// Whether the job fails with it.
    pub fn is_failure(&self) -> bool {
        self.cause.is_some() || self.code.is_some_and(|code| code != 0)
    }
}

impl RankProgress {
    /// `39 steps`; `None` for a rank that has done nothing yet.
    fn done(self) -> Option<String> {
        let count = |number: u64, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        match (self.steps, self.collectives) {
            (0, 0) => None,
            (0, collectives) => Some(count(collectives, "collective")),
            (steps, _) => Some(count(steps, "step")),
        }
    }
}

impl RankDeparture {
    /// What `waiting`, which is so far, says when it waits for this rank in vain. `rank 1 ended (exit code 0) after 39
    /// steps while rank 0 waits in step 40: …`
    pub fn missed_by(&self, waiting: Rank, progress: RankProgress) -> String {
        if self.exit.is_failure() {
            return self.to_string();
        }
        let (place, advice) = match (self.progress.steps, progress.step) {
            (0, _) | (_, 0) => (format!("collective {}", progress.collectives + 1), UNEVEN_CALLS),
            (_, step) => (format!("step {step}"), UNEVEN_STEPS),
        };
        format!("{self} while rank {waiting} waits in {place}: {advice}")
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        put_u64(into, u64::from(self.rank.0));
        match self.exit.code {
            None => into.push(0),
            Some(code) => {
                into.push(1);
                put_i32(into, code);
            }
        }
        match &self.exit.cause {
            None => into.push(0),
            Some(cause) => {
                into.push(1);
                put_str(into, cause);
            }
        }
        let RankProgress { steps, step, collectives } = self.progress;
        [steps, step, collectives].into_iter().for_each(|number| put_u64(into, number));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<RankDeparture, Malformed> {
        let rank = Rank(reader.u32("a rank")?);
        let code = match reader.byte("whether there is an exit code")? {
            0 => None,
            1 => Some(reader.i32("an exit code")?),
            _ => return Err(reader.malformed("whether there is an exit code")),
        };
        let cause = match reader.byte("whether there is a cause")? {
            0 => None,
            1 => Some(reader.str("a cause")?),
            _ => return Err(reader.malformed("whether there is a cause")),
        };
        let mut number = || reader.u64("how far a rank was");
        let progress = RankProgress { steps: number()?, step: number()?, collectives: number()? };
        Ok(RankDeparture { rank, exit: Exit { code, cause }, progress })
    }

    /// For control lines that have no other message.
    pub fn encode(&self, into: &mut Vec<u8>) {
        self.put(into);
    }

    /// Reads a departure that fills all of `bytes`.
    ///
    /// # Errors
    /// Anything that [`RankDeparture::encode`] would not have written.
    pub fn decode(bytes: &[u8]) -> Result<RankDeparture, Malformed> {
        let mut reader = Reader::new(bytes);
        let departure = RankDeparture::read(&mut reader)?;
        reader.end()?;
        Ok(departure)
    }
}

impl fmt::Display for RankDeparture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankDeparture { rank, exit, progress } = self;
        let done = progress.done();
        if let Some(cause) = &exit.cause {
            write!(f, "rank {rank} {cause}")?;
            return done.map_or(Ok(()), |done| write!(f, " (after {done})"));
        }
        match exit.code {
            Some(code) => write!(f, "rank {rank} ended (exit code {code})")?,
            None => write!(f, "rank {rank} left the job")?,
        }
        done.map_or(Ok(()), |done| write!(f, " after {done}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departure(code: Option<i32>, cause: &str, steps: u64) -> RankDeparture {
        let progress = RankProgress { steps, step: if steps > 0 { steps + 1 } else { 0 }, collectives: 117 };
        RankDeparture { rank: Rank(1), exit: Exit { code, cause: None }.because(cause), progress }
    }

    fn at(step: u64) -> RankProgress {
        RankProgress { steps: step.saturating_sub(1), step, collectives: 120 }
    }

    #[test]
    fn a_rank_that_waits_names_the_one_that_left_and_how_far_it_was() {
        for (code, steps, step, words) in [
            (
                Some(0),
                39,
                40,
                "rank 1 ended (exit code 0) after 39 steps while rank 0 waits in step 40: ranks have different numbers of \
                 batches; see join, drop_last, DistributedSampler",
            ),
            (
                None,
                0,
                0,
                "rank 1 left the job after 117 collectives while rank 0 waits in collective 121: ranks make different \
                 numbers of collective calls",
            ),
            (Some(3), 1, 2, "rank 1 ended (exit code 3) after 1 step"),
        ] {
            assert_eq!(departure(code, "", steps).missed_by(Rank(0), at(step)), words);
        }
    }

    #[test]
    fn a_cause_is_its_first_line_and_short() {
        let raised = departure(Some(1), "\nraised ValueError: a bad batch\nwith details", 39);
        assert_eq!(raised.missed_by(Rank(0), at(40)), "rank 1 raised ValueError: a bad batch (after 39 steps)");
        let long = departure(None, &"é".repeat(MOST_CAUSE_CHARS + 1), 0).exit.cause.expect("a cause");
        assert_eq!(long.chars().count(), MOST_CAUSE_CHARS + 1);
        assert!(long.ends_with('…'), "{long}");
    }

    #[test]
    fn departures_survive_the_wire_and_garbage_is_refused() {
        for made in [departure(None, "", 0), departure(Some(-9), "raised KeyError: 'x'", 7)] {
            let mut bytes = Vec::new();
            made.encode(&mut bytes);
            assert_eq!(RankDeparture::decode(&bytes), Ok(made));
            for length in 0..bytes.len() {
                assert!(RankDeparture::decode(&bytes[..length]).is_err());
            }
            bytes.push(0);
            assert!(RankDeparture::decode(&bytes).is_err());
        }
        assert!(RankDeparture::decode(&[1, 2, 0, 0, 0, 0]).is_err(), "2 is neither yes nor no");
    }
}
