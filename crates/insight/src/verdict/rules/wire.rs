//! Bytes on their way: fewer of them, a better way, a shorter one.

use super::super::{Action, Case, Finding};
use super::Proposal;
use crate::replay::Change;

/// Mean size from which on time goes into bytes rather than into start-up.
const LARGE_BYTES: u64 = 256 << 10;

/// Transfer below this share of the time is not worth the minute that measuring takes, in percent.
const WORTH_MEASURING_PERCENT: f64 = 5.0;

fn large(case: &Case<'_>) -> bool {
    let traffic = case.traffic();
    traffic.calls > 0 && traffic.bytes / traffic.calls >= LARGE_BYTES
}

pub(super) fn narrow(case: &Case<'_>, _: &Finding) -> Option<Proposal> {
    large(case).then(|| Proposal::gaining(Action::CompressGradients, case.gain(&[Change::Transfer(0.5)])))
}

pub(super) fn narrow_copies(case: &Case<'_>, _: &Finding) -> Option<Proposal> {
    (2 * case.copying_ns() > case.split.lost_ns("packing"))
        .then(|| Proposal::gaining(Action::CompressCopies, case.gain(&[Change::Copies(0.5), Change::Transfer(0.5)])))
}

pub(super) fn calibrate(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    let (ranks, hosts) = (case.history.size(), case.history.hosts());
    (ranks > 2 && finding.lost_percent >= WORTH_MEASURING_PERCENT)
        .then(|| Proposal::of(Action::Calibrate { ranks, hosts, ranks_by_host: case.ranks_by_host() }))
}

pub(super) fn one_switch(case: &Case<'_>, _: &Finding) -> Option<Proposal> {
    (case.history.hosts() > 1 && large(case)).then(|| Proposal::of(Action::UseOneSwitch))
}
