//! Bytes on their way: fewer of them, a better way, a shorter one.

use super::super::{Analysis, Finding, Recommendation};
use super::Proposal;
use crate::replay::Change;

/// Mean size from which on time goes into bytes rather than into start-up.
const LARGE_BYTES: u64 = 256 << 10;

/// Transfer below this share of the time is not worth the minute that measuring takes, in percent.
const WORTH_MEASURING_PERCENT: f64 = 5.0;

fn large(analysis: &Analysis<'_>) -> bool {
    let traffic = analysis.traffic();
    traffic.calls > 0 && traffic.bytes / traffic.calls >= LARGE_BYTES
}

pub(super) fn narrow(analysis: &Analysis<'_>, _: &Finding) -> Option<Proposal> {
    large(analysis)
        .then(|| Proposal::gaining(Recommendation::CompressGradients, analysis.gain(&[Change::Transfer(0.5)])))
}

pub(super) fn narrow_copies(analysis: &Analysis<'_>, _: &Finding) -> Option<Proposal> {
    (2 * analysis.copying_ns() > analysis.split.lost_ns("packing")).then(|| {
        Proposal::gaining(Recommendation::CompressCopies, analysis.gain(&[Change::Copies(0.5), Change::Transfer(0.5)]))
    })
}

pub(super) fn calibrate(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let (ranks, hosts) = (analysis.history.size(), analysis.history.hosts());
    (ranks > 2 && finding.lost_percent >= WORTH_MEASURING_PERCENT)
        .then(|| Proposal::of(Recommendation::Calibrate { ranks, hosts, ranks_by_host: analysis.ranks_by_host() }))
}

pub(super) fn one_switch(analysis: &Analysis<'_>, _: &Finding) -> Option<Proposal> {
    (analysis.history.hosts() > 1 && large(analysis)).then(|| Proposal::of(Recommendation::UseOneSwitch))
}
