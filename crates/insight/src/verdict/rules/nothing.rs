//! Losses that no rule has advice for, and the reason.
//!
//! Some of what communication costs is its price. The report says so, with the number that shows it, so that the reader
//! knows that there is nothing to look for.

use super::super::{Action, Case, Finding, Reason, Topic};
use super::WORTH_SAYING_PERCENT;
use crate::history::Activity;
use crate::loss::Cause;

/// Why there is no advice.
pub(super) fn to_gain(case: &Case<'_>, finding: &Finding) -> Action {
    if finding.without.is_some_and(|gain| gain.time_saved_percent < WORTH_SAYING_PERCENT) {
        return Action::Nothing(Reason::AnotherWait);
    }
    let traffic = case.traffic();
    let mean_bytes = traffic.bytes.checked_div(traffic.calls).unwrap_or(0);
    Action::Nothing(match &finding.topic {
        Topic::Cause(Cause::Agreement) => Reason::Agreement { mean_ns: mean_ns(case, "agreement") },
        Topic::Cause(Cause::Packing) => Reason::Packing { mean_ns: mean_ns(case, "packing"), mean_bytes },
        Topic::Cause(Cause::Transfer) => {
            let bus_gb_per_s = traffic.busbw_gb_per_s().filter(|_| traffic.bytes > 0);
            Reason::Transfer { mean_ns: mean_ns(case, "transfer"), mean_bytes, bus_gb_per_s }
        }
        Topic::Cause(Cause::Other) => other(case),
        Topic::Cause(Cause::Input) => Reason::Input,
        Topic::Cause(Cause::Own) => Reason::OwnCode,
        Topic::Cause(Cause::Checkpoint) => Reason::Checkpoint,
        Topic::Cause(Cause::Sequential(phase)) => Reason::Phase(phase.clone()),
        Topic::Cause(Cause::Late(_)) | Topic::LateByTurns => Reason::Lateness,
    })
}

/// The mean of a loss over the operations.
fn mean_ns(case: &Case<'_>, key: &str) -> u64 {
    let passages: u64 = case.history.operations.iter().map(|operation| operation.passages.len() as u64).sum();
    case.split.lost_ns(key) / passages.max(1)
}

fn other(case: &Case<'_>) -> Reason {
    let idle = |activity: Activity| matches!(activity, Activity::NotBegun | Activity::Ended);
    let lanes = case.history.ranks.iter().flat_map(|rank| &rank.lane);
    let ends_ns: u64 = lanes.filter(|stretch| idle(stretch.activity)).map(|stretch| stretch.ns()).sum();
    if 2 * ends_ns > case.split.lost_ns("other") { Reason::StartAndEnd } else { Reason::Unrecorded }
}
