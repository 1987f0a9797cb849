//! What a member says and hears while an order is not known yet: announcements, answers, refusals, the end.
//!
//! In the steady state, when the member replays what was learned, nothing here is called.

use super::member::{COORDINATOR, Life, Member, Mode};
use super::{Refusal, RequestId, Violation};
use crate::message::{Announcement, Message};
use crate::request::{Rank, Request};
use crate::stall;
use std::sync::Arc;
use std::time::Duration;

impl Member {
    /// Takes in a message of another rank.
    ///
    /// # Errors
    /// The message makes no sense; the driver should end the group.
    pub fn receive(&mut self, from: Rank, message: Message, now: Duration) -> Result<(), Violation> {
        if from == self.me || from.index() >= self.size {
            return Err(Violation { from, what: "there is no such peer".to_string() });
        }
        if let Life::Closed(_) = self.life {
            return Ok(());
        }
        match &mut self.coordinator {
            Some(coordinator) => coordinator.receive(from, message, now),
            None if from == COORDINATOR => self.follow(message, now),
            None => Err(Violation { from, what: "it is not the coordinator".to_string() }),
        }
    }

    /// Closes the group on all ranks: what is already agreed still runs, everything else is refused.
    pub fn close(&mut self, _now: Duration) {
        if self.life == Life::Open {
            self.life = Life::Closing;
            self.break_replay();
        }
    }

    /// Which requests wait for which ranks (known on rank 0 of the group only).
    pub fn stalled(&self, limits: &stall::StallLimits, now: Duration) -> Option<stall::Report> {
        stall::report(self.coordinator.as_ref()?.waiting(), limits, &self.settings.world_ranks, now)
    }

    pub(super) fn refuse_submission(&self, request: &Request) -> Refusal {
        let reason = match &self.life {
            Life::Draining(cause) | Life::Closed(cause) => {
                return Refusal { reason: Arc::clone(cause) };
            }
            Life::Open => format!("{:?} cannot be submitted: this rank has joined.", request.name),
            _ => format!("{:?} cannot be submitted: Farandole has been shut down on this rank.", request.name),
        };
        Refusal { reason: reason.into() }
    }

    pub(super) fn announce(&mut self) {
        if !matches!(self.mode, Mode::Negotiating) {
            return;
        }
        if !self.unannounced.is_empty() {
            let announcement = |id: &RequestId| {
                let entry = self.entries.get(id.0);
                let mut request = entry.request.clone();
                request.batch = entry.cut_batch.clone().or(request.batch);
                Announcement { request, seen: entry.seen }
            };
            let requests = self.unannounced.iter().map(announcement).collect();
            self.unannounced.clear();
            self.tell_coordinator(Message::Announce { round: self.round, requests });
        }
        if self.life == Life::Closing {
            self.life = Life::CloseSent;
            self.tell_coordinator(Message::Close);
        }
    }
}

pub(super) fn duplicate(name: &str) -> Refusal {
    let reason = format!(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently \
         being processed: {name:?}. Wait for it before using the name again, or give each request a name of its own."
    );
    Refusal { reason: reason.into() }
}
