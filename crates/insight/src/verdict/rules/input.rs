//! Ranks that wait for their next batch. Where some wait far longer than the others, the loader is good enough, and
//! something is wrong with theirs.

use super::super::{Action, Case, Finding};
use super::Proposal;
use crate::history::Activity;
use crate::replay::Change;

/// Share of the time from which on faster reading alone is unlikely to do, in percent: work must be taken out of the
/// pipeline.
const PIPELINE_TOO_SLOW_PERCENT: f64 = 20.0;

fn proposal(case: &Case<'_>, action: Action) -> Proposal {
    Proposal::gaining(action, case.gain(&[Change::NoInputWait]))
}

/// Whether all ranks wait, and long.
fn pipeline_too_slow(finding: &Finding) -> bool {
    finding.lost_percent >= PIPELINE_TOO_SLOW_PERCENT && finding.whose.is_empty()
}

pub(super) fn starving_rank(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    let location = case.location(*finding.whose.first()?);
    let (there_ns, elsewhere_ns) = case.mean_ns(&finding.whose, Activity::Input);
    Some(proposal(case, Action::ExamineInput { ranks: finding.whose.clone(), location, there_ns, elsewhere_ns }))
}

pub(super) fn loader_workers(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    if !finding.whose.is_empty() {
        return None;
    }
    let useful = case.useful_ns().max(1) as f64;
    let input: u64 = (0..case.history.size()).map(|rank| case.input_ns(rank)).sum();
    let factor = ((useful + input as f64) / useful).ceil().clamp(2.0, 16.0);
    Some(proposal(case, Action::RaiseLoaderWorkers { factor }))
}

pub(super) fn preprocess_offline(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    pipeline_too_slow(finding).then(|| proposal(case, Action::PreprocessOffline))
}

pub(super) fn record_format(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    pipeline_too_slow(finding).then(|| proposal(case, Action::UseRecordFormat))
}
