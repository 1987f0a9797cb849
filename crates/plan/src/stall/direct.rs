//! A direct call that waits, as reported by the rank that is in it.
//!
//! Direct collectives have no names and no coordinator: ranks meet in them by making the same calls in the same order.
//! So no rank knows who has arrived, and each rank that waits too long reports for whom it waits ([`DirectWait`]). Rank
//! 0 combines these reports with the answers of the missing ranks. A rank that is in the same call is not missing but
//! waits itself; the ranks that it waits for are asked next. So the rank that delays all others is found even if
//! messages go from rank to rank.

use std::sync::Arc;
use std::time::Duration;

use super::{Report, StallLimits, Waiting, report};
use crate::request::Rank;

/// A rank waits in a direct call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectWait {
    /// The number of the call, the same on all ranks.
    pub operation: u64,
    /// What was called, as a user would write it.
    pub call: Arc<str>,
    /// For how long nothing has moved.
    pub waited: Duration,
    /// After how long this is told.
    pub limit: Duration,
    /// The ranks that it waits for, as far as it knows.
    pub missing: Vec<Rank>,
}

impl DirectWait {
    /// What takes the place of a tensor's name.
    pub fn name(&self) -> Arc<str> {
        format!("direct {} (call {})", self.call, self.operation).into()
    }
}

/// What is known of a direct call that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    wait: DirectWait,
    since: Duration,
    /// Ranks that are in the call.
    here: Vec<Rank>,
}

impl Meeting {
    pub(super) fn new(from: Rank, wait: DirectWait, now: Duration) -> Meeting {
        let since = now.saturating_sub(wait.waited);
        Meeting { wait, since, here: vec![from] }
    }

    pub(super) fn operation(&self) -> u64 {
        self.wait.operation
    }

    pub(super) fn call(&self) -> &str {
        &self.wait.call
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.wait.name()
    }

    /// Ranks that others wait for and that are not known to be there.
    pub(super) fn missing(&self) -> impl Iterator<Item = Rank> {
        self.wait.missing.iter().copied().filter(|rank| !self.here.contains(rank))
    }

    pub(super) fn is_here(&self, rank: Rank) -> bool {
        self.here.contains(&rank)
    }

    /// This rank is in the call, too, and waits for these.
    pub(super) fn comes(&mut self, rank: Rank, waits_for: impl IntoIterator<Item = Rank>) {
        if !self.here.contains(&rank) {
            self.here.push(rank);
        }
        for missed in waits_for {
            if !self.wait.missing.contains(&missed) {
                self.wait.missing.push(missed);
            }
        }
    }

    /// In the words in which all stalls are reported. The job does not end for this: whoever waits ends its call if the
    /// user has set a limit.
    pub(super) fn report(&self, world_ranks: &[Rank], now: Duration) -> Report {
        let mut missing: Vec<Rank> = self.missing().collect();
        missing.sort_unstable();
        let (name, asked) = (self.name(), self.here.clone());
        let waiting = Waiting { name, since: self.since, missing, asked, ..Waiting::default() };
        // Whoever told of the wait has looked at its own clock, and the limit is over there.
        let limits = StallLimits { warn_after: self.wait.limit, shut_down_after: Duration::ZERO };
        let at_least = self.since.saturating_add(limits.warn_after).saturating_add(Duration::from_nanos(1));
        report(vec![waiting], &limits, world_ranks, now.max(at_least))
            .expect("invariant: what has waited longer than its limit is reported")
    }
}
