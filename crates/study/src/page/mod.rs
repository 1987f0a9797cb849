//! A study as one page: what it came to, charts, the table, and what else is to be said. One file that needs nothing
//! else.

mod chart;

use farandole_insight::report::page::{document, escaped, section};

use super::findings::{Findings, Row, label};
use super::input::{InputPoint, shortened};
use super::sweep::StudyKind;
use super::table;
use chart::{Series, lines, seconds, stacks};

/// What charts add to the style of all pages.
const STYLE: &str = "
:root { --k0: #1f5a8c; --k1: #b0480f; --k2: #2c7a4b; --k3: #80477b; }
@media (prefers-color-scheme: dark) { :root { --k0: #7fbdf0; --k1: #ffb077; --k2: #7fd3a5; --k3: #d9a6d4; } }
.chart { display: block; height: 17rem; overflow: visible; }
.grid { stroke: var(--line); stroke-width: 1; }
.tick { fill: var(--soft); font-size: .78rem; font-variant-numeric: tabular-nums; }
.line { stroke-width: 2; }
.line.k0 { stroke: var(--k0); } .line.k1 { stroke: var(--k1); stroke-dasharray: 7 4; }
.line.k2 { stroke: var(--k2); stroke-dasharray: 2 4; } .line.k3 { stroke: var(--k3); stroke-dasharray: 10 3 2 3; }
.mark.k0 { fill: var(--k0); } .mark.k1 { fill: var(--k1); } .mark.k2 { fill: var(--k2); } .mark.k3 { fill: var(--k3); }
.ring { fill: var(--page); stroke: var(--k2); stroke-width: 2; }
.below { color: var(--soft); font-size: .78rem; text-align: center; }
.sample { width: 2.6rem; height: 1.1rem; }
.part { stroke: var(--page); stroke-width: 1; }
.s0 { fill: var(--work); } .s1 { fill: var(--transfer); } .s2 { fill: var(--input); } .s3 { fill: var(--sequential); }
.s4 { fill: var(--checkpoint); } .s5 { fill: var(--other); }
.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 36rem) { .chart { height: 13rem; } }
";

/// The whole page. `subject` says what was measured and how.
pub fn page(findings: &Findings, subject: &str) -> String {
    let labels: Vec<String> = findings.rows.iter().map(|row| place(findings, row)).collect();
    let mut sections = vec![section("Throughput", "throughput", &throughput(findings, &labels))];
    if matches!(findings.kind, StudyKind::Weak | StudyKind::Strong) {
        sections.push(section("Speed-up", "speed-up", &speedup(findings, &labels)));
    }
    if findings.kind.scales() {
        let values = column(findings, |row| row.efficiency.map(|efficiency| 100.0 * efficiency));
        let series = [Series { name: "efficiency".into(), values, measured: true }];
        sections.push(section(
            "Efficiency",
            "efficiency",
            &lines("Efficiency", (axis(findings), &labels), &series, percent),
        ));
    }
    let alone = findings.rows.iter().any(|row| row.phases.iter().any(|(name, _)| name == "read"));
    let title = if alone { "Time of a sample by stage, of one worker" } else { "Time of an iteration by phase" };
    sections.push(section(title, "phases", &phases(findings)));
    if !alone {
        sections.push(section("Where the time of all ranks went", "causes", &causes(findings)));
    }
    if let Some(messages) = findings.messages() {
        let text = format!("<div class=\"scroll\"><pre>{}</pre></div>\n", escaped(&messages));
        sections.push(section("Operations by size, plane beside plane", "messages", &text));
    }
    sections.push(section("All figures", "table", &table(findings)));
    let sentences: String =
        findings.sentences.iter().map(|sentence| format!("<p class=\"wrap\">{}</p>\n", escaped(sentence))).collect();
    let body = format!(
        "<main>\n<header>\n<p class=\"subject\">{}</p>\n<h1>{}</h1>\n</header>\n{}{}</main>\n",
        escaped(subject),
        escaped(&findings.headline),
        section("What it means", "sentences", &sentences),
        sections.concat()
    );
    document(&findings.headline, STYLE, &body)
}

fn column(findings: &Findings, value: impl Fn(&Row) -> Option<f64>) -> Vec<Option<f64>> {
    findings.rows.iter().map(value).collect()
}

/// What stands below a place of the axis: short.
fn place(findings: &Findings, row: &Row) -> String {
    let point = &row.point;
    match (findings.kind, findings.has_several_ranks()) {
        (StudyKind::Weak | StudyKind::Strong, _) => point.ranks.to_string(),
        (StudyKind::Batch, false) => point.batch.to_string(),
        (StudyKind::Batch, true) => format!("{}·{}", point.batch, point.ranks),
        (StudyKind::Threads, _) => format!("{}×{}", point.ranks, point.threads),
        (StudyKind::Models, _) => format!("{}·{}", point.model, point.ranks),
        (StudyKind::Precision, false) => point.precision.clone(),
        (StudyKind::Precision, true) => format!("{}·{}", point.precision, point.ranks),
        (StudyKind::Planes, false) => point.plane.clone(),
        (StudyKind::Planes, true) => format!("{}·{}", point.plane, point.ranks),
        (StudyKind::Storage | StudyKind::Format | StudyKind::Loader, _) => {
            input(row, |input| input_place(findings, input))
        }
    }
}

/// What stands below the whole axis.
fn axis(findings: &Findings) -> &'static str {
    match (findings.kind, findings.has_several_ranks()) {
        (StudyKind::Weak | StudyKind::Strong, _) => "ranks",
        (StudyKind::Batch, false) => "samples of each rank in a step",
        (StudyKind::Batch, true) => "samples of each rank in a step · ranks",
        (StudyKind::Threads, _) => "ranks × threads",
        (StudyKind::Models, _) => "model · ranks",
        (StudyKind::Precision, false) => "how gradients travel",
        (StudyKind::Precision, true) => "how gradients travel · ranks",
        (StudyKind::Planes, false) => "plane",
        (StudyKind::Planes, true) => "plane · ranks",
        (StudyKind::Storage, _) => "storage",
        (StudyKind::Format, _) => "format",
        (StudyKind::Loader, _) => "workers",
    }
}

/// What of a point of the input pipeline stands below its place: its source, and its workers where they differ.
fn input_place(findings: &Findings, input: &InputPoint) -> String {
    if findings.kind == StudyKind::Loader {
        return input.workers.to_string();
    }
    /// Characters that fit below a place.
    const LONG: usize = 16;
    let name = shortened(&input.name, LONG);
    let differ = |row: &Row| row.point.input.as_ref().is_some_and(|other| other.workers != input.workers);
    if findings.rows.iter().any(differ) { format!("{name}·{}", input.workers) } else { name }
}

fn input(row: &Row, text: impl Fn(&InputPoint) -> String) -> String {
    row.point.input.as_ref().map_or_else(String::new, text)
}

/// Throughput of the input pipeline: a line for each cache and number of batches ahead, and the maxima.
fn input_throughput(findings: &Findings) -> String {
    let name = |row: &Row| {
        input(row, |input| match findings.kind {
            StudyKind::Loader => format!("{} ahead, {}", input.prefetch, input.cache.word()),
            _ => input.cache.word().to_owned(),
        })
    };
    let (mut places, mut lines_): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for row in &findings.rows {
        for (known, new) in [(&mut places, place(findings, row)), (&mut lines_, name(row))] {
            if !known.contains(&new) {
                known.push(new);
            }
        }
    }
    let value = |line: &str, at: &str, value: fn(&Row) -> Option<f64>| {
        findings.rows.iter().find(|row| name(row) == line && place(findings, row) == at).and_then(value)
    };
    let series = |line: &String, what: &str, of: fn(&Row) -> Option<f64>, measured: bool| Series {
        name: format!("{line}: {what}, {}/s", findings.unit),
        values: places.iter().map(|at| value(line, at, of)).collect(),
        measured,
    };
    let mut all: Vec<Series> = lines_.iter().map(|line| series(line, "median", |row| row.median, true)).collect();
    if findings.kind != StudyKind::Loader {
        all.extend(lines_.iter().map(|line| series(line, "maximum", Row::maximum, false)));
    }
    lines("Throughput", (axis(findings), &places), &all, rate)
}

fn rate(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

fn throughput(findings: &Findings, labels: &[String]) -> String {
    if findings.kind.is_input() {
        return input_throughput(findings);
    }
    let best = |row: &Row| row.runs.iter().copied().reduce(f64::max).filter(|_| row.runs.len() > 1);
    let worst = |row: &Row| row.runs.iter().copied().reduce(f64::min).filter(|_| row.runs.len() > 1);
    let mut series = vec![Series {
        name: format!("median, {}/s", findings.unit),
        values: column(findings, |row| row.median),
        measured: true,
    }];
    if findings.rows.iter().any(|row| row.runs.len() > 1) {
        series.push(Series { name: "fastest run".into(), values: column(findings, best), measured: false });
        series.push(Series { name: "slowest run".into(), values: column(findings, worst), measured: false });
    }
    lines("Throughput", (axis(findings), labels), &series, rate)
}

fn speedup(findings: &Findings, labels: &[String]) -> String {
    let base = findings.rows.iter().find(|row| row.baseline).map_or(1, |row| row.point.ranks) as f64;
    let ideal = |row: &Row| Some(row.point.ranks as f64 / base);
    let mut series = vec![
        Series { name: "measured".into(), values: column(findings, |row| row.speedup), measured: true },
        Series { name: "ideal".into(), values: column(findings, ideal), measured: false },
    ];
    if let Some(share) = findings.share {
        let name = if findings.kind == StudyKind::Strong { "Amdahl's law" } else { "Gustafson's law" };
        let law = |row: &Row| Some(share.speedup(row.point.ranks as f64 / base));
        series.push(Series { name: name.into(), values: column(findings, law), measured: false });
    }
    lines("Speed-up", (axis(findings), labels), &series, |value| format!("{value}×"))
}

fn phases(findings: &Findings) -> String {
    let parts = names(findings, |row| &row.phases);
    if parts.is_empty() {
        return "<p class=\"note\">The program marks no phases and no iterations (docs/insight.md says how).</p>\n"
            .to_owned();
    }
    let values = values(findings, &parts, |row| &row.phases);
    stacks("Time of an iteration", &row_labels(findings), &parts, &values)
        + &numbers(findings, &parts, &values, seconds)
}

fn causes(findings: &Findings) -> String {
    let parts = names(findings, |row| &row.split);
    if parts.is_empty() {
        return "<p class=\"note\">The program left no trace: it does not use farandole.</p>\n".to_owned();
    }
    numbers(findings, &parts, &values(findings, &parts, |row| &row.split), |value| format!("{value:.1} %"))
}

fn row_labels(findings: &Findings) -> Vec<String> {
    findings.rows.iter().map(|row| label(findings.kind, &row.point)).collect()
}

/// All names that a table of any row has, in order of their first appearance.
fn names(findings: &Findings, table: fn(&Row) -> &Vec<(String, f64)>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in findings.rows.iter().flat_map(table) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn values(findings: &Findings, names: &[String], table: fn(&Row) -> &Vec<(String, f64)>) -> Vec<Vec<f64>> {
    let value =
        |row: &Row, name: &String| table(row).iter().find(|(known, _)| known == name).map_or(0.0, |found| found.1);
    findings.rows.iter().map(|row| names.iter().map(|name| value(row, name)).collect()).collect()
}

fn numbers(findings: &Findings, names: &[String], values: &[Vec<f64>], number: fn(f64) -> String) -> String {
    let heads: String = names.iter().map(|name| format!("<th scope=\"col\">{}</th>", escaped(name))).collect();
    let mut rows = String::new();
    for (label, row) in row_labels(findings).iter().zip(values) {
        let cells: String = row.iter().map(|value| format!("<td>{}</td>", number(*value))).collect();
        rows += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escaped(label));
    }
    format!("<div class=\"scroll\"><table>\n<tr><th scope=\"col\"></th>{heads}</tr>\n{rows}</table></div>\n")
}

fn table(findings: &Findings) -> String {
    let mut rows = String::new();
    for (position, cells) in table::cells(findings).iter().enumerate() {
        let cell = |(column, cell): (usize, &String)| match (position, column) {
            (0, _) => format!("<th scope=\"col\">{}</th>", escaped(cell)),
            (_, 0) => format!("<th scope=\"row\">{}</th>", escaped(cell)),
            _ => format!("<td>{}</td>", escaped(cell)),
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        rows += &format!("<tr>{cells}</tr>\n");
    }
    format!("<div class=\"scroll\"><table>\n{rows}</table></div>\n")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
