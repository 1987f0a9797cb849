//! What the times mean: which ways are clearly faster than the built-in choice, and the table that follows.
//!
//! A difference counts if it shows in nearly every round, because the rounds of two ways were run right after each
//! other, and if it is larger than the margin that `choose` asks for. What does not count is entered into the table as
//! no faster than the built-in choice: a table says what is known, not what happened to be seen.

use farandole_plan::choose::MARGIN;
use farandole_plan::table::{Class, Measurement, Table, Way};

use super::contest::Contest;
use super::rounds::{Showing, Times, lower_quartile};

/// Of how many rounds a way that is clearly faster may lose one: with seven rounds, chance does as well once in sixteen
/// times, with fourteen once in a hundred and fifty.
const ROUNDS_PER_LOSS: usize = 7;

/// How a way stands against the built-in choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Standing {
    /// Faster, clearly.
    Faster,
    /// Faster where it counts, but not clearly.
    Unsure {
        /// Rounds in which it was not faster.
        lost: usize,
        /// Of so many.
        rounds: usize,
    },
    /// As fast, within the margin, or slower.
    NotFaster,
}

/// Compares the rounds of a way with those of the built-in choice, which were run in turns.
pub(crate) fn standing(rounds_us: &[f64], usual_us: &[f64]) -> Standing {
    if lower_quartile(rounds_us) >= lower_quartile(usual_us) * (1.0 - MARGIN) {
        return Standing::NotFaster;
    }
    let rounds = rounds_us.len().min(usual_us.len());
    let lost = rounds_us.iter().zip(usual_us).filter(|(ours, usual)| ours >= usual).count();
    if lost <= rounds / ROUNDS_PER_LOSS { Standing::Faster } else { Standing::Unsure { lost, rounds } }
}

/// One size of a contest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// The size.
    pub(crate) bytes: u64,
    /// The built-in choice and its time.
    pub(crate) usual: Way,
    pub(crate) usual_us: f64,
    /// The table's choice and its time.
    pub(crate) chosen: Way,
    pub(crate) chosen_us: f64,
    /// A way that seemed faster than the built-in choice, without being so clearly, with its standing.
    pub(crate) unsure: Option<(Way, f64, Standing)>,
}

/// A contest, decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// What it is about.
    pub title: &'static str,
    /// One for each size.
    pub(crate) rows: Vec<Row>,
}

/// What came of it all.
pub struct CalibrationResult {
    /// What later jobs read.
    pub table: Table,
    /// The contests, decided, for people.
    pub contests: Vec<Decided>,
}

impl CalibrationResult {
    /// Judges. `built_in` says what a contest's choice at a size is without a table.
    pub fn of(
        class: Class,
        contests: &[Contest],
        times: &Times,
        built_in: impl Fn(&Contest, u64) -> Way,
    ) -> CalibrationResult {
        let mut usual: Vec<Vec<(u64, Way)>> = Vec::new();
        let mut sizes: Vec<u64> = times.iter().map(|showing| showing.bytes).collect();
        sizes.dedup();
        for contest in contests {
            usual.push(sizes.iter().map(|&bytes| (bytes, built_in(contest, bytes))).collect());
        }
        let table = table(class, contests, &usual, times);
        let decided = contests.iter().zip(&usual).map(|(contest, usual)| Decided {
            title: contest.title,
            rows: usual.iter().filter_map(|&(bytes, usual)| row(contest, bytes, usual, &table, times)).collect(),
        });
        CalibrationResult { contests: decided.collect(), table }
    }
}

fn showing(times: &Times, bytes: u64, way: Way) -> Option<&Showing> {
    times.iter().find(|showing| showing.bytes == bytes && showing.way == way)
}

fn table(class: Class, contests: &[Contest], usual: &[Vec<(u64, Way)>], times: &Times) -> Table {
    let mut table = Table::new(class);
    for Showing { way, bytes, .. } in times {
        let time_us = showing(times, *bytes, *way).map_or(f64::INFINITY, Showing::time_us);
        // Where a way takes part in two contests, it must have won clearly in each to be entered as it was.
        let against = contests.iter().zip(usual).filter(|(contest, _)| contest.ways.contains(way));
        let rivals = against.filter_map(|(_, usual)| usual.iter().find(|(size, _)| size == bytes));
        let entered_us =
            rivals.filter_map(|(_, rival)| showing(times, *bytes, *rival)).fold(time_us, |time_us, rival| {
                let own = showing(times, *bytes, *way).map_or(&[][..], |showing| &showing.rounds_us);
                let unsure = matches!(standing(own, &rival.rounds_us), Standing::Unsure { .. });
                if unsure { time_us.max(rival.time_us()) } else { time_us }
            });
        table.insert(Measurement { way: *way, bytes: *bytes, time_us: entered_us });
    }
    table
}

fn row(contest: &Contest, bytes: u64, usual: Way, table: &Table, times: &Times) -> Option<Row> {
    let entered_us = |way: Way| {
        table.points().iter().find(|point| point.way == way && point.bytes == bytes).map(|point| point.time_us)
    };
    let usual_showing = showing(times, bytes, usual)?;
    let usual_us = entered_us(usual)?;
    let fastest = contest.ways.iter().filter_map(|&way| Some((way, entered_us(way)?)));
    let (chosen, chosen_us) = fastest
        .filter(|&(_, time_us)| time_us < usual_us * (1.0 - MARGIN))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap_or((usual, usual_us));
    let unsure = contest.ways.iter().filter_map(|&way| {
        let rival = showing(times, bytes, way)?;
        match standing(&rival.rounds_us, &usual_showing.rounds_us) {
            unsure @ Standing::Unsure { .. } => Some((way, rival.time_us(), unsure)),
            _ => None,
        }
    });
    let unsure = unsure.min_by(|a, b| a.1.total_cmp(&b.1));
    Some(Row { bytes, usual, usual_us, chosen, chosen_us, unsure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_if_it_is_large_and_shows_in_nearly_every_round() {
        let usual = [100.0; 7];
        assert_eq!(standing(&[97.0; 7], &usual), Standing::NotFaster);
        assert_eq!(standing(&[120.0; 7], &usual), Standing::NotFaster);
        assert_eq!(standing(&[90.0; 7], &usual), Standing::Faster);
        let once_lost = [90.0, 90.0, 90.0, 150.0, 90.0, 90.0, 90.0];
        assert_eq!(standing(&once_lost, &usual), Standing::Faster);
        let twice_lost = [90.0, 90.0, 90.0, 150.0, 150.0, 90.0, 90.0];
        assert_eq!(standing(&twice_lost, &usual), Standing::Unsure { lost: 2, rounds: 7 });
    }
}
