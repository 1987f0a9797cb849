//! Ranks that wait for their next batch. Where some wait far longer than the others, the loader is good enough, and
//! something is wrong with theirs.

use super::super::{Case, Finding, time_text};
use super::Saying;
use crate::history::Activity;
use crate::loss::ranks_text;
use crate::replay::Change;

/// Share of the time from which on faster reading alone is unlikely to do, in percent: work must be taken out of the
/// pipeline.
const PIPELINE_TOO_SLOW_PERCENT: f64 = 20.0;

pub(super) fn starving_rank(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let first = *finding.whose.first()?;
    let (there_ns, elsewhere_ns) = case.mean_ns(&finding.whose, Activity::Input);
    let (ranks, host) = (ranks_text(&finding.whose), case.history.ranks[first].host_name());
    let change = match finding.whose.len() {
        1 => format!(
            "Only {ranks} on {host} waits so long for input ({} against {} on average), and all wait for it: look at its storage, at its part of \
             the data and at what else runs on its host.",
            time_text(there_ns),
            time_text(elsewhere_ns)
        ),
        _ => format!(
            "Only {ranks} wait so long for input ({} on average against {}), and all wait for them: look at their storage, at their part of the \
             data and at what else runs on their hosts.",
            time_text(there_ns),
            time_text(elsewhere_ns)
        ),
    };
    Some(Saying::new(change, &[&case.doctor(first)]).gaining(case.gain(&[Change::NoInputWait])))
}

pub(super) fn loader_workers(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if !finding.whose.is_empty() {
        return None;
    }
    let useful = case.useful_ns().max(1) as f64;
    let input: u64 = (0..case.history.size()).map(|rank| case.input_ns(rank)).sum();
    let more = ((useful + input as f64) / useful).ceil().clamp(2.0, 16.0);
    let change = format!(
        "Give every rank more loader workers and let them run ahead: about {more:.0} times as many keep up with the work, \
         if there are cores for them."
    );
    let how = [
        "torch:      DataLoader(…, num_workers=N, prefetch_factor=4, persistent_workers=True, pin_memory=True)",
        "tensorflow: dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)",
    ];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::NoInputWait])))
}

pub(super) fn preprocess_offline(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if finding.lost_percent < PIPELINE_TOO_SLOW_PERCENT || !finding.whose.is_empty() {
        return None;
    }
    let change = "Preprocess once and offline what does not change from epoch to epoch (decoding, resizing, upsampling), and leave only \
                  random augmentation to the loader.";
    Some(Saying::new(change, &[]).gaining(case.gain(&[Change::NoInputWait])))
}

pub(super) fn record_format(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if finding.lost_percent < PIPELINE_TOO_SLOW_PERCENT || !finding.whose.is_empty() {
        return None;
    }
    let change = "Read few large files instead of many small ones: a record format, sharded so that each rank reads its own part, \
                  on storage of the host itself if there is room.";
    let how = ["TFRecord, WebDataset or Parquet; one shard or more for each rank: shards[rank::size]"];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::NoInputWait])))
}
