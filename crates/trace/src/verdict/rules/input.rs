//! Ranks that wait for their next batch.

use super::super::{Case, Finding, time_text};
use super::Saying;
use crate::replay::Change;

/// How much longer than the others' mean a rank must starve for its own input to be the matter.
const STARVES_ALONE: f64 = 1.5;

/// Share of the time from which on faster reading alone is unlikely to do, in percent: work must be taken out of the pipeline.
const PIPELINE_TOO_SLOW_PERCENT: f64 = 20.0;

pub(super) fn starving_rank(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    let size = case.history.recorded_size();
    if size < 2 {
        return None;
    }
    let waits: Vec<u64> = (0..case.history.size()).map(|rank| case.input_ns(rank)).collect();
    let worst = case.history.recorded().max_by_key(|&rank| (waits[rank], std::cmp::Reverse(rank)))?;
    let others = (waits.iter().sum::<u64>() - waits[worst]) as f64 / (size - 1) as f64;
    if (waits[worst] as f64) < STARVES_ALONE * others.max(1.0) {
        return None;
    }
    let host = case.history.ranks[worst].host_name();
    let change = format!(
        "Rank {worst} on {host} waits for input much longer than the others ({} against {} on average), and all wait for it: \
         look at its storage and at what else runs on its host.",
        time_text(waits[worst]),
        time_text(others as u64)
    );
    Some(Saying::new(change, &[&case.doctor(worst)]).gaining(case.gain(&[Change::NoInputWait])))
}

pub(super) fn loader_workers(case: &Case<'_>, _: &Finding) -> Option<Saying> {
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
    if finding.lost_percent < PIPELINE_TOO_SLOW_PERCENT {
        return None;
    }
    let change = "Preprocess once and offline what does not change from epoch to epoch (decoding, resizing, upsampling), and leave only \
                  random augmentation to the loader.";
    Some(Saying::new(change, &[]).gaining(case.gain(&[Change::NoInputWait])))
}

pub(super) fn record_format(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if finding.lost_percent < PIPELINE_TOO_SLOW_PERCENT {
        return None;
    }
    let change = "Read few large files instead of many small ones: a record format, sharded so that each rank reads its own part, \
                  on storage of the host itself if there is room.";
    let how = ["TFRecord, WebDataset or Parquet; one shard or more for each rank: shards[rank::size]"];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::NoInputWait])))
}
