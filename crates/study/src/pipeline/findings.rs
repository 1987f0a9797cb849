//! What `farandole data bench` has measured: rows, their table, and advice.

use std::fmt::Write as _;

use serde::Serialize;

use super::advice::{AdviceBasis, advice};
use super::figures::PipelineFigures;

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineRow {
    /// `read`, `all`, or `reduced`: all, with images that were reduced beforehand.
    pub what: &'static str,
    /// `warm`, `cold` or `memory`.
    pub files: &'static str,
    /// Threads that made batches.
    pub workers: usize,
    /// What they did.
    #[serde(flatten)]
    pub measured: PipelineFigures,
}

/// All rows, and what they mean.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineFindings {
    /// What was read.
    pub source: String,
    /// What was done to images.
    pub transform: String,
    /// What was measured, in the order of the table.
    pub rows: Vec<PipelineRow>,
    /// Sentences for people.
    pub advice: Vec<String>,
}

impl PipelineFindings {
    /// Looks at all rows. The first one reads without decoding, with one worker; one of the others does all with one
    /// worker, warm. `reduced` is measured with images of this shorter side, `need` the rate of the training.
    pub fn of(
        (source, transform): (String, String),
        mut rows: Vec<PipelineRow>,
        reduced: Option<(usize, PipelineRow)>,
        need: Option<f64>,
        cores: usize,
    ) -> PipelineFindings {
        let advice = advice(&basis(&rows, reduced.as_ref(), need, cores));
        rows.extend(reduced.map(|(_, row)| row));
        PipelineFindings { source, transform, rows, advice }
    }

    /// A table, and what it means.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.source, self.transform);
        let _ = writeln!(
            text,
            "{:<8} {:<7} {:>7} {:>11} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}",
            "what", "files", "workers", "samples/s", "MB/s", "read us", "decode us", "change us", "store us", "MB held"
        );
        for PipelineRow { what, files, workers, measured } in &self.rows {
            let PipelineFigures {
                samples_per_s,
                bytes_per_s,
                read_us,
                decode_us,
                transform_us,
                store_us,
                memory_bytes,
                ..
            } = measured;
            let (megabytes_per_s, megabytes) = (bytes_per_s / 1e6, *memory_bytes as f64 / 1e6);
            let _ = writeln!(
                text,
                "{what:<8} {files:<7} {workers:>7} {samples_per_s:>11.1} {megabytes_per_s:>9.1} {read_us:>9.0} \
                 {decode_us:>9.0} {transform_us:>10.0} {store_us:>9.0} {megabytes:>8.1}"
            );
        }
        text.push('\n');
        self.advice.iter().for_each(|line| text += &format!("{line}\n"));
        text
    }
}

/// The rows that advice is about.
fn basis<'a>(
    rows: &'a [PipelineRow],
    reduced: Option<&'a (usize, PipelineRow)>,
    need: Option<f64>,
    cores: usize,
) -> AdviceBasis<'a> {
    let all = rows.iter().filter(|row| (row.what, row.files) == ("all", "warm"));
    let best = all.clone().max_by(|one, other| one.measured.samples_per_s.total_cmp(&other.measured.samples_per_s));
    let alone = all.clone().find(|row| row.workers == 1);
    let (alone, best) = alone.zip(best).expect("invariant: one worker is always measured");
    AdviceBasis {
        alone: &alone.measured,
        best: (best.workers, &best.measured),
        reading: &rows[0].measured,
        reduced: reduced.map(|(side, row)| (*side, &row.measured)),
        cold: rows.iter().find(|row| (row.what, row.files) == ("all", "cold")).map(|row| &row.measured),
        need,
        cores,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &'static str, files: &'static str, workers: usize, samples_per_s: f64) -> PipelineRow {
        let measured = PipelineFigures {
            samples: 100,
            samples_per_s,
            peak_per_s: samples_per_s,
            bytes_per_s: 1e6,
            read_us: 100.0,
            decode_us: 900.0,
            transform_us: 0.0,
            store_us: 0.0,
            memory_bytes: 2_500_000,
            broken: 0,
        };
        PipelineRow { what, files, workers, measured }
    }

    #[test]
    fn the_table_has_all_rows_and_advice_is_about_the_warm_ones() {
        let rows = vec![
            row("read", "warm", 1, 9000.0),
            row("all", "warm", 1, 50.0),
            row("all", "warm", 2, 90.0),
            row("read", "cold", 1, 300.0),
            row("all", "cold", 2, 80.0),
        ];
        let named = ("photos/".to_owned(), "flip".to_owned());
        let reduced = Some((256, row("reduced", "memory", 1, 200.0)));
        let findings = PipelineFindings::of(named, rows, reduced, Some(100.0), 2);
        let text = findings.text();
        assert!(text.starts_with("photos/\nflip\n\nwhat     files   workers"), "{text}");
        assert_eq!(findings.rows.len(), 6);
        assert!(text.contains("reduced  memory        1       200.0"), "{text}");
        assert!(text.contains("The most was 90 samples/s with 2 workers; that is all 2 cores."), "{text}");
        assert!(text.contains("you need 100: 2 workers; or convert once, then 1:"), "{text}");
        assert!(text.contains("10 % are lost to preparing samples (warm, 90 samples/s), and 10 % more"), "{text}");
    }
}
