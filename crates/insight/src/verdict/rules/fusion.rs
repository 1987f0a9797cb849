//! How tensors are put together in buckets.
//!
//! An operation of `b` bytes takes about `start-up + b / bandwidth`. What its start-up is can be seen in the smallest
//! messages.

use super::super::{Case, Finding};
use super::Saying;
use crate::profile::size_text;
use crate::replay::Change;

/// Messages up to this size are nearly all start-up on any network that training runs on.
const SMALL_BYTES: u64 = 128 << 10;

/// From this many operations in an iteration on, fewer would be felt.
const MANY: f64 = 8.0;

/// An iteration with no more operations than this has nothing that could travel while the rest is computed.
const FEW: f64 = 2.0;

/// Share of the communication that lies behind work, below which there is no overlap to speak of.
const HARDLY_OVERLAPPED: f64 = 0.2;

/// Into how many buckets the smaller threshold divides an iteration's gradients: the first three can travel behind
/// work.
const PIECES: u64 = 4;

/// Buckets smaller than this are mostly start-up; no advice goes below.
const LEAST_THRESHOLD_BYTES: u64 = 1 << 20;

/// What the default threshold is, where the trace does not say.
const DEFAULT_THRESHOLD_BYTES: u64 = 64 << 20;

pub(super) fn replay_off(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    (case.setting("replay") == Some(0) && case.largest_part() == finding.topic.key()).then(|| {
        let change = "Ranks talk about every request because learned orders are switched off: switch them on.";
        let how = ["farandole run --cache-capacity 1024 …; or unset FARANDOLE_REPLAY and HOROVOD_CACHE_CAPACITY"];
        Saying::new(change, &how).gaining(case.gain(&[Change::NoAgreement]))
    })
}

pub(super) fn larger(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let traffic = case.traffic();
    let operations = case.operations_per_iteration();
    if case.largest_part() != finding.topic.key()
        || traffic.calls == 0
        || operations < MANY
        || traffic.bytes / traffic.calls > SMALL_BYTES
    {
        return None;
    }
    let threshold_bytes = case.setting("fusion_threshold_bytes").unwrap_or(DEFAULT_THRESHOLD_BYTES);
    let bytes = traffic.bytes as f64 / case.iterations();
    let small_ns = case.messages.bins[0].ns as f64 / case.messages.bins[0].calls.max(1) as f64;
    let start_up = (small_ns * traffic.calls as f64).min(traffic.ns as f64);
    let wanted_bytes = (bytes as u64).next_power_of_two().max(DEFAULT_THRESHOLD_BYTES);
    let left = (traffic.ns as f64 - start_up * (1.0 - 1.0 / operations)) / traffic.ns.max(1) as f64;
    let gain = case.gain(&[Change::NoAgreement, Change::Transfer(left.clamp(0.0, 1.0))]);
    let small = format!(
        "{operations:.0} operations in each iteration carry {} on average, and most of their time is start-up",
        size_text(traffic.bytes / traffic.calls)
    );
    let saying = if threshold_bytes < wanted_bytes && threshold_bytes < DEFAULT_THRESHOLD_BYTES {
        let megabytes = wanted_bytes >> 20;
        Saying::new(
            format!("{small}: let more tensors travel together, with a fusion buffer of {megabytes} MB."),
            &[&format!(
                "farandole run --fusion-threshold-mb {megabytes} …; or FARANDOLE_FUSION_THRESHOLD={wanted_bytes}"
            )],
        )
    } else {
        Saying::new(
            format!(
                "{small}: they come one by one, so that nothing can travel together. Submit all of them before waiting for the first."
            ),
            &[
                "torch: handles = [hvd.allreduce_async_(t, name=n) for n, t in tensors]; [hvd.synchronize(h) for h in handles]",
                "       or hvd.grouped_allreduce_(list of tensors)",
            ],
        )
    };
    Some(saying.gaining(gain))
}

pub(super) fn smaller(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let traffic = case.traffic();
    let (exposed, overlapped) = (case.split.exposed_ns() as f64, case.split.overlapped_ns as f64);
    let bytes = (traffic.bytes as f64 / case.iterations()) as u64;
    let few = case.operations_per_iteration() <= FEW && case.history.iterations() > 0;
    let many_tensors = case.history.operations.iter().any(|operation| operation.tensor_bytes.len() as u64 >= PIECES);
    if case.largest_part() != finding.topic.key()
        || !few
        || !many_tensors
        || bytes < PIECES * LEAST_THRESHOLD_BYTES
        || overlapped > HARDLY_OVERLAPPED * (exposed + overlapped)
    {
        return None;
    }
    let megabytes = (bytes / PIECES).div_ceil(1 << 20);
    let change = format!(
        "All gradients travel in one piece of {} when the last is there: smaller buckets of {megabytes} MB let the first ones travel while the rest is \
         computed.",
        size_text(bytes)
    );
    let how =
        format!("farandole run --fusion-threshold-mb {megabytes} …; or FARANDOLE_FUSION_THRESHOLD={}", megabytes << 20);
    Some(Saying::new(change, &[&how]).gaining(case.gain(&[Change::Transfer(1.0 / PIECES as f64)])))
}
