//! What a member says and hears while an order is not known yet: announcements, answers, refusals, the end.
//!
//! In the steady state, when the member replays what was learned, nothing here is called.

use super::member::{COORDINATOR, Life, Member, Mode};
use super::{Refusal, RequestId, Violation};
use crate::departure::RankDeparture;
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
    /// `departure` says why this rank leaves the job, if it does.
    pub fn close(&mut self, departure: Option<RankDeparture>) {
        if self.life == Life::Open {
            self.life = Life::Closing(departure);
            self.stop();
        }
    }

    /// Which requests wait for which ranks (known on rank 0 of the group only).
    pub fn stalled(&self, limits: &stall::StallLimits, now: Duration) -> Option<stall::Report> {
        stall::report(self.coordinator.as_ref()?.waiting(), limits, &self.settings.world_ranks, now)
    }

    /// An optimizer of this rank reduces gradients of these names in every step, from the step on whose requests have
    /// just been made. A gradient that another rank lacks is then refused with that reason, instead of waited for.
    pub fn reduces(&mut self, names: Vec<Arc<str>>) {
        if !matches!(self.life, Life::Closed(_)) {
            self.tell_coordinator(Message::Reduces { names });
        }
    }

    /// Since when the oldest request waits for other ranks (known on rank 0 of the group only).
    pub fn waits_since(&self) -> Option<Duration> {
        let waiting = self.coordinator.as_ref()?.waiting();
        waiting.iter().filter(|waiting| !waiting.missing.is_empty()).map(|waiting| waiting.since).min()
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

    pub(super) fn announce(&mut self, now: Duration) {
        if !matches!(self.mode, Mode::Negotiating) {
            return;
        }
        if !self.unannounced.is_empty() {
            let announcement = |id: &RequestId| {
                let entry = self.entries.get(id.0);
                let mut request = entry.request.clone();
                request.batch = entry.cut_batch.clone().or(request.batch);
                let waited = Duration::from_micros(now.saturating_sub(entry.made).as_micros() as u64);
                Announcement { request, seen: entry.seen, waited }
            };
            let requests = self.unannounced.iter().map(announcement).collect();
            self.unannounced.clear();
            self.tell_coordinator(Message::Announce { round: self.round, requests });
        }
        if let Life::Closing(departure) = &mut self.life {
            let departure = departure.take();
            self.life = Life::CloseSent;
            self.tell_coordinator(Message::Close { departure });
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
