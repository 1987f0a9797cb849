//! The result of a run as a table for people.
//!
//! Lines are written as soon as their size has been measured, so that a long run can be watched; column widths are
//! therefore fixed beforehand.

use std::fmt::Write;

use super::driver::Showing;
use super::limit::Rates;
use super::report::{Report, Row};
use super::sizes::Size;
use super::statistics::Spread;
use super::task::{Kind, Memory, Pace, Through};

/// A load average above this before the run means that the cores are not the contestants' alone. A shell and its
/// friends stay well below.
const BUSY_LOAD: f64 = 0.7;

const LIMIT_FOOTNOTE: &str = "limit = all ranks at once read and write as many bytes as the size once (x *= 1), the least that memory must do; \
     sizes that fit the caches are bounded by these, and synchronising is not in it.";

const DEVICE_LIMIT_FOOTNOTE: &str = "limit = a copy within the GPU of the tensors of all ranks that share it, on its own clock: the least that its \
     memory must do; launching and synchronising are not in it.";

/// What stands above the table: what is measured, on what, by whom.
pub(crate) fn heading(report: &Report) -> String {
    let task = &report.task;
    let hosts = if report.hosts > 1 { format!(" on {} hosts", report.hosts) } else { String::new() };
    let mut words = vec![format!("{} ranks{hosts}", report.ranks)];
    if task.kind != Kind::Barrier {
        words.push(task.dtype.to_string());
    }
    if task.kind.reduces() {
        words.push(task.op.to_string());
    }
    let memory = match task.memory {
        Memory::Own => "caller's own memory",
        Memory::Mapped => "mapped buffers",
        Memory::Cuda => "device memory",
    };
    words.push(memory.to_string());
    words.extend(report.plane.map(|plane| format!("plane {plane}")));
    words.push(match (task.through, task.tensors) {
        (Through::Direct, _) => "direct".to_string(),
        (Through::Engine, 1) => "through the engine, by name".to_string(),
        (Through::Engine, tensors) => format!("through the engine, {tensors} tensors of the size at once"),
    });
    words.push(if task.pace == Pace::Aligned { "starts aligned" } else { "back to back" }.to_string());
    let products: Vec<&str> = report.entries.iter().map(|entry| entry.product.as_str()).collect();
    let machine = &report.machine;
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", task.kind, words.join(", "));
    let _ = writeln!(
        text,
        "machine:  {}, {} cores, {}, Linux {}",
        machine.host, machine.cores, machine.processor, machine.kernel
    );
    if machine.load > BUSY_LOAD {
        let _ = writeln!(
            text,
            "          BUSY: load average {:.1}; others are at work here, and the times below are theirs, too",
            machine.load
        );
    }
    if report.busy_cores > 0 {
        let _ = writeln!(text, "          {} cores are kept busy beside the contestants", report.busy_cores);
    }
    let _ = writeln!(text, "measured: {}", products.join(", "));
    if let Some(Rates { copy_bytes_per_s, add_bytes_per_s }) = report.rates {
        let (ranks, copied) = (report.ranks, copy_bytes_per_s / 1e9);
        let _ = match add_bytes_per_s.map(|added| added / 1e9) {
            Some(added) => {
                writeln!(
                    text,
                    "memory:   {ranks} ranks together copy {copied:.1} GB/s and add (a += b) {added:.1} GB/s"
                )
            }
            None => writeln!(text, "memory:   the GPU copies {copied:.1} GB/s within itself"),
        };
    }
    text
}

/// The two lines that name the columns.
pub(crate) fn column_names(report: &Report) -> String {
    let first = &report.entries[0].word;
    let mut names = format!("{:>9} {:>6} {:>9} {:>9} {:>9}", "size", "iters", first, "p90", "max");
    let mut units = format!("{:>9} {:>6} {:>9} {:>9} {:>9}", "", "", "us", "us", "us");
    let _ = write!(names, " {:>7} {:>7} {:>6}", "algbw", "busbw", "wrong");
    let _ = write!(units, " {:>7} {:>7} {:>6}", "GB/s", "GB/s", "");
    if report.rates.is_some() {
        let _ = write!(names, " | {:>9} {:>6}", "limit", "times");
        let _ = write!(units, " | {:>9} {:>6}", "us", "limit");
    }
    for entry in &report.entries[1..] {
        let _ = write!(names, " | {:>9} {:>6}", entry.word, "ratio");
        let _ = write!(units, " | {:>9} {:>6}", "us", "");
    }
    if report.has_best() {
        let _ = write!(names, " | {:>6}", "best");
        let _ = write!(units, " | {:>6}", "ratio");
    }
    format!("{names}\n{units}\n")
}

/// The line of one size.
pub(crate) fn line(report: &Report, row: &Row) -> String {
    let size = if report.task.kind == Kind::Barrier { "-".to_string() } else { Size(row.bytes).to_string() };
    let mut text = format!("{size:>9}");
    match &row.showings[0] {
        Showing::Measured { summary, wrong } => {
            let (median, p90, max) = (us(summary.median_us), us(summary.p90_us), us(summary.max_us));
            let _ = write!(text, " {:>6} {median:>9} {p90:>9} {max:>9}", summary.iterations);
            let algbw = report.algorithm_bandwidth(row, summary.median_us) / 1e9;
            let busbw = report.bus_bandwidth(row, summary.median_us) / 1e9;
            let _ = write!(text, " {algbw:>7.3} {busbw:>7.3} {wrong:>6}");
        }
        Showing::Unsupported { .. } => {
            let _ = write!(text, " {:>6} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-", "-", "-", "-");
        }
    }
    if let Some(limit) = &row.limit {
        let times = row.showings[0].median_us().zip(limit.median_us()).map(|(ours, limit)| ours / limit);
        let _ = write!(text, " | {:>9} {:>6}", cell(limit), ratio(times));
    }
    for entry in 1..row.showings.len() {
        let _ = write!(text, " | {:>9} {:>6}", cell(&row.showings[entry]), ratio(Report::ratio(row, entry)));
    }
    if report.has_best() {
        let _ = write!(text, " | {:>6}", ratio(report.best_ratio(row)));
    }
    text.push('\n');
    text
}

/// What stands below the table: how to read it, and what was lacking.
pub(crate) fn footnotes(report: &Report) -> String {
    let first = &report.entries[0].word;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "An iteration takes as long as its slowest rank; {first}: median over all iterations of all rounds, then p90 and max."
    );
    if report.task.kind != Kind::Barrier {
        let _ = writeln!(
            text,
            "algbw = size / median; busbw = algbw x {:.3}, what the busiest link must carry, comparable between rank counts. \
             KB, MB: steps of 1024; GB/s: 10^9.",
            report.task.kind.bus_factor(report.ranks)
        );
    }
    if report.entries.len() > 1 {
        let _ = writeln!(
            text,
            "Contestants took turns at each size; ratio = their median / {first}'s (above 1: {first} is faster){}.",
            if report.has_best() { "; best: the fastest of them" } else { "" }
        );
    }
    for (index, entry) in report.entries.iter().enumerate().filter(|(_, entry)| entry.twin) {
        let _ = writeln!(text, "{} / {first}, round by round: {}.", entry.word, round_ratios(report, index));
    }
    if report.rates.is_some() {
        let on_device = report.task.memory == Memory::Cuda;
        let _ = writeln!(text, "{}", if on_device { DEVICE_LIMIT_FOOTNOTE } else { LIMIT_FOOTNOTE });
    }
    for (index, entry) in report.entries.iter().enumerate() {
        let mut wrong_in_all = 0;
        let mut lacking = None;
        for row in &report.rows {
            match &row.showings[index] {
                Showing::Measured { wrong, .. } => wrong_in_all += wrong,
                Showing::Unsupported { why } => lacking = Some(why),
            }
        }
        if wrong_in_all > 0 {
            let _ = writeln!(text, "WRONG RESULTS: {} gave {wrong_in_all} wrong elements.", entry.word);
        }
        if let Some(why) = lacking {
            let _ = writeln!(text, "- : {} did not run: {why}", entry.word);
        }
    }
    text
}

/// The ratios of a twin at all sizes. They are near one, so they have a digit more than those in the table.
fn round_ratios(report: &Report, entry: usize) -> String {
    let shown = report.rows.iter().map(|row| {
        let size = Size(row.bytes);
        match Report::round_ratios(row, entry) {
            Some(Spread { lower_quartile, median, upper_quartile }) => {
                format!("{size} {median:.3} (half of them {lower_quartile:.3} to {upper_quartile:.3})")
            }
            None => format!("{size} -"),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn cell(showing: &Showing) -> String {
    match showing {
        Showing::Measured { summary, wrong: 0 } => us(summary.median_us),
        Showing::Measured { summary, .. } => format!("{}!", us(summary.median_us)),
        Showing::Unsupported { .. } => "-".to_string(),
    }
}

/// Microseconds with as many digits as mean something.
fn us(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.2}"),
        ..10_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn ratio(value: Option<f64>) -> String {
    match value {
        Some(value) if value < 100.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
        None => "-".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::report::Entry;
    use crate::bench::statistics::Summary;
    use crate::bench::task::{Recording, Task};
    use farandole_plan::{Dtype, ReduceOp};

    fn ran(median_us: f64, wrong: u64) -> Showing {
        let summary = Summary {
            iterations: 100,
            min_us: median_us,
            median_us,
            p90_us: median_us * 2.0,
            max_us: median_us * 10.0,
            round_medians_us: vec![],
        };
        Showing::Measured { summary, wrong }
    }

    fn report() -> Report {
        let entry = |word: &str| Entry { word: word.into(), product: format!("{word} 1.0"), twin: false };
        let lacking = Showing::Unsupported { why: "mpich has no bfloat16".into() };
        Report {
            machine: Machine { host: "box".into(), cores: 2, processor: "CPU".into(), kernel: "6.1".into(), load: 0.1 },
            ranks: 2,
            hosts: 1,
            busy_cores: 0,
            plane: None,
            task: Task {
                kind: Kind::Allreduce,
                bytes: 4,
                dtype: Dtype::BF16,
                op: ReduceOp::Sum,
                pace: Pace::Aligned,
                memory: Memory::Own,
                through: Through::Direct,
                tensors: 1,
                recording: Recording::On,
            },
            entries: vec![entry("farandole"), entry("openmpi"), entry("mpich")],
            rates: Some(Rates { copy_bytes_per_s: 1e10, add_bytes_per_s: Some(5e9) }),
            rows: vec![
                Row { bytes: 4, showings: vec![ran(1.5, 0), ran(3.0, 0), lacking.clone()], limit: Some(ran(0.5, 0)) },
                Row {
                    bytes: 64 << 20,
                    showings: vec![ran(20_000.0, 0), ran(31_017.0, 7), lacking],
                    limit: Some(ran(16_000.0, 0)),
                },
            ],
        }
    }

    #[test]
    fn columns_stand_under_their_names() {
        let report = report();
        let mut text = column_names(&report);
        for row in &report.rows {
            text += &line(&report, row);
        }
        let expected = [
            "     size  iters farandole       p90       max   algbw   busbw  wrong |     limit  times |   openmpi  ratio |     mpich  ratio |   best",
            "                        us        us        us    GB/s    GB/s        |        us  limit |        us        |        us        |  ratio",
            "      4 B    100      1.50      3.00     15.00   0.003   0.003      0 |      0.50   3.00 |      3.00   2.00 |         -      - |   2.00",
            "    64 MB    100     20000     40000    200000   3.355   3.355      0 |     16000   1.25 |    31017!   1.55 |         -      - |   1.55",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_heading_says_what_where_and_who() {
        let expected = "\
allreduce: 2 ranks, bfloat16, Sum, caller's own memory, direct, starts aligned
machine:  box, 2 cores, CPU, Linux 6.1
measured: farandole 1.0, openmpi 1.0, mpich 1.0
memory:   2 ranks together copy 10.0 GB/s and add (a += b) 5.0 GB/s
";
        assert_eq!(heading(&report()), expected);
    }

    #[test]
    fn twins_are_compared_round_by_round_and_are_never_the_best() {
        let mut report = report();
        report.entries[1].twin = true;
        for (row, round_medians_us) in report.rows.iter_mut().zip([[1.5, 1.6], [20_000.0, 30_000.0]]) {
            for (showing, times) in row.showings.iter_mut().zip([1.0, 0.99]) {
                if let Showing::Measured { summary, .. } = showing {
                    summary.round_medians_us = round_medians_us.map(|us| us * times).to_vec();
                }
            }
        }
        let text = footnotes(&report);
        let expected = "openmpi / farandole, round by round: 4 B 0.990 (half of them 0.990 to 0.990), 64 MB 0.990 (half of them 0.990 to 0.990).";
        assert!(text.contains(expected), "{text}");
        assert!(!column_names(&report).contains("best"));
        let told = report.to_json()["sizes"][0]["openmpi"]["round_ratios"]["median"].as_f64().unwrap();
        assert!((told - 0.99).abs() < 1e-9, "{told}");
    }

    #[test]
    fn footnotes_name_who_was_wrong_and_who_did_not_run() {
        let text = footnotes(&report());
        assert!(text.contains("WRONG RESULTS: openmpi gave 7 wrong elements."), "{text}");
        assert!(text.contains("- : mpich did not run: mpich has no bfloat16"), "{text}");
        assert!(text.contains("busbw = algbw x 1.000"), "{text}");
    }

    #[test]
    fn json_holds_every_contestant_at_every_size() {
        let json = report().to_json();
        assert_eq!(json["sizes"][1]["openmpi"]["wrong"], 7);
        assert_eq!(json["sizes"][1]["mpich"]["unsupported"], "mpich has no bfloat16");
        assert_eq!(json["sizes"][0]["farandole"]["median_us"], 1.5);
        assert_eq!(json["op"], "Sum");
    }
}
