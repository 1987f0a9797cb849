//! Numbers and evidence in plain sentences.

use super::{Analysis, Devices, Finding, HEADLINE_LOSSES, Topic};
use crate::efficiency::Efficiencies;
use crate::history::{Activity, History, HotSpots};
use crate::loss::{Evidence, LossCause, ranks_text};

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
        .map(|finding| format!("{} to {}", percent_text(finding.lost_percent), finding.title))
        .collect();
    match lost.split_last() {
        None => format!("{reached}: nothing to speak of is lost"),
        Some((only, [])) => format!("{reached}: you lose {only}"),
        Some((last, others)) => format!("{reached}: you lose {} and {last}", others.join(", ")),
    }
}

/// A phase that has more than half of what a rank takes longer.
pub(super) fn top(longer_in: &[(Option<String>, u64)]) -> Option<String> {
    let whole_ns: u64 = longer_in.iter().map(|(_, ns)| ns).sum();
    let (phase, ns) = longer_in.first()?;
    phase.clone().filter(|_| 2 * ns > whole_ns)
}

/// To what time is lost, and where that is.
pub(super) fn title(name: &str, phase: Option<&str>, hot_spots: &HotSpots) -> String {
    match (phase, hot_spots.top()) {
        (Some(phase), _) => format!("{name}, in “{phase}”"),
        (None, Some((place, share))) if share > MOST_PERCENT => format!("{name} (most of it at {place})"),
        _ => name.to_owned(),
    }
}

/// What is more than this share is most of it, in percent.
const MOST_PERCENT: f64 = 50.0;

/// When and where a loss was seen, and the responsible ranks.
pub(super) fn sentences(
    analysis: &Analysis<'_>,
    topic: &Topic,
    responsible: &[usize],
    evidence: &Evidence,
    longer_in: &[(Option<String>, u64)],
    hot_spots: &HotSpots,
) -> Vec<String> {
    let mut sentences = self::evidence(analysis.history, evidence, responsible);
    let activity = match topic {
        Topic::Cause(LossCause::Input) => Activity::Input,
        Topic::Cause(LossCause::Own) => Activity::Own,
        _ => Activity::Checkpoint,
    };
    if !responsible.is_empty() {
        let (there_ns, elsewhere_ns) = analysis.mean_ns(responsible, activity);
        let (there, average) = if responsible.len() == 1 { ("", "") } else { (" there", " on average") };
        sentences.push(format!(
            "It is the doing of {}: {}{there}{average}, and {} on average on the others, which lose the rest by waiting.",
            ranks_text(responsible),
            time_text(there_ns),
            time_text(elsewhere_ns)
        ));
    }
    if *topic == Topic::Cause(LossCause::Input) {
        sentences.extend(hidden_text(&Devices::of(analysis.history)));
    }
    sentences.extend(phases_text(longer_in));
    sentences.extend(places_text(hot_spots));
    sentences
}

/// What is not lost to input, because devices had work meanwhile.
fn hidden_text(devices: &Devices) -> Option<String> {
    let all = if devices.ranks.len() == 1 { "its GPU" } else { "the GPUs" };
    match devices.hidden_input_ns() {
        _ if devices.ranks.is_empty() => None,
        0 => Some(format!("Meanwhile {all} had nothing to do.")),
        ns => {
            Some(format!("Meanwhile {all} had nothing to do; {} more lay behind work and cost nothing.", time_text(ns)))
        }
    }
}

/// In which phases a late rank takes longer.
fn phases_text(longer_in: &[(Option<String>, u64)]) -> Option<String> {
    let whole_ns: u64 = longer_in.iter().map(|(_, ns)| ns).sum();
    let share = |ns: u64| 100.0 * ns as f64 / whole_ns.max(1) as f64;
    let named: Vec<String> = longer_in
        .iter()
        .take(PLACES_NAMED)
        .filter(|(_, ns)| share(*ns) >= WORTH_NAMING_PERCENT)
        .filter_map(|(phase, ns)| Some(format!("{} in “{}”", percent_text(share(*ns)), phase.as_ref()?)))
        .collect();
    (!named.is_empty()).then(|| format!("Of what it takes longer than the others, {} is spent.", named.join(", ")))
}

/// Where own code was seen.
fn places_text(hot_spots: &HotSpots) -> Option<String> {
    let shares: Vec<String> = hot_spots
        .shares()
        .take(PLACES_NAMED)
        .filter(|(_, share)| *share >= WORTH_NAMING_PERCENT)
        .map(|(place, share)| format!("{place} ({})", percent_text(share)))
        .collect();
    (!shares.is_empty()).then(|| format!("Where it was in {} samples: {}.", hot_spots.samples, shares.join(", ")))
}

/// Phases and places that a sentence names.
const PLACES_NAMED: usize = 3;

/// What has less than this share is not named, in percent.
const WORTH_NAMING_PERCENT: f64 = 5.0;

/// When a loss was seen and, if no ranks are responsible, on which ranks.
fn evidence(history: &History, evidence: &Evidence, responsible: &[usize]) -> Vec<String> {
    let mut sentences = Vec::new();
    if evidence.iterations > 0 {
        sentences.push(format!(
            "In {} of {} iterations.",
            evidence.iterations_hit.min(evidence.iterations),
            evidence.iterations
        ));
    }
    let ranks = evidence.ranks();
    if history.size() > 1 && !ranks.is_empty() && responsible.is_empty() {
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
