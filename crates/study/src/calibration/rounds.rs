//! Which ways get how many rounds and iterations, and what they have shown.
//!
//! At each size every way is tried once; one that is far behind the fastest gets no rounds. Ways that seem faster than
//! the built-in choice, but have not won often enough to be sure, get further rounds against it. All ranks hold the
//! same times, so all decide the same.

use farandole_plan::table::Way;

use super::verdict::{Standing, standing};

/// Rounds of each way at each size. With seven, a way that is no faster wins all but one of them once in sixteen times.
pub const ROUNDS: usize = 7;

/// A way that takes this many times as long as the fastest gets no rounds: no disturbance of a few iterations is that
/// large, or lasts over them.
const HOPELESS: f64 = 4.0;

/// Most iterations of a round. A round must not be over in a moment: two ranks may share a core for some milliseconds,
/// which makes small operations ten times as slow, and with 300 iterations all rounds of a size fell into such a spell.
const MAX_ITERATIONS: usize = 20_000;

/// Untimed iterations at the start of a round, to make schedules and bring caches back after the others' turns.
pub const WARMUP_ITERATIONS: usize = 2;

/// How much time there is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// For all ways of a size together.
    pub seconds_per_size: f64,
}

impl Effort {
    /// Iterations of a round of one way, if `ways` ways take part and one iteration takes `iteration_us`.
    pub fn iterations(&self, ways: usize, iteration_us: f64) -> usize {
        // The untimed iterations and barriers take about as long again at small sizes, and less at large ones.
        let round_us = self.seconds_per_size * 1e6 / (ways.max(1) * ROUNDS) as f64;
        ((round_us / iteration_us.max(0.1)) as usize).saturating_sub(WARMUP_ITERATIONS).clamp(1, MAX_ITERATIONS)
    }
}

/// What one way has shown at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Showing {
    /// The way.
    pub way: Way,
    /// The size.
    pub bytes: u64,
    /// The median time of each round; of the first try alone, if there were none.
    pub rounds_us: Vec<f64>,
}

impl Showing {
    /// The time that counts: the lower quartile of the rounds, because disturbances only ever make one slower.
    pub fn time_us(&self) -> f64 {
        lower_quartile(&self.rounds_us)
    }
}

/// Everything that was measured, by size and way.
pub type Times = Vec<Showing>;

/// The ways worth measuring, by their place: those near the fastest of a contest, and the built-in choices.
pub fn hopeful(showings: &[Showing], contests: &[(Way, Vec<Way>)]) -> Vec<usize> {
    let hopeful = |showing: &Showing| {
        contests.iter().any(|(usual, ways)| {
            let of_contest = showings.iter().filter(|other| ways.contains(&other.way));
            let fastest_us = of_contest.map(Showing::time_us).fold(f64::INFINITY, f64::min);
            *usual == showing.way || ways.contains(&showing.way) && showing.time_us() <= HOPELESS * fastest_us
        })
    };
    (0..showings.len()).filter(|&index| hopeful(&showings[index])).collect()
}

/// Ways that may be faster than the built-in choice and have not shown it clearly, and those choices themselves.
pub fn unsure(showings: &[Showing], contests: &[(Way, Vec<Way>)]) -> Vec<usize> {
    let mut unsure = Vec::new();
    for (usual, ways) in contests {
        let Some(of_usual) = showings.iter().position(|showing| showing.way == *usual) else { continue };
        for (index, showing) in showings.iter().enumerate().filter(|(_, showing)| ways.contains(&showing.way)) {
            if matches!(standing(&showing.rounds_us, &showings[of_usual].rounds_us), Standing::Unsure { .. }) {
                unsure.extend([index, of_usual]);
            }
        }
    }
    unsure.sort_unstable();
    unsure.dedup();
    unsure
}

/// Of seven rounds the second fastest; of one, that one.
pub(crate) fn lower_quartile(rounds_us: &[f64]) -> f64 {
    let mut sorted = rounds_us.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(f64::INFINITY)
}

/// The middle one, or the mean of the two in the middle. There is at least one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_plan::Algorithm;

    fn showing(algorithm: Algorithm, rounds_us: &[f64]) -> Showing {
        Showing { way: Way::Allreduce(algorithm), bytes: 4, rounds_us: rounds_us.to_vec() }
    }

    fn contest(usual: Algorithm, others: &[Algorithm]) -> (Way, Vec<Way>) {
        (Way::Allreduce(usual), others.iter().chain([&usual]).map(|&other| Way::Allreduce(other)).collect())
    }

    #[test]
    fn whoever_is_far_behind_gets_no_rounds_unless_it_is_the_built_in_choice() {
        let showings = [
            showing(Algorithm::Ring, &[100.0]),
            showing(Algorithm::Tree, &[500.0]),
            showing(Algorithm::Halving, &[300.0]),
        ];
        assert_eq!(hopeful(&showings, &[contest(Algorithm::Ring, &[Algorithm::Tree, Algorithm::Halving])]), [0, 2]);
        assert_eq!(hopeful(&showings, &[contest(Algorithm::Tree, &[Algorithm::Ring])]), [0, 1]);
    }

    #[test]
    fn whoever_wins_sometimes_gets_more_rounds_with_the_built_in_choice() {
        let usual = showing(Algorithm::Ring, &[100.0; 7]);
        let sometimes = showing(Algorithm::Tree, &[80.0, 80.0, 80.0, 80.0, 120.0, 120.0, 120.0]);
        let always = showing(Algorithm::Halving, &[80.0; 7]);
        let contest = contest(Algorithm::Ring, &[Algorithm::Tree, Algorithm::Halving]);
        assert_eq!(unsure(&[usual, sometimes, always], &[contest]), [0, 1]);
    }

    #[test]
    fn iterations_fill_the_time_of_a_size_within_bounds() {
        let effort = Effort { seconds_per_size: 1.4 };
        assert_eq!(effort.iterations(2, 1000.0), 98);
        assert_eq!(effort.iterations(2, 1.0), MAX_ITERATIONS);
        assert_eq!(effort.iterations(2, 1e7), 1);
    }

    #[test]
    fn the_median_is_the_middle_and_the_quartile_below_it() {
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0])), (2.0, 2.5));
        assert_eq!((lower_quartile(&[5.0, 1.0, 2.0, 3.0, 9.0, 8.0, 7.0]), lower_quartile(&[4.0])), (2.0, 4.0));
    }
}
