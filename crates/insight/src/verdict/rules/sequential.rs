//! Phases in which only some ranks work while the others wait.

use super::super::{Action, Case, Finding, Topic};
use super::Proposal;
use crate::loss::Cause;
use crate::replay::Change;

fn phase(finding: &Finding) -> Option<String> {
    if let Topic::Cause(Cause::Sequential(name)) = &finding.topic { Some(name.clone()) } else { None }
}

pub(super) fn share(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    let phase = phase(finding)?;
    let gain = case.gain(&[Change::Shared(phase.clone())]);
    Some(Proposal::gaining(Action::SharePhase { phase }, gain))
}

pub(super) fn move_away(case: &Case<'_>, finding: &Finding) -> Option<Proposal> {
    let phase = phase(finding)?;
    let gain = case.gain(&[Change::Moved(phase.clone())]);
    Some(Proposal::gaining(Action::MovePhase { phase }, gain))
}
