//! Phases in which only some ranks work while the others wait.

use super::super::{Analysis, Finding, Recommendation, Topic};
use super::Proposal;
use crate::loss::LossCause;
use crate::replay::Change;

fn phase(finding: &Finding) -> Option<String> {
    if let Topic::Cause(LossCause::Sequential(name)) = &finding.topic { Some(name.clone()) } else { None }
}

pub(super) fn share(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let phase = phase(finding)?;
    let gain = analysis.gain(&[Change::Shared(phase.clone())]);
    Some(Proposal::gaining(Recommendation::SharePhase { phase }, gain))
}

pub(super) fn move_away(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let phase = phase(finding)?;
    let gain = analysis.gain(&[Change::Moved(phase.clone())]);
    Some(Proposal::gaining(Recommendation::MovePhase { phase }, gain))
}
