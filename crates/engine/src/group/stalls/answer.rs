//! What a rank answers when it is asked what it does: the state of its groups, and the status that another thread makes
//! of it (`status_reporter`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use farandole_plan::Rank;
use farandole_plan::stall::{GroupState, Lately, RankStatus, RunningBucket, Word};

use crate::group::active_bucket::ActiveBucket;
use crate::group::{Group, GroupError, State, TurnInput};
use crate::status_reporter::{StatusReporter, cut};

/// Names of pending requests that are told.
const NAMES_TOLD: usize = 6;

/// An answer that is being made.
#[derive(Debug)]
pub(super) struct Answer {
    to: Rank,
    number: u64,
    coming: Receiver<Box<RankStatus>>,
}

impl Group {
    /// Whether somebody has asked what this rank does and no answer is being made.
    pub(crate) fn is_asked(&self) -> bool {
        self.stalls.question.is_some() && self.stalls.answer.is_none()
    }

    /// Has an answer made.
    pub(crate) fn begin_answer(&mut self, status_reporter: &StatusReporter, states: Vec<GroupState>) {
        if let Some((to, number)) = self.stalls.question.take() {
            self.stalls.answer = Some(Answer { to, number, coming: status_reporter.begin(states) });
        }
    }

    /// Gives the answer that has been made.
    pub(super) fn answer(&mut self, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        let Some(Answer { to, number, coming }) = &self.stalls.answer else { return Ok(()) };
        let (to, number, rank_status) = (*to, *number, coming.try_recv());
        match rank_status {
            Err(TryRecvError::Empty) => return Ok(()),
            Ok(rank_status) if to == self.here.me => {
                self.hear_of_stall(to, Word::Answer { number, rank_status }, turn)?;
            }
            Ok(rank_status) => self.say(to, &Word::Answer { number, rank_status })?,
            // The thread has panicked; the coordinator will do without.
            Err(TryRecvError::Disconnected) => {}
        }
        self.stalls.answer = None;
        Ok(())
    }

    /// What this group is at, if it is at anything.
    pub(crate) fn state(&self, now: Duration) -> Option<GroupState> {
        if matches!(self.state, State::Ended(_)) || (self.active.is_none() && self.table.is_empty()) {
            return None;
        }
        let mut names: Vec<&Arc<str>> = self.table.names().collect();
        names.sort_unstable();
        names.truncate(NAMES_TOLD);
        Some(GroupState {
            group: self.id(),
            pending: self.table.len() as u64,
            names: names.into_iter().map(cut).collect(),
            running: self.active.as_ref().map(|active| self.running(active, now)),
        })
    }

    fn running(&self, active: &ActiveBucket, now: Duration) -> RunningBucket {
        let plan = &active.bucket.plan;
        let more = if plan.parts.len() > 1 { format!(" and {} more", plan.parts.len() - 1) } else { String::new() };
        let bytes = plan.elems * plan.dtype.size_bytes() as u64;
        RunningBucket {
            tensor: Lately { what: cut(&plan.parts[0].item.name), ago: now.saturating_sub(active.began) },
            operation: active.bucket.operation.index(),
            place: format!("{}{more} of {bytes} bytes, {}", plan.collective.word(), active.place()).into(),
            still: now.saturating_sub(active.moved),
            peer: active.waiting_for(&self.mesh).map(|peer| self.settings.ranks[peer.index()]),
        }
    }
}
