//! What the runs of a study say: a row for each point, and sentences about all of them.
//!
//! The figure of a point is the median of its runs; its spread is the distance between the slowest and the fastest. A
//! run far from the others of its point is an *outlier*: it is shown, and the median does not mind. Everything is
//! compared with one declared baseline. A speed-up beyond the number of ranks is no mistake by itself (a smaller batch
//! fits a cache), but a reason to look, so it is marked.

use serde::Serialize;

use super::error::Result;
use super::fit::{Law, Share, StepTime, knee};
use super::input::{self, InputFigures};
use super::input_findings;
use super::planes::{self, Column, Messages};
use super::point::StudyPoint;
use super::run::{Measured, Run, RunOutcome};
use super::sweep::{self, Axes, StudyKind};
use super::throughput::median;

/// What is known of one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The point.
    pub point: StudyPoint,
    /// Throughput of each run that was measured, in the order of the repeats.
    pub runs: Vec<f64>,
    /// Their median; none where no run was measured.
    pub median: Option<f64>,
    /// Fastest minus slowest, relative to the median.
    pub spread: f64,
    /// Positions in `runs` of runs far from the others.
    pub outliers: Vec<usize>,
    /// How many times the baseline's throughput.
    pub speedup: Option<f64>,
    /// The speed-up relative to the ranks, where twice the ranks should do twice as much.
    pub efficiency: Option<f64>,
    /// More than the number of ranks explains.
    pub superlinear: bool,
    /// It is what the others are compared with.
    pub baseline: bool,
    /// Medians over the runs: seconds for each phase of an iteration.
    pub phases: Vec<(String, f64)>,
    /// Medians over the runs: percent of the time for each cause.
    pub split: Vec<(String, f64)>,
    /// Why runs failed.
    pub failures: Vec<String>,
    /// Why this machine cannot do it.
    pub refused: Option<String>,
    /// Operations by size, of the run with the median throughput.
    pub messages: Vec<Messages>,
    /// What else is known of each run, in a study of the input pipeline.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<InputFigures>,
}

impl Row {
    /// Mean of the runs' means, in a study of the input pipeline.
    pub(crate) fn mean(&self) -> Option<f64> {
        let sum: f64 = self.input.iter().map(|run| run.mean_per_s).sum();
        (!self.input.is_empty()).then(|| sum / self.input.len() as f64)
    }

    /// The highest rate of any part of any run, in a study of the input pipeline.
    pub(crate) fn maximum(&self) -> Option<f64> {
        self.input.iter().map(|run| run.peak_per_s).reduce(f64::max)
    }
}

/// All rows, and what they come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// What was varied.
    pub kind: StudyKind,
    /// What is counted, such as `samples`.
    pub unit: String,
    /// A row for each point, in the order of the points.
    pub rows: Vec<Row>,
    /// The law's share that does not scale, where a law applies.
    #[serde(skip)]
    pub(crate) share: Option<Share>,
    /// The whole in one sentence.
    pub headline: String,
    /// What else is to be said.
    pub sentences: Vec<String>,
}

/// Beyond the number of ranks by more than noise: runs differ by some percent on any machine.
const SUPERLINEAR: f64 = 1.05;

/// A run is an outlier if it is off by more than this share of the median, and by more than three deviations of the
/// others.
const OFF: f64 = 0.1;

impl Findings {
    /// Looks at all runs.
    pub fn of(axes: &Axes, points: &[StudyPoint], runs: &[Run]) -> Result<Findings> {
        let mut rows: Vec<Row> = points.iter().map(|point| row(point, runs)).collect();
        for position in 0..rows.len() {
            let base = sweep::baseline(axes, points, position)?;
            rows[position].baseline = base == position;
            let (Some(own), Some(other)) = (rows[position].median, rows[base].median) else { continue };
            let speedup = own / other;
            rows[position].speedup = Some(speedup);
            if axes.kind.scales() {
                let efficiency = speedup * points[base].ranks as f64 / points[position].ranks as f64;
                rows[position].efficiency = Some(efficiency);
                rows[position].superlinear = efficiency > SUPERLINEAR;
            }
        }
        let unit = runs.iter().find_map(|run| measured(run).map(|measured| measured.unit.clone()));
        let mut findings = Findings {
            kind: axes.kind,
            unit: unit.unwrap_or_else(|| "samples".to_owned()),
            share: share(axes.kind, &rows),
            rows,
            headline: String::new(),
            sentences: Vec::new(),
        };
        findings.headline = findings.say_headline();
        findings.sentences = findings.say_more();
        Ok(findings)
    }

    /// Points without a figure.
    pub fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.median.is_none() && row.refused.is_none()).count()
    }

    /// In a study of planes, operations by size, plane beside plane; a table for each number of ranks.
    pub(crate) fn messages(&self) -> Option<String> {
        let table = |rows: &Vec<&Row>| {
            let measured = rows.iter().filter_map(|row| Some((row, row.median?)));
            let with_messages = measured.filter(|(row, _)| !row.messages.is_empty());
            let column = |(row, per_s): (&&Row, f64)| (row.point.plane.clone(), per_s, row.messages.clone());
            let columns: Vec<(String, f64, Vec<Messages>)> = with_messages.map(column).collect();
            let columns: Vec<Column<'_>> =
                columns.iter().map(|(name, per_s, messages)| Column { name, per_s: *per_s, messages }).collect();
            let ranks = counted(rows[0].point.ranks, "rank");
            (!columns.is_empty())
                .then(|| format!("Operations by size, {ranks}\n{}", planes::messages(&columns, &self.unit)))
        };
        let tables: Vec<String> = self.by_ranks().iter().filter_map(table).collect();
        (self.kind == StudyKind::Planes && !tables.is_empty()).then(|| tables.join("\n"))
    }

    fn best(&self) -> Option<&Row> {
        fastest_of(&self.rows.iter().collect::<Vec<_>>())
    }

    fn say_headline(&self) -> String {
        let measured: Vec<&Row> = self.rows.iter().filter(|row| row.median.is_some()).collect();
        let (Some(last), Some(best)) = (measured.last(), self.best()) else { return "Nothing was measured".to_owned() };
        let point = &best.point;
        let unit = &self.unit;
        let fastest = best.median.unwrap_or_default();
        match self.kind {
            StudyKind::Weak | StudyKind::Strong => {
                let (ranks, word) = (counted(last.point.ranks, "rank"), self.kind.word());
                let does = if last.point.ranks == 1 { "does" } else { "do" };
                match (last.speedup, last.efficiency) {
                    (Some(speedup), Some(efficiency)) => {
                        let percent = 100.0 * efficiency;
                        format!(
                            "{ranks} {does} {speedup:.2}× the work of the baseline: {percent:.0} % efficient ({word} scaling)"
                        )
                    }
                    _ => {
                        let own = last.median.unwrap_or_default();
                        format!("{ranks} {does} {own:.0} {unit}/s; the baseline was not measured ({word} scaling)")
                    }
                }
            }
            StudyKind::Batch => {
                let (batch, place) = (point.batch, self.on_ranks(best));
                let knee = |rows: &Vec<&Row>| Some((knee_of(rows)?, counted(rows[0].point.ranks, "rank")));
                let knees: Vec<(usize, String)> = self.by_ranks().iter().filter_map(knee).collect();
                let enough = match knees.as_slice() {
                    [(knee, _)] => format!("A batch of {knee} on each rank is enough"),
                    several => {
                        let several = several.iter().map(|(knee, ranks)| format!("{knee} ({ranks})"));
                        format!("A batch on each rank of {} is enough", several.collect::<Vec<_>>().join(", "))
                    }
                };
                format!("{enough}; the best is {fastest:.0} {unit}/s at {batch}{place}")
            }
            StudyKind::Threads => format!(
                "{} × {} is the best layout: {fastest:.0} {unit}/s",
                counted(point.ranks, "rank"),
                counted(point.threads, "thread")
            ),
            StudyKind::Precision | StudyKind::Planes => {
                let fastest = |rows: &Vec<&Row>| -> Option<String> {
                    let best = fastest_of(rows)?;
                    let (per_s, ranks) = (best.median.unwrap_or_default(), self.on_ranks(best));
                    let of_plane = self.kind == StudyKind::Planes;
                    let name = if of_plane { &best.point.plane } else { &best.point.precision };
                    Some(format!("{name} is fastest{ranks}: {per_s:.0} {unit}/s"))
                };
                self.by_ranks().iter().filter_map(fastest).collect::<Vec<_>>().join("; ")
            }
            StudyKind::Storage | StudyKind::Format | StudyKind::Loader => input_findings::headline(self),
            StudyKind::Models => {
                let beyond: Vec<&&Row> =
                    measured.iter().filter(|row| !row.baseline && row.efficiency.is_some()).collect();
                let by = |row: &&&&Row| row.efficiency.unwrap_or(0.0);
                let best = beyond.iter().max_by(|a, b| by(a).total_cmp(&by(b)));
                let worst = beyond.iter().min_by(|a, b| by(a).total_cmp(&by(b)));
                match (best, worst) {
                    (Some(best), Some(worst)) if beyond.len() > 1 => format!(
                        "{} scales best ({:.0} % efficient), {} worst ({:.0} %)",
                        best.point.model,
                        100.0 * by(&best),
                        worst.point.model,
                        100.0 * by(&worst)
                    ),
                    _ => format!("{} is fastest: {fastest:.0} {unit}/s", point.model),
                }
            }
        }
    }

    /// Rows by their number of ranks, in the order in which these first appear.
    fn by_ranks(&self) -> Vec<Vec<&Row>> {
        let mut groups: Vec<Vec<&Row>> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|group| group[0].point.ranks == row.point.ranks) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups
    }

    /// Whether points differ in their number of ranks.
    pub(crate) fn has_several_ranks(&self) -> bool {
        self.rows.iter().any(|row| row.point.ranks != self.rows[0].point.ranks)
    }

    /// On how many ranks a row was measured, where that is not the same for all.
    fn on_ranks(&self, row: &Row) -> String {
        let ranks = counted(row.point.ranks, "rank");
        if self.has_several_ranks() { format!(" on {ranks}") } else { String::new() }
    }

    fn say_more(&self) -> Vec<String> {
        let mut sentences: Vec<String> = self.share.iter().map(Share::sentence).collect();
        if self.kind == StudyKind::Batch {
            let time = |row: &&Row| Some((row.point.batch as f64, row.point.total_batch() as f64 / row.median?));
            for rows in self.by_ranks() {
                let points: Vec<(f64, f64)> = rows.iter().filter_map(time).collect();
                let ranks = counted(rows[0].point.ranks, "rank");
                let place = if self.has_several_ranks() { format!("{ranks}: ") } else { String::new() };
                sentences.extend(StepTime::of(&points).map(|line| format!("{place}{}", line.sentence())));
            }
            sentences.push(
                "A larger batch changes what is learned: scale the learning rate, and compare accuracies.".to_owned(),
            );
        }
        if self.kind.is_input() {
            sentences.extend(input_findings::sentences(self));
        }
        for row in &self.rows {
            let name = label(self.kind, &row.point);
            if row.superlinear {
                sentences.push(format!(
                    "{name} is faster than its number of ranks explains ({:.0} % efficient). Usual causes: its smaller share fits a \
                     cache, or the baseline was disturbed.",
                    100.0 * row.efficiency.unwrap_or_default()
                ));
            }
            for &run in &row.outliers {
                sentences.push(format!(
                    "{name}: run {} gave {:.1} {}/s, far from its median of {:.1}; the median does not mind.",
                    run + 1,
                    row.runs[run],
                    self.unit,
                    row.median.unwrap_or_default()
                ));
            }
            if let Some(why) = &row.refused {
                sentences.push(format!("{name} was not measured: {why}"));
            }
            for failure in &row.failures {
                sentences.push(format!("{name} failed: {failure}"));
            }
        }
        sentences
    }
}

/// The row with the highest throughput; none where nothing was measured.
fn fastest_of<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    let measured = rows.iter().filter(|row| row.median.is_some());
    measured.max_by(|a, b| a.median.unwrap_or(0.0).total_cmp(&b.median.unwrap_or(0.0))).copied()
}

/// The batch from which on a larger one gains little.
fn knee_of(rows: &[&Row]) -> Option<usize> {
    let points: Vec<(usize, f64)> = rows.iter().filter_map(|row| Some((row.point.batch, row.median?))).collect();
    knee(&points)
}

/// What distinguishes a point from others of its study.
pub fn label(kind: StudyKind, point: &StudyPoint) -> String {
    match kind {
        StudyKind::Weak | StudyKind::Strong => counted(point.ranks, "rank"),
        StudyKind::Batch => format!("batch {} on {}", point.batch, counted(point.ranks, "rank")),
        StudyKind::Threads => format!("{} × {}", counted(point.ranks, "rank"), counted(point.threads, "thread")),
        StudyKind::Models => format!("{} on {}", point.model, counted(point.ranks, "rank")),
        StudyKind::Precision => format!("{} on {}", point.precision, counted(point.ranks, "rank")),
        StudyKind::Planes => format!("{} on {}", point.plane, counted(point.ranks, "rank")),
        StudyKind::Storage | StudyKind::Format | StudyKind::Loader => {
            point.input.as_ref().map_or_else(String::new, |input| input::label(kind, input))
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn measured(run: &Run) -> Option<&Measured> {
    match &run.outcome {
        RunOutcome::Measured(measured) => Some(measured),
        RunOutcome::Failed(_) | RunOutcome::Refused(_) => None,
    }
}

fn row(point: &StudyPoint, runs: &[Run]) -> Row {
    let own: Vec<&Run> = runs.iter().filter(|run| run.point == *point).collect();
    let all: Vec<&Measured> = own.iter().filter_map(|run| measured(run)).collect();
    let values: Vec<f64> = all.iter().map(|measured| measured.per_s).collect();
    let middle = (!values.is_empty()).then(|| median(&values));
    let (low, high) = values.iter().fold((f64::MAX, 0.0f64), |(low, high), &value| (low.min(value), high.max(value)));
    let failures = own.iter().filter_map(|run| match &run.outcome {
        RunOutcome::Failed(why) => Some(why.clone()),
        RunOutcome::Measured(_) | RunOutcome::Refused(_) => None,
    });
    let refused = own.iter().find_map(|run| match &run.outcome {
        RunOutcome::Refused(why) => Some(why.clone()),
        _ => None,
    });
    let distance = |measured: &&&Measured| (measured.per_s - middle.unwrap_or(0.0)).abs();
    let typical = all.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    Row {
        point: point.clone(),
        median: middle,
        spread: middle.map_or(0.0, |middle| (high - low) / middle),
        outliers: outliers(&values),
        speedup: None,
        efficiency: None,
        superlinear: false,
        baseline: false,
        phases: medians(all.iter().map(|measured| &measured.phases)),
        split: medians(all.iter().map(|measured| &measured.split)),
        failures: failures.collect(),
        refused,
        messages: typical.map_or(Vec::new(), |measured| measured.messages.clone()),
        input: all.iter().filter_map(|measured| measured.input).collect(),
        runs: values,
    }
}

/// For each name the median of its values, in the order in which names first appear.
fn medians<'a>(tables: impl Iterator<Item = &'a Vec<(String, f64)>>) -> Vec<(String, f64)> {
    let mut columns: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, value) in tables.flatten() {
        match columns.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(*value),
            None => columns.push((name.clone(), vec![*value])),
        }
    }
    columns.into_iter().map(|(name, values)| (name, median(&values))).collect()
}

/// Runs that are far from the others. The deviation is the median one, scaled to what it would be for a bell curve: one
/// wild run does not widen it.
fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < 3 {
        return Vec::new();
    }
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let deviation = 1.4826 * median(&distances);
    let far = |distance: &f64| *distance > OFF * middle && *distance > 3.0 * deviation;
    distances.iter().enumerate().filter(|(_, distance)| far(distance)).map(|(position, _)| position).collect()
}

fn share(kind: StudyKind, rows: &[Row]) -> Option<Share> {
    let law = match kind {
        StudyKind::Strong => Law::Amdahl,
        StudyKind::Weak => Law::Gustafson,
        _ => return None,
    };
    let base = rows.iter().find(|row| row.baseline)?.point.ranks as f64;
    let points: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((row.point.ranks as f64 / base, row.speedup?))).collect();
    Share::of(law, &points)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
