//! The lines by which a program says how fast it is.
//!
//! ```text
//! throughput: 812.4 samples/s          of the whole job; one rank says it
//! rank throughput: 406.1 samples/s     of this rank; every rank says it, and they are added up
//! ```
//!
//! The words stand at the beginning of a line, in any case; the unit is any word before `/s`, the same throughout. A
//! program says it as often as it likes, for stretches of about equal length: the first lines are left out as warm-up,
//! the median of the others counts. Everything else that it prints is its own business.

use super::error::{Error, Result, refuse};
use super::input::InputFigures;

/// What one line says.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    whole_job: bool,
    per_s: f64,
    unit: String,
}

/// What a whole run says.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// Units of all ranks together, in a second.
    pub per_s: f64,
    /// What is counted, such as `samples`.
    pub unit: String,
}

fn parse(line: &str) -> Option<Line> {
    let line = line.trim().to_lowercase();
    let (rest, whole_job) = match line.strip_prefix("rank throughput:") {
        Some(rest) => (rest, false),
        None => (line.strip_prefix("throughput:")?, true),
    };
    let mut words = rest.split_whitespace();
    let per_s: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?.strip_suffix("/s")?.to_owned();
    let complete = words.next().is_none() && !unit.is_empty();
    (complete && per_s.is_finite() && per_s > 0.0).then_some(Line { whole_job, per_s, unit })
}

/// What the outputs of all ranks say, each rank's in one text. `warm_up` lines of each are left out.
pub fn read(outputs: &[String], warm_up: usize) -> Result<Throughput> {
    let lines: Vec<Vec<Line>> =
        outputs.iter().map(|output| output.lines().filter_map(parse).collect::<Vec<Line>>()).collect();
    let Some(first) = lines.iter().flatten().next() else {
        return refuse("it printed no line `throughput: NUMBER samples/s` (docs/study.md has the format)".to_owned());
    };
    if let Some(other) = lines.iter().flatten().find(|line| line.unit != first.unit) {
        let (one, other) = (&first.unit, &other.unit);
        return refuse(format!("its throughput is in {one}/s in one line and in {other}/s in another"));
    }
    let unit = first.unit.clone();
    let said = |rank: &Vec<Line>, whole_job: bool| -> Vec<f64> {
        rank.iter().filter(|line| line.whole_job == whole_job).map(|line| line.per_s).collect()
    };
    // Whoever says it for the whole job has counted everybody.
    if let Some(values) = lines.iter().map(|rank| said(rank, true)).find(|values| !values.is_empty()) {
        return Ok(Throughput { per_s: settled(&values, warm_up)?, unit });
    }
    let mut per_s = 0.0;
    for (number, rank) in lines.iter().enumerate() {
        let values = said(rank, false);
        if values.is_empty() {
            return refuse(format!("rank {number} printed no line `rank throughput: NUMBER samples/s`, others did"));
        }
        per_s += settled(&values, warm_up)?;
    }
    Ok(Throughput { per_s, unit })
}

/// What the trainer says at its end, in the last line of its log. The median over steps counts, which does not mind the
/// first ones.
pub fn of_trainer(log: &str) -> Result<(Throughput, Option<InputFigures>)> {
    let last = log.lines().rev().find(|line| line.contains("\"summary\""));
    let last = last.ok_or_else(|| Error("the trainer's log has no summary".to_owned()))?;
    let value: serde_json::Value =
        serde_json::from_str(last).map_err(|error| Error(format!("the trainer's summary: {error}")))?;
    let per_s = value["median_samples_per_s"].as_f64().filter(|per_s| *per_s > 0.0);
    let per_s = per_s.ok_or_else(|| Error("the trainer's summary has no throughput".to_owned()))?;
    let ranks = value["samples_per_s_by_rank"].as_array();
    let peak = ranks.map(|ranks| ranks.iter().filter_map(|rank| rank["upper"].as_f64()).sum::<f64>());
    let figures = value["samples_per_s"].as_f64().zip(peak).map(|(mean_per_s, peak_per_s)| InputFigures {
        mean_per_s,
        peak_per_s,
        bytes_per_s: None,
        broken: 0,
    });
    Ok((Throughput { per_s, unit: "samples".to_owned() }, figures))
}

/// The median after the warm-up.
fn settled(values: &[f64], warm_up: usize) -> Result<f64> {
    match values.len() {
        lines if lines > warm_up => Ok(median(&values[warm_up..])),
        lines => refuse(format!(
            "it printed {lines} lines of throughput, all of them within the warm-up of {warm_up}: let it run longer, or \
             lower --warm-up"
        )),
    }
}

/// The middle one, or the mean of the two in the middle. There is at least one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn one_rank_may_speak_for_all() {
        let outputs = texts(&["hello\nThroughput: 10 img/s\nthroughput: 30 img/s\n throughput: 20 img/s\n", ""]);
        assert_eq!(read(&outputs, 1).unwrap(), Throughput { per_s: 25.0, unit: "img".into() });
    }

    #[test]
    fn ranks_that_speak_for_themselves_are_added_up_and_must_all_speak() {
        let outputs = texts(&["rank throughput: 10 samples/s\n", "rank throughput: 12.5 samples/s"]);
        assert_eq!(read(&outputs, 0).unwrap().per_s, 22.5);
        let silent = texts(&["rank throughput: 10 samples/s\n", "nothing"]);
        assert!(read(&silent, 0).unwrap_err().to_string().contains("rank 1"));
    }

    #[test]
    fn what_is_not_exactly_a_throughput_is_not_taken_for_one() {
        for line in [
            "throughput: fast",
            "my throughput: 3 a/s",
            "throughput: 3",
            "throughput: -3 a/s",
            "throughput: nan a/s",
            "throughput: 3 /s",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        assert!(read(&texts(&["hello"]), 0).unwrap_err().to_string().contains("docs/study.md"));
    }

    #[test]
    fn units_do_not_mix_and_the_warm_up_leaves_something() {
        let mixed = texts(&["throughput: 3 a/s\nthroughput: 3 b/s"]);
        assert!(read(&mixed, 0).unwrap_err().to_string().contains("b/s"));
        assert!(read(&texts(&["throughput: 3 a/s"]), 1).unwrap_err().to_string().contains("--warm-up"));
    }
}
