//! Where the time of a run went, by its trace: phases of an iteration, causes, and operations by size.

use farandole_insight::history::History;
use farandole_insight::loss::TimeSplit;

use super::planes::{self, Messages};

/// Seconds of an iteration by phase, percent of all time by cause, and operations by size. All are empty without a
/// trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunTimes {
    /// Seconds of each phase for one iteration of one rank, in the order in which phases first begin; empty without
    /// marks of iterations.
    pub phases: Vec<(String, f64)>,
    /// Percent of the time of all ranks by cause: the report's split.
    pub split: Vec<(String, f64)>,
    /// Operations by size.
    pub messages: Vec<Messages>,
}

impl RunTimes {
    /// Those of a job.
    pub fn of(history: &History) -> RunTimes {
        let split = TimeSplit::of(history).rows();
        let split = split.into_iter().map(|row| (row.key.to_owned(), row.tenths as f64 / 10.0)).collect();
        RunTimes { phases: phases(history), split, messages: planes::by_size(history) }
    }
}

/// Seconds of each phase for one iteration of one rank, in the order in which phases first begin.
fn phases(history: &History) -> Vec<(String, f64)> {
    let iterations: usize = history.ranks.iter().map(|rank| rank.iterations.len()).sum();
    let mut phases: Vec<(String, f64)> = Vec::new();
    if iterations == 0 {
        return phases;
    }
    for phase in history.ranks.iter().flat_map(|rank| &rank.phases) {
        let seconds = (phase.to_ns - phase.from_ns) as f64 / 1e9 / iterations as f64;
        match phases.iter_mut().find(|(name, _)| *name == phase.name) {
            Some((_, sum)) => *sum += seconds,
            None => phases.push((phase.name.clone(), seconds)),
        }
    }
    phases
}
