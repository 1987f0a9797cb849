//! Losses that no rule has advice for, and the reason.
//!
//! Some of what communication costs is its price. The report says so, with the number that shows it, so that the reader
//! knows that there is nothing to look for.

use super::super::{Analysis, Finding, Reason, Recommendation, Topic};
use super::WORTH_SAYING_PERCENT;
use crate::history::Activity;
use crate::loss::LossCause;

/// Why there is no advice.
pub(super) fn to_gain(analysis: &Analysis<'_>, finding: &Finding) -> Recommendation {
    if finding.without.is_some_and(|gain| gain.time_saved_percent < WORTH_SAYING_PERCENT) {
        return Recommendation::Nothing(Reason::AnotherWait);
    }
    let traffic = analysis.traffic();
    let mean_bytes = traffic.bytes.checked_div(traffic.calls).unwrap_or(0);
    Recommendation::Nothing(match &finding.topic {
        Topic::Cause(LossCause::Agreement) => Reason::Agreement { mean_ns: mean_ns(analysis, "agreement") },
        Topic::Cause(LossCause::Packing) => Reason::Packing { mean_ns: mean_ns(analysis, "packing"), mean_bytes },
        Topic::Cause(LossCause::Transfer) => {
            let bus_gb_per_s = traffic.busbw_gb_per_s().filter(|_| traffic.bytes > 0);
            Reason::Transfer { mean_ns: mean_ns(analysis, "transfer"), mean_bytes, bus_gb_per_s }
        }
        Topic::Cause(LossCause::Other) => other(analysis),
        Topic::Cause(LossCause::Input) => Reason::Input,
        Topic::Cause(LossCause::Own) => Reason::OwnCode,
        Topic::Cause(LossCause::Checkpoint) => Reason::Checkpoint,
        Topic::Cause(LossCause::Sequential(phase)) => Reason::Phase(phase.clone()),
        Topic::Cause(LossCause::Late(_)) | Topic::LateByTurns => Reason::Lateness,
    })
}

/// The mean of a loss over the operations.
fn mean_ns(analysis: &Analysis<'_>, key: &str) -> u64 {
    let passages: u64 = analysis.history.operations.iter().map(|operation| operation.passages.len() as u64).sum();
    analysis.split.lost_ns(key) / passages.max(1)
}

fn other(analysis: &Analysis<'_>) -> Reason {
    let idle = |activity: Activity| matches!(activity, Activity::NotBegun | Activity::Ended);
    let lanes = analysis.history.ranks.iter().flat_map(|rank| &rank.lane);
    let ends_ns: u64 = lanes.filter(|stretch| idle(stretch.activity)).map(|stretch| stretch.ns()).sum();
    if 2 * ends_ns > analysis.split.lost_ns("other") { Reason::StartAndEnd } else { Reason::Unrecorded }
}
