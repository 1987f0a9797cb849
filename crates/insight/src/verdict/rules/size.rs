//! Too little work for so many ranks.

use super::super::{Analysis, Finding, Gain, Recommendation};
use super::Proposal;
use crate::replay::{Change, replayed_ns};

/// A job whose ranks together do less than this many ranks' work is hardly worth its ranks.
const HARDLY_WORTH: f64 = 1.5;

/// Batches are tried up to this many times as large: beyond that nothing is comparable any more.
const LARGEST_BATCH: u32 = 32;

/// What a doubling must bring at least, in percent of the time for each sample, to be worth it: less is past the knee.
const WORTH_DOUBLING_PERCENT: f64 = 5.0;

pub(super) fn too_small(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let ranks = analysis.history.size();
    let speedup = ranks as f64 * analysis.efficiencies.parallel;
    let exposed_percent = analysis.split.percent(analysis.split.exposed_ns());
    if ranks < 2 || speedup >= HARDLY_WORTH || exposed_percent < 50.0 || analysis.largest_part() != finding.topic.key()
    {
        return None;
    }
    let alone = Gain::of(analysis.history.end_ns as f64, analysis.useful_ns() as f64);
    let gain = Some(alone).filter(|gain| gain.time_saved_percent > 0.0);
    Some(Proposal { recommendation: Recommendation::UseOneRank { ranks, speedup, exposed_percent }, gain })
}

pub(super) fn batch_knee(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    if analysis.largest_part() != finding.topic.key() {
        return None;
    }
    let per_sample =
        |factor: u32| replayed_ns(analysis.history, &[Change::Larger(factor.into())]) as f64 / f64::from(factor);
    let mut knee = 1;
    while knee < LARGEST_BATCH
        && Gain::of(per_sample(knee), per_sample(2 * knee)).time_saved_percent >= WORTH_DOUBLING_PERCENT
    {
        knee *= 2;
    }
    if knee == 1 {
        return None;
    }
    let recommendation = Recommendation::RaiseBatch { factor: knee, doubling_saves_percent: WORTH_DOUBLING_PERCENT };
    Some(Proposal::gaining(recommendation, Gain::of(per_sample(1), per_sample(knee))))
}
