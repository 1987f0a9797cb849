//! How tensors are put together in buckets.
//!
//! An operation of `b` bytes takes about `start-up + b / bandwidth`. What its start-up is can be seen in the smallest
//! messages.

use super::super::{Analysis, Finding, Recommendation};
use super::Proposal;
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

pub(super) fn replay_off(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    (analysis.setting("replay") == Some(0) && analysis.largest_part() == finding.topic.key())
        .then(|| Proposal::gaining(Recommendation::EnableOrderReplay, analysis.gain(&[Change::NoAgreement])))
}

pub(super) fn larger(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let traffic = analysis.traffic();
    let operations_per_iteration = analysis.operations_per_iteration();
    if analysis.largest_part() != finding.topic.key()
        || traffic.calls == 0
        || operations_per_iteration < MANY
        || traffic.bytes / traffic.calls > SMALL_BYTES
    {
        return None;
    }
    let mean_bytes = traffic.bytes / traffic.calls;
    let threshold_bytes = analysis.setting("fusion_threshold_bytes").unwrap_or(DEFAULT_THRESHOLD_BYTES);
    let bytes = traffic.bytes as f64 / analysis.iterations();
    let small_ns = analysis.messages.bins[0].ns as f64 / analysis.messages.bins[0].calls.max(1) as f64;
    let start_up = (small_ns * traffic.calls as f64).min(traffic.ns as f64);
    let wanted_bytes = (bytes as u64).next_power_of_two().max(DEFAULT_THRESHOLD_BYTES);
    let left = (traffic.ns as f64 - start_up * (1.0 - 1.0 / operations_per_iteration)) / traffic.ns.max(1) as f64;
    let gain = analysis.gain(&[Change::NoAgreement, Change::Transfer(left.clamp(0.0, 1.0))]);
    let recommendation = if threshold_bytes < wanted_bytes && threshold_bytes < DEFAULT_THRESHOLD_BYTES {
        Recommendation::RaiseFusionThreshold { operations_per_iteration, mean_bytes, threshold_bytes: wanted_bytes }
    } else {
        Recommendation::SubmitTogether { operations_per_iteration, mean_bytes }
    };
    Some(Proposal::gaining(recommendation, gain))
}

pub(super) fn smaller(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let traffic = analysis.traffic();
    let (exposed, overlapped) = (analysis.split.exposed_ns() as f64, analysis.split.overlapped_ns as f64);
    let bytes = (traffic.bytes as f64 / analysis.iterations()) as u64;
    let few = analysis.operations_per_iteration() <= FEW && analysis.history.iterations() > 0;
    let many_tensors =
        analysis.history.operations.iter().any(|operation| operation.tensor_bytes.len() as u64 >= PIECES);
    if analysis.largest_part() != finding.topic.key()
        || !few
        || !many_tensors
        || bytes < PIECES * LEAST_THRESHOLD_BYTES
        || overlapped > HARDLY_OVERLAPPED * (exposed + overlapped)
    {
        return None;
    }
    let threshold_bytes = (bytes / PIECES).next_multiple_of(1 << 20);
    let recommendation = Recommendation::LowerFusionThreshold { iteration_bytes: bytes, threshold_bytes };
    Some(Proposal::gaining(recommendation, analysis.gain(&[Change::Transfer(1.0 / PIECES as f64)])))
}
