//! One rank's side of the agreement: what follows from the coordinator's messages.

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::learn::Recorded;
use super::member::{COORDINATOR, Life, Member, Mode, Replaying};
use super::replay::Cycle;
use super::{Action, Bucket, Operation, Replay, RequestId, Violation};
use crate::fuse::fuse;
use crate::item::Item;
use crate::message::{Agreed, Message};
use crate::request::Rank;

/// A replay that ends within fewer iterations than this did not pay for its learning.
const SHORT_REPLAY_ITERATIONS: u64 = 8;

/// Most repeats that are asked for before a replay, however often short replays came before.
const MOST_REPEATS_NEEDED: u32 = 64;

fn violation<T>(what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { from: COORDINATOR, what: what.into() })
}

impl Member {
    /// Does what the coordinator says.
    pub(super) fn follow(&mut self, message: Message, now: Duration) -> Result<(), Violation> {
        match message {
            Message::Agreed { round, items } => {
                self.check_round(round)?;
                self.agreed(&items, now)
            }
            Message::Refuse { names, reason } => {
                let requests = names.iter().filter_map(|name| self.pending(name)).collect();
                self.refuse(requests, reason);
                Ok(())
            }
            Message::Joined { last } => self.all_joined(last),
            Message::Replay { round, items, hash } => {
                self.check_round(round)?;
                self.start_replay(items as usize, hash)
            }
            Message::Halt { round } => {
                if !(self.expects_resume && round + 1 == self.round) {
                    self.check_round(round)?;
                    self.halt()?;
                }
                Ok(())
            }
            Message::Resume { round, until } => self.resume(round, until),
            Message::Closed { cause, departure } => {
                self.refuse_pending(&cause);
                (self.life, self.departure) = (Life::Draining(cause), departure);
                Ok(())
            }
            _ => violation("only members send this message, and only to rank 0"),
        }
    }

    fn check_round(&self, round: u32) -> Result<(), Violation> {
        if self.expects_resume {
            return violation("it goes on before all ranks have stopped");
        }
        if round == self.round {
            return Ok(());
        }
        violation(format!("it speaks of round {round}, this is {}", self.round))
    }

    /// The next batch of the agreed stream: its buckets will run, come what may.
    fn agreed(&mut self, items: &[Agreed], now: Duration) -> Result<(), Violation> {
        if !matches!(self.mode, Mode::Negotiating) {
            return violation("the agreed stream goes on during a replay");
        }
        let mut requests = Vec::with_capacity(items.len());
        for agreed in items {
            requests.push(self.bind(&agreed.item)?);
        }
        let plain: Vec<Arc<Item>> = items.iter().map(|agreed| Arc::clone(&agreed.item)).collect();
        let fused = fuse(&plain, |_| 0, &self.limits());
        let mut bucket_of = vec![0; items.len()];
        for bucket in fused {
            let operation = Operation::new(self.round, self.next_index);
            bucket.positions.iter().for_each(|position| bucket_of[*position] = self.next_index);
            self.next_index += 1;
            let requests = bucket.positions.iter().map(|position| requests[*position]).collect();
            let (plan, replayed, entry_barrier) = (bucket.plan, false, false);
            self.queue.push_back(Bucket { operation, plan, requests, replayed, entry_barrier });
        }
        if self.settings.replay == Replay::Allowed {
            for (agreed, bucket) in items.iter().zip(bucket_of) {
                let item = Arc::clone(&agreed.item);
                self.history.record(Recorded { item, bucket, seen: agreed.seen });
            }
        }
        self.last_progress = now;
        Ok(())
    }

    /// Finds this rank's request for an agreed item and promises to run it; `None` if this rank has joined.
    fn bind(&mut self, item: &Item) -> Result<Option<RequestId>, Violation> {
        if !item.is_sound(self.size) {
            return violation(format!("what it says about {:?} contradicts itself", item.name));
        }
        if item.joined.contains(&self.me) {
            return Ok(None);
        }
        let Some(id) = self.pending(&item.name) else {
            return violation(format!("it agrees on {:?}, which this rank has not asked for", item.name));
        };
        let entry = self.entries.get_mut(id.0);
        if !item.fits_tensor(self.me, &entry.request) {
            return violation(format!("it agrees on something else for {:?} than this rank has asked for", item.name));
        }
        entry.bound = true;
        Ok(Some(id))
    }

    /// The pending request of this name.
    fn pending(&self, name: &str) -> Option<RequestId> {
        let id = self.slots.get(*self.names.get(name)?).in_flight?;
        (!self.entries.get(id.0).bound).then_some(id)
    }

    fn refuse(&mut self, requests: Vec<RequestId>, reason: Arc<str>) {
        if requests.is_empty() {
            return;
        }
        for id in &requests {
            // From here on it waits for nothing but the driver to fetch the action.
            self.entries.get_mut(id.0).bound = true;
        }
        self.actions.push_back(Action::Refuse { requests, reason });
    }

    fn refuse_pending(&mut self, reason: &Arc<str>) {
        self.unannounced.clear();
        self.refuse(self.pending_in_order(), Arc::clone(reason));
    }

    /// All pending requests in the order in which they were made.
    fn pending_in_order(&self) -> Vec<RequestId> {
        let pending = self.entries.iter().filter(|(_, entry)| !entry.bound);
        let mut pending: Vec<(u64, RequestId)> = pending.map(|(id, entry)| (entry.sequence, RequestId(id))).collect();
        pending.sort_unstable();
        pending.into_iter().map(|(_, id)| id).collect()
    }

    fn all_joined(&mut self, last: Rank) -> Result<(), Violation> {
        match self.join {
            Some(request) if last.index() < self.size && !self.entries.get(request.0).bound => {
                self.entries.get_mut(request.0).bound = true;
                self.actions.push_back(Action::Joined { request, last });
                Ok(())
            }
            _ => violation("it says that all ranks have joined, but this one has not"),
        }
    }

    /// On the coordinator's rank: begins a replay if the stream has just repeated itself.
    pub(super) fn start_replay_if_repeated(&mut self, coordinator: &mut Coordinator) {
        let Some(len) = self.history.cycle_len(self.repeats_needed) else { return };
        let recorded = self.history.tail(len).expect("a cycle is remembered");
        let mut names: Vec<&str> = recorded.iter().map(|recorded| &*recorded.item.name).collect();
        names.sort_unstable();
        if coordinator.can_replay(|name| names.binary_search(&name).is_ok()) {
            let (cycle, _) = Cycle::new(&recorded, &self.limits());
            coordinator.replay(len as u32, cycle.hash);
        }
    }

    /// The last `len` items of the stream are the cycle.
    fn start_replay(&mut self, len: usize, hash: u64) -> Result<(), Violation> {
        let recorded = self.history.tail(len).filter(|recorded| !recorded.is_empty());
        let Some(recorded) = recorded.filter(|_| matches!(self.mode, Mode::Negotiating)) else {
            return violation(format!("it replays {len} items, which this rank does not remember"));
        };
        let (cycle, places) = Cycle::new(&recorded, &self.limits());
        if cycle.hash != hash {
            return violation("its buckets differ from this rank's; are the settings the same on all ranks?");
        }
        for (item, place) in places {
            let slots = &mut self.slots;
            let slot = *self.names.entry(Arc::clone(&item.name)).or_insert_with(|| slots.insert(Default::default()));
            self.slots.get_mut(slot).place = Some(place);
        }
        self.history.clear();
        self.mode = Mode::Replaying(Replaying { cycle, start_index: self.next_index, stopped: false });
        self.unannounced.clear();
        for id in self.pending_in_order() {
            self.put_in_cycle(id);
        }
        if matches!(self.life, Life::Closing(_)) {
            self.stop();
        }
        Ok(())
    }

    fn halt(&mut self) -> Result<(), Violation> {
        if matches!(self.mode, Mode::Negotiating) {
            return violation("it halts a replay that has not begun");
        }
        self.stop();
        Ok(())
    }

    /// The replay is over: abandons the bucket that not all ranks have entered, and goes back to negotiating, unless
    /// this rank has done so when it stopped.
    fn resume(&mut self, round: u32, until: u64) -> Result<(), Violation> {
        if self.expects_resume {
            if (round, until) != (self.round, self.next_index) {
                return violation(format!("it resumes round {round} at bucket {until}, behind what has finished here"));
            }
            self.expects_resume = false;
            return Ok(());
        }
        let Mode::Replaying(replaying @ Replaying { stopped: true, .. }) = &mut self.mode else {
            return violation("it resumes a replay that has not stopped");
        };
        if round != self.round + 1 || !(replaying.start_index..=self.next_index).contains(&until) {
            return violation(format!("it resumes round {round} at bucket {until}"));
        }
        if until < self.next_index {
            let abandoned = self.running.take_if(|running| running.replayed && running.operation.index() == until);
            let Some(running) = abandoned.filter(|_| until + 1 == self.next_index) else {
                return violation(format!("it abandons bucket {until}, which has finished here"));
            };
            replaying.cycle.step_back();
            self.actions.push_back(Action::Abandon { operation: running.operation });
            self.next_index = until;
        } else if let Some(running) = &self.running {
            // Everybody has entered it, so it will finish; its requests are not pending.
            for id in running.requests.iter().flatten() {
                self.entries.get_mut(id.0).bound = true;
            }
        }
        self.leave_replay();
        Ok(())
    }

    /// Negotiates from `next_index` on, in the next round.
    pub(super) fn leave_replay(&mut self) {
        let Mode::Replaying(replaying) = std::mem::replace(&mut self.mode, Mode::Negotiating) else { return };
        self.round += 1;
        let iterations = (self.next_index - replaying.start_index) / replaying.cycle.len() as u64;
        self.repeats_needed = match iterations {
            0..SHORT_REPLAY_ITERATIONS => (self.repeats_needed * 2).min(MOST_REPEATS_NEEDED),
            _ => 1,
        };
        self.unannounced = self.pending_in_order();
        let cut_batches = replaying.cycle.cut_batches();
        for id in &self.unannounced {
            let entry = self.entries.get_mut(id.0);
            let place = self.slots.get(entry.slot).place;
            let is_left = place.is_some_and(|place| replaying.cycle.is_left(place));
            if let Some(batch) = entry.request.batch.as_ref().filter(|_| is_left) {
                entry.cut_batch = cut_batches.iter().find(|cut| cut.name == batch.name).cloned();
            }
        }
        let (names, slots) = (&mut self.names, &mut self.slots);
        names.retain(|_, slot| {
            slots.get_mut(*slot).place = None;
            let in_flight = slots.get(*slot).in_flight.is_some();
            if !in_flight {
                slots.remove(*slot);
            }
            in_flight
        });
    }
}
