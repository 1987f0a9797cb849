//! When and where a loss was seen: which ranks, which iterations, the longest intervals.

use super::{CauseSpan, LossCause};
use crate::history::History;

/// Intervals that are kept as examples; more would not be read.
const KEPT_INTERVALS: usize = 5;

/// What shows that a loss is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Time that each rank lost.
    pub by_rank_ns: Vec<u64>,
    /// In how many iterations some rank lost time to it.
    pub iterations_hit: usize,
    /// Of how many that are marked.
    pub iterations: usize,
    /// How many intervals there are.
    pub intervals: usize,
    /// The longest of them, longest first.
    pub longest: Vec<Interval>,
}

/// A time that one rank lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The rank that lost it.
    pub rank: usize,
    /// Beginning.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// The iteration of that rank, if it was in one.
    pub iteration: Option<u64>,
}

impl Evidence {
    /// Looks for a cause in the strips of all ranks.
    pub(super) fn of(history: &History, strips: &[Vec<CauseSpan>], cause: &LossCause) -> Evidence {
        let mut evidence = Evidence { by_rank_ns: vec![0; strips.len()], ..Evidence::default() };
        let mut hit = std::collections::BTreeSet::new();
        let mut intervals = Vec::new();
        for (rank, strip) in strips.iter().enumerate() {
            for &CauseSpan { from_ns, to_ns, .. } in strip.iter().filter(|piece| piece.cause.as_ref() == Some(cause)) {
                evidence.by_rank_ns[rank] += to_ns - from_ns;
                let iteration = history.ranks[rank].iteration_at(from_ns).map(|iteration| iteration.number);
                hit.extend(iteration);
                intervals.push(Interval { rank, from_ns, to_ns, iteration });
            }
        }
        evidence.iterations_hit = hit.len();
        evidence.iterations = history.iterations();
        evidence.intervals = intervals.len();
        intervals.sort_by_key(|interval| (std::cmp::Reverse(interval.to_ns - interval.from_ns), interval.from_ns));
        intervals.truncate(KEPT_INTERVALS);
        evidence.longest = intervals;
        evidence
    }

    /// The ranks that lost time, those that lost most of it first.
    pub fn ranks(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> = (0..self.by_rank_ns.len()).filter(|&rank| self.by_rank_ns[rank] > 0).collect();
        ranks.sort_by_key(|&rank| std::cmp::Reverse(self.by_rank_ns[rank]));
        ranks
    }
}

impl Evidence {
    /// Takes the evidence of another loss in.
    pub(crate) fn add(&mut self, other: &Evidence) {
        self.by_rank_ns.resize(other.by_rank_ns.len().max(self.by_rank_ns.len()), 0);
        for (own, more) in self.by_rank_ns.iter_mut().zip(&other.by_rank_ns) {
            *own += more;
        }
        self.iterations = self.iterations.max(other.iterations);
        self.iterations_hit = (self.iterations_hit + other.iterations_hit).min(self.iterations);
        self.intervals += other.intervals;
        self.longest.extend(&other.longest);
        self.longest.sort_by_key(|interval| (std::cmp::Reverse(interval.to_ns - interval.from_ns), interval.from_ns));
        self.longest.truncate(KEPT_INTERVALS);
    }
}
