//! A study as text for people and as CSV for programs.

use std::fmt::Write;

use super::findings::{Findings, Row};
use super::input::{InputPoint, short};
use super::sweep::StudyKind;
use super::throughput::median;

/// The head of each column, and how a row fills it.
type Column = (&'static str, fn(&Row) -> String);

const MEDIAN: Column = ("per s", |row| match (row.median, &row.refused) {
    (Some(median), _) => format!("{median:.1}"),
    (None, Some(_)) => "–".to_owned(),
    (None, None) => "failed".to_owned(),
});
const SPREAD: Column =
    ("spread", |row| if row.runs.len() > 1 { format!("{:.1} %", 100.0 * row.spread) } else { "–".to_owned() });
const SPEEDUP: Column = ("speed-up", |row| row.speedup.map_or_else(dash, |speedup| format!("{speedup:.2}×")));

const COLUMNS: [Column; 9] = [
    ("model", |row| row.point.model.clone()),
    ("ranks", |row| row.point.ranks.to_string()),
    ("threads", |row| row.point.threads.to_string()),
    ("batch", |row| row.point.batch.to_string()),
    ("precision", |row| if row.point.plane.is_empty() { row.point.precision.clone() } else { row.point.plane.clone() }),
    MEDIAN,
    SPREAD,
    SPEEDUP,
    ("efficiency", |row| row.efficiency.map_or_else(dash, |efficiency| format!("{:.1} %", 100.0 * efficiency))),
];

/// Those of a study of the input pipeline.
const INPUT_COLUMNS: [Column; 14] = [
    ("source", |row| of_input(row, |input| short(&input.name))),
    ("cache", |row| of_input(row, |input| input.cache.word().to_owned())),
    ("workers", |row| of_input(row, |input| input.workers.to_string())),
    ("ahead", |row| of_input(row, |input| input.prefetch.to_string())),
    MEDIAN,
    ("mean", |row| row.mean().map_or_else(dash, |mean| format!("{mean:.1}"))),
    ("maximum", |row| row.maximum().map_or_else(dash, |maximum| format!("{maximum:.1}"))),
    SPREAD,
    SPEEDUP,
    ("MB/s", |row| bytes_per_s(row).map_or_else(dash, |bytes| format!("{:.1}", bytes / 1e6))),
    ("read", |row| stage(row, "read")),
    ("decode", |row| stage(row, "decode")),
    ("change", |row| stage(row, "change")),
    ("input wait", |row| {
        let all: f64 = row.phases.iter().map(|(_, seconds)| seconds).sum();
        let wait = row.phases.iter().find(|(name, _)| name == "input wait").filter(|_| all > 0.0);
        wait.map_or_else(dash, |(_, seconds)| format!("{:.1} %", 100.0 * seconds / all))
    }),
];

/// Columns of words, which begin at the left.
const WORDS: [&str; 5] = ["model", "precision", "plane", "source", "cache"];

fn dash() -> String {
    "–".to_owned()
}

fn of_input(row: &Row, text: fn(&InputPoint) -> String) -> String {
    row.point.input.as_ref().map_or_else(dash, text)
}

fn bytes_per_s(row: &Row) -> Option<f64> {
    let rates: Vec<f64> = row.input.iter().filter_map(|run| run.bytes_per_s).collect();
    (!rates.is_empty()).then(|| median(&rates))
}

/// What one sample takes of a worker in a stage.
fn stage(row: &Row, name: &str) -> String {
    let stage = row.phases.iter().find(|(known, _)| known == name);
    stage.map_or_else(dash, |(_, seconds)| format!("{:.0} us", 1e6 * seconds))
}

/// Those of a study; columns that no row fills are left out of studies of the input pipeline, which run alone or not.
fn columns(findings: &Findings) -> Vec<Column> {
    if !findings.kind.is_input() {
        return COLUMNS.to_vec();
    }
    let filled = |column: &Column| findings.rows.iter().any(|row| (column.1)(row) != dash());
    let always = |column: &Column| [MEDIAN.0, SPREAD.0].contains(&column.0);
    INPUT_COLUMNS.into_iter().filter(|column| always(column) || filled(column)).collect()
}

/// The head of a column, with the unit where it counts something.
fn head(name: &str, findings: &Findings) -> String {
    match name {
        "per s" => format!("{}/s", findings.unit),
        "precision" if findings.kind == StudyKind::Planes => "plane".to_owned(),
        "source" if findings.kind == StudyKind::Format => "format".to_owned(),
        name => name.to_owned(),
    }
}

/// What is remarkable about a row.
fn remarks(row: &Row) -> String {
    let mut remarks = Vec::new();
    if row.baseline {
        remarks.push("baseline".to_owned());
    }
    if row.refused.is_some() {
        remarks.push("not possible here".to_owned());
    }
    if row.superlinear {
        remarks.push("superlinear".to_owned());
    }
    if !row.outliers.is_empty() {
        remarks.push(format!("{} of {} runs far off", row.outliers.len(), row.runs.len()));
    }
    if !row.failures.is_empty() {
        remarks.push(format!("{} failed", row.failures.len()));
    }
    remarks.join(", ")
}

/// The cells of all rows, heads first.
pub(crate) fn cells(findings: &Findings) -> Vec<Vec<String>> {
    let columns = columns(findings);
    let mut heads: Vec<String> = columns.iter().map(|(name, _)| head(name, findings)).collect();
    heads.push("remarks".to_owned());
    let rows = findings.rows.iter().map(|row| {
        let cells = columns.iter().map(|(_, cell)| cell(row));
        cells.chain([remarks(row)]).collect()
    });
    [heads].into_iter().chain(rows).collect()
}

/// The headline, the table and the sentences.
pub fn text(findings: &Findings) -> String {
    let cells = cells(findings);
    let names: Vec<&str> = columns(findings).iter().map(|(name, _)| *name).collect();
    let columns = names.len() + 1;
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("{}.\n\n", findings.headline);
    for row in &cells {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[column] - cell.chars().count());
            let words = names.get(column).is_none_or(|name| WORDS.contains(name));
            let padded = if words { format!("{cell}{space}  ") } else { format!("{space}{cell}  ") };
            line.push_str(&padded);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if let Some(messages) = findings.messages() {
        let _ = write!(text, "\n{messages}");
    }
    if !findings.sentences.is_empty() {
        text.push('\n');
    }
    for sentence in &findings.sentences {
        let _ = writeln!(text, "{sentence}");
    }
    text
}

/// One line for each run, so that everything in the table can be computed again.
pub fn csv(findings: &Findings) -> String {
    let mut text =
        String::from("kind,model,ranks,threads,batch,total_batch,precision,run,per_s,unit,speedup,efficiency,plane");
    if findings.kind.is_input() {
        text += ",source,cache,workers,prefetch,mean_per_s,peak_per_s,bytes_per_s,broken";
        text += ",read_us,decode_us,change_us,store_us,input_wait_s";
    }
    text.push('\n');
    let number = |number: Option<f64>| number.map(|number| format!("{number:.6}")).unwrap_or_default();
    for row in &findings.rows {
        let point = &row.point;
        for (run, per_s) in row.runs.iter().enumerate() {
            let _ = write!(
                text,
                "{},{},{},{},{},{},{},{},{per_s:.6},{},{},{},{}",
                findings.kind.word(),
                quoted(&point.model),
                point.ranks,
                point.threads,
                point.batch,
                point.total_batch(),
                quoted(&point.precision),
                run + 1,
                quoted(&findings.unit),
                number(row.speedup),
                number(row.efficiency),
                quoted(&point.plane)
            );
            if let Some(input) = &point.input {
                text += &input_csv(row, input, run);
            }
            text.push('\n');
        }
    }
    text
}

/// What a line of a study of the input pipeline has more; stages are medians over the runs.
fn input_csv(row: &Row, input: &InputPoint, run: usize) -> String {
    let figures = row.input.get(run);
    let number = |number: Option<f64>| number.map(|number| format!("{number:.6}")).unwrap_or_default();
    let phase = |wanted: &str| row.phases.iter().find(|(name, _)| name == wanted).map(|(_, seconds)| *seconds);
    let us = |name: &str| number(phase(name).map(|seconds| 1e6 * seconds));
    [
        quoted(&input.name),
        input.cache.word().to_owned(),
        input.workers.to_string(),
        input.prefetch.to_string(),
        number(figures.map(|run| run.mean_per_s)),
        number(figures.map(|run| run.peak_per_s)),
        number(figures.and_then(|run| run.bytes_per_s)),
        figures.map(|run| run.broken.to_string()).unwrap_or_default(),
        us("read"),
        us("decode"),
        us("change"),
        us("store"),
        number(phase("input wait")),
    ]
    .iter()
    .fold(String::new(), |line, cell| line + "," + cell)
}

/// A text that may hold commas.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::StudyPoint;

    fn findings() -> Findings {
        let (model, precision, plane) = ("a,b".into(), "f32".into(), String::new());
        let point = StudyPoint { model, ranks: 2, threads: 1, batch: 8, precision, plane, input: None };
        let row = Row {
            point,
            runs: vec![10.0, 30.0],
            median: Some(20.0),
            spread: 1.0,
            outliers: vec![],
            speedup: Some(1.5),
            efficiency: Some(0.75),
            superlinear: false,
            baseline: true,
            phases: vec![],
            split: vec![],
            failures: vec!["why".into()],
            refused: None,
            messages: vec![],
            input: vec![],
        };
        Findings {
            kind: StudyKind::Weak,
            unit: "samples".into(),
            rows: vec![row],
            share: None,
            headline: "So it is".into(),
            sentences: vec!["More.".into()],
        }
    }

    #[test]
    fn the_table_has_heads_figures_and_remarks() {
        let text = text(&findings());
        assert_eq!(
            text,
            "So it is.\n\n\
             model  ranks  threads  batch  precision  samples/s   spread  speed-up  efficiency  remarks\n\
             a,b        2        1      8  f32             20.0  100.0 %     1.50×      75.0 %  baseline, 1 failed\n\n\
             More.\n"
        );
    }

    #[test]
    fn csv_has_a_line_for_each_run() {
        let csv = csv(&findings());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2], "weak,\"a,b\",2,1,8,16,f32,2,30.000000,samples,1.500000,0.750000,");
    }
}
