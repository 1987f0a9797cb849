//! What ends a group, and how it is told.
//!
//! The rank that notices an error first writes the whole story: who, on which host, what was under way and for how
//! long. All other ranks repeat its words.

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::{ErrorClass, GroupId, Rank};
use farandole_transport::{Error as TransportError, Waiter};

use super::Group;
use crate::abort::AbortCause;
use crate::error::Failure;

/// How long a broken connection waits for the control lines to tell the cause. A peer sends the cause before it closes
/// anything, so it is here at once or not at all; the network may still reorder connections by some milliseconds.
const CAUSE_PATIENCE: Duration = Duration::from_millis(100);

/// What ended a group.
#[derive(Debug)]
pub(crate) enum GroupError {
    /// A peer or the way to it.
    Transport(TransportError),
    /// Ranks that never came.
    Stalled(String),
    /// Somebody in this process knows.
    Aborted(AbortCause),
    /// A bug of ours.
    Panicked(String),
}

impl From<TransportError> for GroupError {
    fn from(error: TransportError) -> GroupError {
        GroupError::Transport(error)
    }
}

impl Group {
    /// The first cause behind an error of this group, complete with everything a user wants to know.
    pub(crate) fn first_cause(&mut self, group_error: GroupError, waiter: &Waiter, now: Duration) -> Failure {
        let (what, class, rank) = match group_error {
            GroupError::Transport(error) => {
                let error = self.mesh.first_cause(error, waiter, CAUSE_PATIENCE);
                let rank = error.peer().map(|peer| self.settings.ranks[peer.index()]);
                // Whoever tells of a failure is to blame only if it can name nobody else.
                if let TransportError::PeerAborted { blamed, class, cause, .. } = error {
                    return self.failure(cause, class, blamed.or(rank), now);
                }
                (in_words(&error, rank, &self.settings.hosts), error.class(), rank)
            }
            GroupError::Stalled(text) => return self.failure(text, ErrorClass::Stall, None, now),
            GroupError::Aborted(AbortCause { peer, class, cause, is_complete: true }) => {
                return self.failure(cause, class, peer, now);
            }
            GroupError::Aborted(AbortCause { peer, class, cause, .. }) => (cause, class, peer),
            GroupError::Panicked(text) => (text, ErrorClass::Other, Some(self.settings.ranks[self.here.me.index()])),
        };
        let under_way = self.under_way(now);
        self.failure(format!("{what}{under_way}"), class, rank, now)
    }

    fn failure(&self, what: String, class: ErrorClass, rank: Option<Rank>, now: Duration) -> Failure {
        let active = self.active.as_ref();
        let tensor = active.map(|active| Arc::clone(&active.bucket.plan.parts[0].item.name));
        Failure { what, class, rank, tensor, elapsed: active.map(|active| now.saturating_sub(active.began)) }
    }

    fn under_way(&self, now: Duration) -> String {
        let me = self.settings.ranks[self.here.me.index()];
        let noticed = format!("noticed by rank {me} on {}", self.settings.hosts[me.index()]);
        let group = match self.settings.id {
            GroupId::WORLD => String::new(),
            group => format!(" in group {group}"),
        };
        let Some(active) = &self.active else { return format!("; nothing was running{group}; {noticed}") };
        let parts = &active.bucket.plan.parts;
        let more = if parts.len() > 1 { format!(" and {} more", parts.len() - 1) } else { String::new() };
        format!(
            "; under way for {:.3} s{group}: {} \"{}\"{more}; {noticed}",
            now.saturating_sub(active.began).as_secs_f64(),
            active.bucket.plan.collective.word(),
            parts[0].item.name,
        )
    }
}

/// An error in terms of world ranks, with the host of the one that is to blame.
fn in_words(error: &TransportError, rank: Option<Rank>, hosts: &[String]) -> String {
    let Some(rank) = rank else { return error.to_string() };
    let who = format!("rank {rank} on {}", hosts[rank.index()]);
    match error {
        TransportError::PeerGone { how, .. } => format!("{who} is gone ({how})"),
        TransportError::Garbled { what, .. } => format!("{who} sent something unexpected: {what}"),
        TransportError::Corrupt { what, .. } => format!("data from {who} arrived damaged: {what}"),
        TransportError::Deadline { waiting_for, waited, .. } => {
            format!("waited {:.1} s for {who}: {waiting_for}", waited.as_secs_f64())
        }
        other => other.to_string(),
    }
}
