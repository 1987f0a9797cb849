//! The script's own code: logging, metrics and whatever else lies between steps.

use super::super::{Analysis, Finding, HotSpot, Recommendation};
use super::Proposal;
use crate::history::Activity;
use crate::replay::Change;

/// Own code below this share of the time is usual, in percent.
const WORTH_CHANGING_PERCENT: f64 = 5.0;

/// Ranks that do something which the others do not, and all wait for them.
pub(super) fn of_some(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    if finding.responsible.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let (there_ns, elsewhere_ns) = analysis.mean_ns(&finding.responsible, Activity::Own);
    let (ranks, hot_spot) = (finding.responsible.clone(), hot_spot(finding));
    let recommendation = Recommendation::ReduceOwnCodeOf { ranks, there_ns, elsewhere_ns, hot_spot };
    Some(Proposal::gaining(recommendation, analysis.gain(&[Change::NoOwnCode])))
}

/// All ranks alike.
pub(super) fn of_all(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    if !finding.responsible.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let recommendation =
        Recommendation::ReduceOwnCode { lost_percent: finding.lost_percent, hot_spot: hot_spot(finding) };
    Some(Proposal::gaining(recommendation, analysis.gain(&[Change::NoOwnCode])))
}

fn hot_spot(finding: &Finding) -> Option<HotSpot> {
    finding.hot_spots.top().map(|(line, percent)| HotSpot { line: line.to_owned(), percent })
}
