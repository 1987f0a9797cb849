//! Too little work for so many ranks.

use super::super::{Action, Case, Finding, Gain};
use super::Proposal;
use crate::replay::{Change, replayed_ns};

/// A job whose ranks together do less than this many ranks' work is hardly worth its ranks.
const HARDLY_WORTH: f64 = 1.5;

/// Batches are tried up to this many times as large: beyond that nothing is comparable any more.
const LARGEST_BATCH: u32 = 32;

/// What a doubling must bring at least, in percent of the time for each sample, to be worth it: less is past the knee.
const WORTH_DOUBLING_PERCENT: f64 = 5.0;

pub(super) fn too_small(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    let ranks = case.history.size();
    let speedup = ranks as f64 * case.efficiencies.parallel;
    let exposed_percent = case.split.percent(case.split.exposed_ns());
    if ranks < 2 || speedup >= HARDLY_WORTH || exposed_percent < 50.0 || case.largest_part() != finding.topic.key() {
        return None;
    }
    let alone = Gain::of(case.history.end_ns as f64, case.useful_ns() as f64);
    let gain = Some(alone).filter(|gain| gain.time_saved_percent > 0.0);
    Some(Proposal { action: Action::UseOneRank { ranks, speedup, exposed_percent }, gain })
}

pub(super) fn batch_knee(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    if case.largest_part() != finding.topic.key() {
        return None;
    }
    let per_sample =
        |factor: u32| replayed_ns(case.history, &[Change::Larger(factor.into())]) as f64 / f64::from(factor);
    let mut knee = 1;
    while knee < LARGEST_BATCH
        && Gain::of(per_sample(knee), per_sample(2 * knee)).time_saved_percent >= WORTH_DOUBLING_PERCENT
    {
        knee *= 2;
    }
    if knee == 1 {
        return None;
    }
    let action = Action::RaiseBatch { factor: knee, doubling_saves_percent: WORTH_DOUBLING_PERCENT };
    Some(Proposal::gaining(action, Gain::of(per_sample(1), per_sample(knee))))
}
