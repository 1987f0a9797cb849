//! Ranks that wait for their next batch. Where some wait far longer than the others, the loader is good enough, and
//! something is wrong with theirs.

use super::super::{Analysis, Finding, InputNeeds, Recommendation};
use super::Proposal;
use crate::history::Activity;
use crate::replay::Change;

/// Share of the time from which on faster reading alone is unlikely to do, in percent: work must be taken out of the
/// pipeline.
const PIPELINE_TOO_SLOW_PERCENT: f64 = 20.0;

/// A stage that takes more than this of a worker's time is what limits.
const MOST_PERCENT: f64 = 50.0;

fn proposal(analysis: &Analysis<'_>, recommendation: Recommendation) -> Proposal {
    Proposal::gaining(recommendation, analysis.gain(&[Change::NoInputWait]))
}

/// Whether all ranks wait, and long.
fn pipeline_too_slow(finding: &Finding) -> bool {
    finding.lost_percent >= PIPELINE_TOO_SLOW_PERCENT && finding.responsible.is_empty()
}

pub(super) fn starving_rank(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let location = analysis.location(*finding.responsible.first()?);
    let (there_ns, elsewhere_ns) = analysis.mean_ns(&finding.responsible, Activity::Input);
    Some(proposal(
        analysis,
        Recommendation::ExamineInput { ranks: finding.responsible.clone(), location, there_ns, elsewhere_ns },
    ))
}

pub(super) fn loader_workers(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    if !finding.responsible.is_empty() {
        return None;
    }
    if let Some(needs) = InputNeeds::of(analysis.history) {
        // Workers that make enough are not what is waited for: the first batches, or a disturbance, are.
        let feeds = needs.fed_per_s < needs.taken_per_s;
        return feeds.then(|| proposal(analysis, Recommendation::FeedSamples(needs)));
    }
    let useful = analysis.useful_ns().max(1) as f64;
    let input: u64 = (0..analysis.history.size()).map(|rank| analysis.input_ns(rank)).sum();
    let factor = ((useful + input as f64) / useful).ceil().clamp(2.0, 16.0);
    Some(proposal(analysis, Recommendation::RaiseLoaderWorkers { factor }))
}

pub(super) fn preprocess_offline(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    // Where the loader's figures are known, they say more.
    let unknown = InputNeeds::of(analysis.history).is_none();
    (unknown && pipeline_too_slow(finding)).then(|| proposal(analysis, Recommendation::PreprocessOffline))
}

pub(super) fn record_format(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let reading = InputNeeds::of(analysis.history).is_none_or(|needs| needs.percent_by_stage[0] > MOST_PERCENT);
    (reading && pipeline_too_slow(finding)).then(|| proposal(analysis, Recommendation::UseRecordFormat))
}
