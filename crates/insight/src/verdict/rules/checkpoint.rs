//! Checkpoints that everybody waits for.

use super::super::{Action, Case, Finding};
use super::Proposal;
use crate::replay::Change;

pub(super) fn in_background(case: &Case<'_>, _: &Finding) -> Option<Proposal> {
    Some(Proposal::gaining(Action::CheckpointInBackground, case.gain(&[Change::NoCheckpoint])))
}
