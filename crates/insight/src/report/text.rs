//! A verdict as text for a terminal.

use std::fmt::Write as _;

use crate::efficiency::{Efficiencies, Scaling};
use crate::loss::SplitRow;
use crate::report::generations;
use crate::report::wording::{Wording, wording};
use crate::verdict::{Advice, Devices, Finding, Gain, Verdict, percent_text, time_text};

/// Columns that a bar of a hundred percent takes.
const BAR_COLUMNS: u64 = 40;

/// Columns of a line; longer ones are broken.
const COLUMNS: usize = 100;

/// The whole report.
pub fn report(verdict: &Verdict) -> String {
    let mut text = String::new();
    let mut say = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    say(subject(verdict));
    say(String::new());
    if let Some(alarm) = alarm(verdict) {
        for line in wrapped(&format!("INCOMPLETE: {alarm}"), "", "") {
            say(line);
        }
        for gap in gaps(verdict) {
            wrapped(&gap, "  - ", "    ").into_iter().for_each(&mut say);
        }
        say(String::new());
    }
    generation_tables(verdict).into_iter().for_each(&mut say);
    for line in wrapped(&capitalised(&verdict.headline), "", "") {
        say(line);
    }
    split_table(verdict).into_iter().for_each(&mut say);
    device_table(verdict).into_iter().for_each(&mut say);
    efficiency_table(verdict).into_iter().for_each(&mut say);
    for (number, finding) in verdict.findings.iter().enumerate() {
        finding_text(number + 1, finding).into_iter().for_each(&mut say);
    }
    notes(verdict).into_iter().for_each(say);
    text
}

/// What became of an elastic job, before the part of it that is looked at.
fn generation_tables(verdict: &Verdict) -> Vec<String> {
    let Some(of) = &verdict.generations else { return Vec::new() };
    let mut lines = wrapped(&generations::sentence(of), "", "");
    lines.extend([String::new(), "Generations".to_owned()]);
    lines.extend(generations::lines(&generations::generations(of)));
    if let Some(recoveries) = generations::recoveries(of) {
        lines.extend([String::new(), "Recoveries".to_owned()]);
        lines.extend(generations::lines(&recoveries));
        lines.extend(wrapped(generations::RECOVERY_NOTE, "  ", "  "));
    }
    lines.push(String::new());
    lines.extend(wrapped(&generations::scope(of), "", ""));
    lines.push(String::new());
    lines
}

/// What the report is about.
pub fn subject(verdict: &Verdict) -> String {
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    format!(
        "{} on {}, {}, {} ({})",
        plural(verdict.size, "rank"),
        plural(verdict.hosts, "host"),
        if verdict.iterations == 0 {
            "no iterations marked".to_owned()
        } else {
            plural(verdict.iterations, "iteration")
        },
        time_text(verdict.end_ns),
        verdict.window
    )
}

/// What is to be said before anything else where recordings are missing.
pub fn alarm(verdict: &Verdict) -> Option<String> {
    let (recorded, size) = (verdict.recorded, verdict.size);
    if verdict.gaps.is_empty() {
        None
    } else if recorded < size {
        Some(format!(
            "this is what the traces of {recorded} of {size} ranks tell. Time that these spent waiting for the others shows as agreement, \
             transfer or other things, and which of the others is slow is not known."
        ))
    } else {
        Some("traces are cut off; the report ends where the first of them does.".to_owned())
    }
}

/// What is missing, rank by rank; of many the first.
pub fn gaps(verdict: &Verdict) -> Vec<String> {
    let mut lines: Vec<String> = verdict.gaps.iter().take(GAPS_NAMED).map(ToString::to_string).collect();
    if verdict.gaps.len() > GAPS_NAMED {
        lines.push(format!("And {} more.", verdict.gaps.len() - GAPS_NAMED));
    }
    lines
}

/// Ranks that are named when their recordings are missing: a job that was killed has as many as it has ranks.
const GAPS_NAMED: usize = 8;

/// What a reader should know about the recording.
pub fn notes(verdict: &Verdict) -> Vec<String> {
    let mut notes = Vec::new();
    if verdict.iterations == 0 {
        notes.push(
            "No iterations are marked, so that nothing can be said for each of them; a front end marks them, or the program does."
                .to_owned(),
        );
    }
    if verdict.dropped > 0 {
        notes.push(format!(
            "{} records were overwritten before they could be written: the report begins where all ranks are recorded.",
            verdict.dropped
        ));
    }
    if verdict.clock_error_ns > 0 {
        notes.push(format!("The clocks of two ranks may be {} apart.", time_text(verdict.clock_error_ns)));
    }
    notes
}

fn split_table(verdict: &Verdict) -> Vec<String> {
    let split = &verdict.split;
    let rows = split.rows();
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let mut lines = vec![String::new(), "Where the time of all ranks went".to_owned()];
    for SplitRow { name, tenths, .. } in rows {
        let bar = "█".repeat(usize::try_from((tenths * BAR_COLUMNS).div_ceil(1000)).unwrap_or(0));
        let pad = " ".repeat(width - name.chars().count());
        lines.push(format!("  {name}{pad}  {:>5.1} %  {bar}", tenths as f64 / 10.0).trim_end().to_owned());
    }
    if split.exposed_ns() + split.overlapped_ns > 0 {
        lines.push(format!(
            "  Communication: {} waited for, {} behind work (no loss).",
            percent_text(split.percent(split.exposed_ns())),
            percent_text(split.percent(split.overlapped_ns))
        ));
    }
    lines
}

fn device_table(verdict: &Verdict) -> Vec<String> {
    let devices = &verdict.devices;
    let mut lines = Vec::new();
    if !devices.ranks.is_empty() {
        lines.extend([String::new(), "GPUs                busy   communication      idle".to_owned()]);
        for of in devices.ranks.iter().take(DEVICES_SHOWN) {
            let [busy, communication, idle] =
                [of.busy_ns, of.communication_ns, of.idle_ns].map(|ns| format!("{:.1} %", of.percent(ns)));
            let name = format!("rank {}", of.rank);
            lines.push(format!("  {name:<12} {busy:>9}   {communication:>13} {idle:>9}"));
        }
        if devices.ranks.len() > DEVICES_SHOWN {
            lines.push(format!("  And {} more.", devices.ranks.len() - DEVICES_SHOWN));
        }
    }
    let notes = device_notes(devices);
    if lines.is_empty() && !notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(notes.iter().flat_map(|note| wrapped(note, "  ", "  ")));
    lines
}

/// Ranks whose devices have a line; the page has all.
const DEVICES_SHOWN: usize = 16;

/// What devices took for operations, and how often caches had what they were asked for.
pub fn device_notes(devices: &Devices) -> Vec<String> {
    let mut notes = Vec::new();
    let took = |place: usize| devices.ranks.iter().map(|of| of.steps_ns[place].1).sum::<u64>();
    if (0..3).any(|place| took(place) > 0) {
        notes.push(format!(
            "On the devices of all ranks, operations took {} for packing, {} for folding and {} for unpacking.",
            time_text(took(0)),
            time_text(took(1)),
            time_text(took(2))
        ));
    }
    for rate in &devices.caches {
        notes.push(format!(
            "Cache of {}: {} of {} lookups were hits.",
            rate.cache,
            percent_text(rate.hit_percent()),
            rate.hits + rate.misses
        ));
    }
    notes
}

fn efficiency_table(verdict: &Verdict) -> Vec<String> {
    let mut lines = vec![String::new(), "Efficiencies (POP model)".to_owned()];
    for ((name, value), depth) in verdict.efficiencies.named().into_iter().zip(Efficiencies::DEPTHS) {
        let label = format!("{}{}", "  ".repeat(depth), name.replace('-', " "));
        lines.push(format!("  {label:<32} {value:.3}"));
    }
    if let Some((scaling, against)) = &verdict.against {
        let kind = match scaling {
            Scaling::Strong => "strong",
            Scaling::Weak => "weak",
        };
        lines.push(format!("  Against the reference ({kind} scaling):"));
        lines.push(format!("  {:<32} {:.3}", "computation scaling", against.computation_scaling));
        lines.push(format!("  {:<32} {:.3}", "global efficiency", against.global));
        lines.push(format!("  {:<32} {:.2}×", "speed-up", against.speedup));
    }
    lines
}

fn finding_text(number: usize, finding: &Finding) -> Vec<String> {
    let title = format!("{number}. {} is lost to {}", percent_text(finding.lost_percent), finding.title);
    let mut lines = vec![String::new(), title];
    lines.extend(wrapped(&finding.sentences.join(" "), "   ", "   "));
    lines.extend(without_text(finding).map(|without| format!("   {without}")));
    for advice in &finding.advice {
        let Wording { change, how, caution } = wording(&advice.recommendation);
        lines.extend(wrapped(&change, "   → ", "     "));
        lines.extend(how.iter().map(|line| format!("         {line}")));
        lines.extend(gain_text(advice).map(|gain| format!("     {gain}")));
        if let Some(caution) = caution {
            lines.extend(wrapped(&format!("Careful: {caution}."), "     ", "     "));
        }
    }
    lines
}

/// What an advice would bring, in a sentence.
pub fn gain_text(advice: &Advice) -> Option<String> {
    advice.gain.map(|gain| format!("Gain: {}.", less(&gain)))
}

/// What it would bring if a loss were gone, in a sentence.
pub fn without_text(finding: &Finding) -> Option<String> {
    finding.without.map(|gain| format!("Without it: {}.", less(&gain)))
}

fn less(gain: &Gain) -> String {
    if gain.time_saved_percent < 0.05 {
        return "no less time, because something else would take its place".to_owned();
    }
    format!("{} less time, {:.2}× as fast", percent_text(gain.time_saved_percent), gain.speedup)
}

/// A sentence that begins as one.
pub fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + rest.as_str()) + "."
}

/// Breaks a text into lines, the first of which begins otherwise than the others.
fn wrapped(text: &str, first: &str, others: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = first.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut line, others.to_owned()));
            empty = true;
        }
        let gap = if empty { "" } else { " " };
        let _ = write!(line, "{gap}{word}");
        empty = false;
    }
    if !empty {
        lines.push(line);
    }
    lines
}
