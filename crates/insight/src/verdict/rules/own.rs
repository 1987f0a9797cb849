//! The script's own code: logging, metrics and whatever else lies between steps.

use super::super::{Action, Case, Finding, HotSpot};
use super::Proposal;
use crate::history::Activity;
use crate::replay::Change;

/// Own code below this share of the time is usual, in percent.
const WORTH_CHANGING_PERCENT: f64 = 5.0;

/// Ranks that do something which the others do not, and all wait for them.
pub(super) fn of_some(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    if finding.whose.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let (there_ns, elsewhere_ns) = case.mean_ns(&finding.whose, Activity::Own);
    let (ranks, hot_spot) = (finding.whose.clone(), hot_spot(finding));
    let action = Action::ReduceOwnCodeOf { ranks, there_ns, elsewhere_ns, hot_spot };
    Some(Proposal::gaining(action, case.gain(&[Change::NoOwnCode])))
}

/// All ranks alike.
pub(super) fn of_all(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    if !finding.whose.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let action = Action::ReduceOwnCode { lost_percent: finding.lost_percent, hot_spot: hot_spot(finding) };
    Some(Proposal::gaining(action, case.gain(&[Change::NoOwnCode])))
}

fn hot_spot(finding: &Finding) -> Option<HotSpot> {
    finding.places.foremost().map(|(line, percent)| HotSpot { line: line.to_owned(), percent })
}
