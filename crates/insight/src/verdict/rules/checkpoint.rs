//! Checkpoints that everybody waits for.

use super::super::{Analysis, Finding, Recommendation};
use super::Proposal;
use crate::replay::Change;

pub(super) fn in_background(analysis: &Analysis<'_>, _: &Finding) -> Option<Proposal> {
    Some(Proposal::gaining(Recommendation::CheckpointInBackground, analysis.gain(&[Change::NoCheckpoint])))
}
