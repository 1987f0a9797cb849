//! RankCommand statistics of iteration times.
//!
//! An iteration takes as long as its slowest rank. All figures are taken over iterations, never over means of
//! iterations: means hide the pauses that synchronous training waits for.

use serde::Serialize;

/// Figures over the iterations of one contestant at one size, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) iterations: usize,
    pub(crate) min_us: f64,
    pub(crate) median_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) max_us: f64,
    /// Median of each round, in the order in which the rounds were run: shows drift and disturbance.
    pub(crate) round_medians_us: Vec<f64>,
}

impl Summary {
    /// Summarises rounds of iteration times in nanoseconds. `None` without any iteration.
    pub(crate) fn of_rounds(rounds: &[Vec<u64>]) -> Option<Summary> {
        let all = sorted(rounds.iter().flatten());
        let (&min, &max) = (all.first()?, all.last()?);
        Some(Summary {
            iterations: all.len(),
            min_us: us(min),
            median_us: median_us(&all),
            p90_us: us(all[nearest_rank(all.len(), 90)]),
            max_us: us(max),
            round_medians_us: rounds
                .iter()
                .filter(|round| !round.is_empty())
                .map(|round| median_us(&sorted(round.iter())))
                .collect(),
        })
    }
}

/// The middle of some values and the middle half of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) lower_quartile: f64,
    pub(crate) median: f64,
    pub(crate) upper_quartile: f64,
}

impl Spread {
    /// The spread of these values. `None` without any.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |percent| values[nearest_rank(values.len(), percent)];
        (!values.is_empty()).then(|| Spread { lower_quartile: at(25), median: at(50), upper_quartile: at(75) })
    }
}

/// Time of each iteration: that of its slowest rank. `per_rank` holds equally many times for each rank.
pub(crate) fn slowest_rank(per_rank: &[Vec<u64>]) -> Vec<u64> {
    let iterations = per_rank.iter().map(Vec::len).min().unwrap_or(0);
    (0..iterations).map(|i| per_rank.iter().map(|times| times[i]).max().unwrap_or(0)).collect()
}

fn sorted<'a>(times: impl Iterator<Item = &'a u64>) -> Vec<u64> {
    let mut times: Vec<u64> = times.copied().collect();
    times.sort_unstable();
    times
}

/// Median of sorted times: the middle one, or the mean of the two in the middle.
fn median_us(sorted: &[u64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { us(sorted[middle]) } else { (us(sorted[middle - 1]) + us(sorted[middle])) / 2.0 }
}

/// Index of the smallest value that at least `percent` per cent of the values do not exceed.
fn nearest_rank(len: usize, percent: usize) -> usize {
    (len * percent).div_ceil(100).max(1) - 1
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_makes_the_iteration() {
        assert_eq!(slowest_rank(&[vec![1, 5, 3], vec![2, 4, 9]]), [2, 5, 9]);
        assert_eq!(slowest_rank(&[]), [0u64; 0]);
    }

    #[test]
    fn figures_are_taken_over_all_iterations_of_all_rounds() {
        let rounds = [vec![1000, 2000, 3000, 4000, 5000], vec![6000, 7000, 8000, 9000, 10_000]];
        let summary = Summary::of_rounds(&rounds).unwrap();
        assert_eq!(summary.iterations, 10);
        assert_eq!((summary.min_us, summary.median_us, summary.p90_us, summary.max_us), (1.0, 5.5, 9.0, 10.0));
        assert_eq!(summary.round_medians_us, [3.0, 8.0]);
    }

    #[test]
    fn one_iteration_is_its_own_median() {
        let summary = Summary::of_rounds(&[vec![1500]]).unwrap();
        assert_eq!((summary.median_us, summary.p90_us, summary.max_us), (1.5, 1.5, 1.5));
    }

    #[test]
    fn a_spread_is_the_middle_half() {
        let spread = Spread::of([0.97, 1.02, 0.99, 0.5, 0.98, 1.0, 9.0].into_iter());
        assert_eq!(spread, Some(Spread { lower_quartile: 0.97, median: 0.99, upper_quartile: 1.02 }));
        assert_eq!(Spread::of(std::iter::empty()), None);
    }

    #[test]
    fn nothing_measured_gives_no_summary() {
        assert_eq!(Summary::of_rounds(&[]), None);
        assert_eq!(Summary::of_rounds(&[vec![]]), None);
    }
}
