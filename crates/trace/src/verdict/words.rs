//! Numbers and evidence in plain sentences.

use super::{Finding, HEADLINE_LOSSES};
use crate::efficiency::Efficiencies;
use crate::history::History;
use crate::loss::Evidence;

/// A time as people say it.
pub fn time_text(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// A share: whole percents, and a decimal where that would be little.
pub fn percent_text(percent: f64) -> String {
    if percent.abs() < 9.95 && (percent - percent.round()).abs() >= 0.05 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// All in one sentence.
pub(super) fn headline(history: &History, efficiencies: &Efficiencies, findings: &[Finding]) -> String {
    let percent = percent_text(100.0 * efficiencies.parallel);
    let size = history.size();
    let reached = match size {
        _ if history.recorded_size() < size => {
            let recorded = history.recorded_size();
            format!("as far as {recorded} of {size} ranks tell, you get {percent} of {size}×")
        }
        1 => format!("one rank works {percent} of its time"),
        _ => format!("at {size} ranks you get {percent} of {size}×"),
    };
    let lost: Vec<String> = findings
        .iter()
        .take(HEADLINE_LOSSES)
        .map(|finding| format!("{} to {}", percent_text(finding.lost_percent), finding.topic))
        .collect();
    match lost.split_last() {
        None => format!("{reached}: nothing to speak of is lost"),
        Some((only, [])) => format!("{reached}: you lose {only}"),
        Some((last, others)) => format!("{reached}: you lose {} and {last}", others.join(", ")),
    }
}

/// When and where a loss was seen.
pub(super) fn evidence(history: &History, evidence: &Evidence) -> Vec<String> {
    let mut sentences = Vec::new();
    if evidence.iterations > 0 {
        sentences.push(format!(
            "In {} of {} iterations.",
            evidence.iterations_hit.min(evidence.iterations),
            evidence.iterations
        ));
    }
    let ranks = evidence.ranks();
    if history.size() > 1 && !ranks.is_empty() {
        let most = evidence.by_rank_ns[ranks[0]];
        let least = history.recorded().map(|rank| evidence.by_rank_ns[rank]).min().unwrap_or(0);
        let named: Vec<String> = ranks.iter().take(RANKS_NAMED).map(usize::to_string).collect();
        let more = if ranks.len() > RANKS_NAMED { ", …" } else { "" };
        sentences.push(if ranks.len() == history.recorded_size() && least * 10 > most * 9 {
            format!("All ranks lose alike, {} each.", time_text(most))
        } else if ranks.len() == 1 {
            format!("Rank {} loses {}.", ranks[0], time_text(most))
        } else {
            format!("Ranks {}{more} lose time, most of all rank {}: {}.", named.join(", "), ranks[0], time_text(most))
        });
    }
    if let Some(longest) = evidence.longest.first() {
        let iteration = longest.iteration.map_or(String::new(), |number| format!(", in iteration {number}"));
        sentences.push(format!(
            "{}: {} on rank {} from {:.3} s to {:.3} s{iteration}.",
            if evidence.intervals == 1 {
                "Once".to_owned()
            } else {
                format!("The longest of {} intervals", evidence.intervals)
            },
            time_text(longest.to_ns - longest.from_ns),
            longest.rank,
            longest.from_ns as f64 / 1e9,
            longest.to_ns as f64 / 1e9,
        ));
    }
    sentences
}

/// Ranks that a sentence names; more would hide the first.
const RANKS_NAMED: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_short() {
        let times: Vec<String> = [900, 25_000, 2_500_000, 25_000_000, 2_500_000_000].map(time_text).to_vec();
        assert_eq!(times, ["0.9 µs", "25 µs", "2.50 ms", "25.0 ms", "2.50 s"]);
        assert_eq!([27.3, 3.25, 9.0, 0.0].map(percent_text), ["27 %", "3.2 %", "9 %", "0 %"]);
    }
}
