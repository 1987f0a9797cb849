//! Who is measured when: rounds of all contestants take turns, size by size, within one run.
//!
//! A machine is never the same for long: clocks, neighbours and caches change from second to second. Numbers of two
//! programs are only comparable when they were taken in turns. Each size therefore gets several rounds; in each round
//! every contestant runs a few iterations, one contestant after the other, and the order rotates from round to round,
//! so that nobody always follows the same predecessor.

use anyhow::Result;

use super::entrant::{Entrant, RoundOutcome};
use super::statistics::Summary;
use super::task::Task;

/// Iterations of the first round that is not counted. Such rounds find out how long an iteration takes.
const CALIBRATION_ITERATIONS: usize = 3;

/// Rounds that are not counted, at most. With them, all counted rounds have about as many iterations, and the median is
/// not that of the last one alone.
const CALIBRATION_ROUNDS: usize = 4;

/// How much is measured at each size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Rounds of each contestant.
    pub(crate) rounds: usize,
    /// Timed iterations of a round, if the user has fixed them.
    pub(crate) iterations: Option<usize>,
    /// Time for each contestant at each size, over all rounds, in seconds.
    pub(crate) budget_s: f64,
}

/// Fewest iterations of a round: one could not be told from a disturbance.
const MIN_ITERATIONS: usize = 2;

/// Most iterations of a round: more do not move the median.
const MAX_ITERATIONS: usize = 2000;

/// Fewest iterations before the timed ones of every round, to bring code, page tables and caches back after the others'
/// turns.
const MIN_WARMUP_ITERATIONS: usize = 2;

/// Time for them, if they are short. All ranks of a contestant wake at once, and the kernel may put two of them on one
/// core and take some of its ticks to separate them.
const WARMUP_NS: u64 = 20_000_000;

/// A round has at most this many times the iterations of the one before it, so that an estimate which was far too low
/// costs one slow round of few iterations and not one of thousands.
const MAX_GROWTH: usize = 8;

impl Effort {
    /// Iterations of the next round, after one of `iterations` that took `round_ns` in all. Means and not medians count
    /// here: pauses take time, too.
    fn next_iterations(&self, iterations: usize, round_ns: u64) -> usize {
        let mean_s = (round_ns as f64 * 1e-9 / iterations.max(1) as f64).max(1e-9);
        let affordable = (self.budget_s / self.rounds as f64 / mean_s) as usize;
        let most = MAX_ITERATIONS.min(iterations * MAX_GROWTH).max(MIN_ITERATIONS);
        self.iterations.unwrap_or(affordable.clamp(MIN_ITERATIONS, most))
    }
}

/// Iterations before the timed ones of the next round, after a round of `iterations` that took `round_ns`.
fn warmup_iterations(iterations: usize, round_ns: u64) -> usize {
    let mean_ns = (round_ns / iterations.max(1) as u64).max(1);
    ((WARMUP_NS / mean_ns) as usize).clamp(MIN_WARMUP_ITERATIONS, MAX_ITERATIONS)
}

/// What one contestant has shown at one size.
#[derive(Clone, Debug)]
pub(crate) enum Showing {
    /// It ran.
    Measured {
        summary: Summary,
        /// Wrong elements, over all ranks and rounds.
        wrong: u64,
    },
    /// It cannot run this.
    Unsupported { why: String },
}

impl Showing {
    /// The median time of an iteration, if it ran.
    pub(crate) fn median_us(&self) -> Option<f64> {
        match self {
            Showing::Measured { summary, .. } => Some(summary.median_us),
            Showing::Unsupported { .. } => None,
        }
    }
}

/// Measures one task with all contestants in turns. The showings come in the order of the entrants.
pub(crate) fn measure(entrants: &mut [Box<dyn Entrant>], task: &Task, effort: Effort) -> Result<Vec<Showing>> {
    let mut turns = Vec::with_capacity(entrants.len());
    for entrant in entrants.iter_mut() {
        turns.push(Turn::calibrate(entrant.as_mut(), task, effort)?);
    }
    let count = entrants.len();
    for round in 0..effort.rounds {
        for place in 0..count {
            let index = (round + place) % count;
            turns[index].take(entrants[index].as_mut(), task, effort)?;
        }
    }
    Ok(turns.into_iter().map(Turn::into_showing).collect())
}

/// What has been gathered of one contestant so far.
struct Turn {
    /// Iterations of its next round.
    iterations: usize,
    /// Iterations before them.
    warmup: usize,
    rounds_ns: Vec<Vec<u64>>,
    wrong: u64,
    lacking: Option<String>,
}

impl Turn {
    fn calibrate(entrant: &mut dyn Entrant, task: &Task, effort: Effort) -> Result<Turn> {
        let mut turn = Turn {
            iterations: CALIBRATION_ITERATIONS,
            warmup: MIN_WARMUP_ITERATIONS,
            rounds_ns: Vec::new(),
            wrong: 0,
            lacking: None,
        };
        for _ in 0..CALIBRATION_ROUNDS {
            let before = turn.iterations;
            turn.take(entrant, task, effort)?;
            if turn.iterations < before * MAX_GROWTH {
                break;
            }
        }
        turn.rounds_ns.clear();
        Ok(turn)
    }

    fn take(&mut self, entrant: &mut dyn Entrant, task: &Task, effort: Effort) -> Result<()> {
        if self.lacking.is_some() {
            return Ok(());
        }
        match entrant.round(task, self.warmup, self.iterations)? {
            RoundOutcome::Measured { times_ns, wrong } => {
                let round_ns: u64 = times_ns.iter().sum();
                self.warmup = warmup_iterations(self.iterations, round_ns);
                self.iterations = effort.next_iterations(self.iterations, round_ns);
                self.rounds_ns.push(times_ns);
                self.wrong += wrong;
            }
            RoundOutcome::Unsupported { why } => self.lacking = Some(why),
        }
        Ok(())
    }

    fn into_showing(self) -> Showing {
        match (self.lacking, Summary::of_rounds(&self.rounds_ns)) {
            (None, Some(summary)) => Showing::Measured { summary, wrong: self.wrong },
            (lacking, _) => Showing::Unsupported { why: lacking.unwrap_or_else(|| "nothing was measured".into()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::task::{Kind, Memory, Pace, Recording, Through};
    use farandole_plan::{Dtype, ReduceOp};
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Takes a fixed time and notes when it had its turn.
    struct Fake {
        word: &'static str,
        ns: Option<u64>,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Entrant for Fake {
        fn word(&self) -> &str {
            self.word
        }
        fn product(&self) -> &str {
            self.word
        }
        fn round(&mut self, _: &Task, _: usize, iterations: usize) -> Result<RoundOutcome> {
            self.log.borrow_mut().push(self.word);
            Ok(match self.ns {
                Some(ns) => RoundOutcome::Measured { times_ns: vec![ns; iterations], wrong: 1 },
                None => RoundOutcome::Unsupported { why: "no".into() },
            })
        }
    }

    fn task() -> Task {
        Task {
            kind: Kind::Allreduce,
            bytes: 4,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            pace: Pace::Aligned,
            memory: Memory::Own,
            through: Through::Direct,
            tensors: 1,
            recording: Recording::On,
        }
    }

    #[test]
    fn contestants_take_turns_and_the_order_rotates() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let fake = |word, ns| -> Box<dyn Entrant> { Box::new(Fake { word, ns, log: log.clone() }) };
        let mut entrants = [fake("a", Some(1000)), fake("b", None), fake("c", Some(2000))];
        let effort = Effort { rounds: 3, iterations: Some(7), budget_s: 1.0 };
        let showings = measure(&mut entrants, &task(), effort).unwrap();
        assert_eq!(log.borrow().join(""), "abc".to_string() + "ac" + "ca" + "ca");
        let Showing::Measured { summary, wrong } = &showings[0] else { panic!("a ran") };
        assert_eq!((summary.iterations, summary.median_us, *wrong), (21, 1.0, 4));
        assert!(matches!(showings[1], Showing::Unsupported { .. }));
    }

    #[test]
    fn iterations_fill_the_budget_within_bounds() {
        let effort = Effort { rounds: 5, iterations: None, budget_s: 1.0 };
        assert_eq!(effort.next_iterations(1000, 1_000_000), MAX_ITERATIONS);
        assert_eq!(effort.next_iterations(100, 100_000_000), 200);
        assert_eq!(effort.next_iterations(2, 2_000_000_000), MIN_ITERATIONS);
        assert_eq!(effort.next_iterations(3, 3_000), 24, "a first estimate is not believed at once");
        assert_eq!(Effort { iterations: Some(9), ..effort }.next_iterations(9, 1), 9);
    }

    #[test]
    fn short_iterations_are_warmed_up_for_a_while_and_long_ones_twice() {
        assert_eq!(warmup_iterations(10, 10 * 100_000), 200);
        assert_eq!(warmup_iterations(10, 10 * 1_000), MAX_ITERATIONS);
        assert_eq!(warmup_iterations(2, 2_000_000_000), MIN_WARMUP_ITERATIONS);
    }

    #[test]
    fn counted_rounds_are_alike() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut entrants: [Box<dyn Entrant>; 1] = [Box::new(Fake { word: "a", ns: Some(1000), log: log.clone() })];
        let effort = Effort { rounds: 3, iterations: None, budget_s: 0.003 };
        let showings = measure(&mut entrants, &task(), effort).unwrap();
        let Showing::Measured { summary, .. } = &showings[0] else { panic!("it ran") };
        assert_eq!((summary.iterations, log.borrow().len()), (3000, 3 + 3), "3, 24 and 192 do not count");
    }
}
