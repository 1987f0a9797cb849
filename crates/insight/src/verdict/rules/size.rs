//! Too little work for so many ranks.

use super::super::{Case, Finding, Gain, percent_text};
use super::Saying;
use crate::replay::{Change, replayed_ns};

/// A job whose ranks together do less than this many ranks' work is hardly worth its ranks.
const HARDLY_WORTH: f64 = 1.5;

/// Batches are tried up to this many times as large: beyond that nothing is comparable any more.
const LARGEST_BATCH: u32 = 32;

/// What a doubling must bring at least, in percent of the time for each sample, to be worth it: less is past the knee.
const WORTH_DOUBLING_PERCENT: f64 = 5.0;

/// A larger batch is another optimisation problem.
const LARGER_BATCH: &str = "a larger batch changes what the model learns: scale the learning rate with a warm-up, and compare the loss \
                            by samples, not by iterations";

pub(super) fn too_small(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let size = case.history.size();
    let speedup = size as f64 * case.efficiencies.parallel;
    let exposed = case.split.percent(case.split.exposed_ns());
    if size < 2 || speedup >= HARDLY_WORTH || exposed < 50.0 || case.largest_part() != finding.topic.key() {
        return None;
    }
    let change = format!(
        "Or the model is too small to distribute on this network: {size} ranks do the work of {speedup:.1}, and {} of their time is communication. Train it on one \
         rank, or give each rank more work.",
        percent_text(exposed)
    );
    let alone = Gain::of(case.history.end_ns as f64, case.useful_ns() as f64);
    let saying = Saying::new(change, &["farandole run -np 1 …"]);
    Some(if alone.time_saved_percent > 0.0 { saying.gaining(alone) } else { saying })
}

pub(super) fn batch_knee(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
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
    let change = format!(
        "Give each rank {knee} times as many samples between two exchanges, if memory allows; beyond that a doubling brings less than \
         {WORTH_DOUBLING_PERCENT:.0} %. Without more memory the same comes from accumulating gradients."
    );
    let how = format!("hvd.DistributedOptimizer(…, backward_passes_per_step={knee})");
    Some(Saying::new(change, &[&how]).gaining(Gain::of(per_sample(1), per_sample(knee))).careful(LARGER_BATCH))
}
