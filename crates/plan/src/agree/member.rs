//! One rank's side of the agreement: what the driver calls. What the coordinator says is followed in `follow`.
//!
//! A request is *pending* until it is part of a bucket that will certainly run, then *bound*. In replay a pending
//! request also sits in its place in the cycle. Only pending requests are announced, refused, or announced again.
//!
//! Buckets are counted by index. `next_index` is the number of buckets that this rank has entered or is bound to enter:
//! it grows when the agreed stream brings buckets and when replay starts one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::coordinator::{Coordinator, Target};
use super::learn::History;
use super::negotiation::duplicate;
use super::replay::{Cycle, Place};
use super::table::{ByName, Slab};
use super::{Action, Bucket, Operation, Refusal, RequestId, Settings};
use crate::departure::RankDeparture;
use crate::fuse;
use crate::message::Message;
use crate::request::{Batch, Collective, Rank, Request};

/// Rank 0 of each group coordinates it.
pub(super) const COORDINATOR: Rank = Rank(0);

/// One rank of one group; see the module's text.
pub struct Member {
    pub(super) me: Rank,
    pub(super) size: usize,
    pub(super) settings: Settings,
    pub(super) round: u32,
    pub(super) mode: Mode,
    pub(super) life: Life,
    /// Why a rank leaves the job, if that closes the group.
    pub(super) departure: Option<RankDeparture>,
    pub(super) entries: Slab<Entry>,
    /// Numbers of `slots` by name: for each name that is in flight or in the cycle.
    pub(super) names: ByName<u32>,
    pub(super) slots: Slab<Slot>,
    /// Counts submissions, to announce requests again in their order.
    next_sequence: u64,
    /// Pending requests that the coordinator does not know of.
    pub(super) unannounced: Vec<RequestId>,
    /// This rank's join, while it is in flight.
    pub(super) join: Option<RequestId>,
    pub(super) history: History,
    pub(super) next_index: u64,
    pub(super) completed: u64,
    /// Buckets bound to run that have not started.
    pub(super) queue: VecDeque<Bucket>,
    pub(super) running: Option<Running>,
    /// When something last went on: a submission or the end of a bucket.
    pub(super) last_progress: Duration,
    /// The program asks for nothing more before this request is done.
    awaited: Option<RequestId>,
    /// Whether this rank has gone to the next round before all others have stopped.
    pub(super) expects_resume: bool,
    /// How often a segment must have been repeated before it is replayed.
    pub(super) repeats_needed: u32,
    pub(super) actions: VecDeque<Action>,
    pub(super) outbox: VecDeque<(Rank, Message)>,
    pub(super) coordinator: Option<Box<Coordinator>>,
}

/// How requests come to run.
#[derive(Debug)]
pub(super) enum Mode {
    Negotiating,
    Replaying(Replaying),
}

/// The state of a replay.
#[derive(Debug)]
pub(super) struct Replaying {
    pub(super) cycle: Cycle,
    /// `next_index` when it began.
    pub(super) start_index: u64,
    /// Whether no more buckets are started, because this rank has sent `Break` or received `Halt`.
    pub(super) stopped: bool,
}

/// Whether the group lives.
#[derive(Debug, PartialEq)]
pub(super) enum Life {
    Open,
    /// The user has closed it; the coordinator is to be told.
    Closing(Option<RankDeparture>),
    /// The coordinator has been told.
    CloseSent,
    /// The agreed stream has ended; what is bound still runs.
    Draining(Arc<str>),
    /// Over.
    Closed(Arc<str>),
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: Request,
    pub(super) sequence: u64,
    /// How many buckets had finished here when it was made.
    pub(super) seen: u64,
    pub(super) made: Duration,
    pub(super) slot: u32,
    pub(super) bound: bool,
    /// What is left of its batch, where a break has cut it in two.
    pub(super) cut_batch: Option<Batch>,
}

/// A name.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) in_flight: Option<RequestId>,
    pub(super) place: Option<Place>,
}

/// The bucket that the driver runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) operation: Operation,
    pub(super) requests: Vec<Option<RequestId>>,
    pub(super) replayed: bool,
    pub(super) since: Duration,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("me", &self.me)
            .field("size", &self.size)
            .field("round", &self.round)
            .field("life", &self.life)
            .field("next_index", &self.next_index)
            .field("completed", &self.completed)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// The member of rank `me` in a group of `size` ranks.
    pub fn new(me: Rank, size: usize, settings: Settings) -> Member {
        assert!(me.index() < size, "a member is one of the ranks of its group");
        let coordinator = (me == COORDINATOR).then(|| Box::new(Coordinator::new(size, &settings)));
        Member {
            me,
            size,
            round: 0,
            mode: Mode::Negotiating,
            life: Life::Open,
            departure: None,
            entries: Slab::default(),
            names: ByName::default(),
            slots: Slab::default(),
            next_sequence: 0,
            unannounced: Vec::new(),
            join: None,
            history: History::default(),
            next_index: 0,
            completed: 0,
            queue: VecDeque::new(),
            running: None,
            last_progress: Duration::ZERO,
            awaited: None,
            expects_resume: false,
            repeats_needed: 1,
            actions: VecDeque::new(),
            outbox: VecDeque::new(),
            coordinator,
            settings,
        }
    }

    /// Asks for a collective. The id stays valid until the request has been run ([`Member::finished`]) or was named in
    /// an action that says its id is free again.
    ///
    /// # Errors
    /// A name that is still in flight, a request after this rank's join, or a closed group.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<RequestId, Refusal> {
        if self.join.is_some() || self.life != Life::Open {
            return Err(self.refuse_submission(&request));
        }
        let slot = match self.names.get(&request.name) {
            Some(slot) => *slot,
            None => {
                let slot = self.slots.insert(Slot::default());
                self.names.insert(Arc::clone(&request.name), slot);
                slot
            }
        };
        if self.slots.get(slot).in_flight.is_some() {
            return Err(duplicate(&request.name));
        }
        let is_join = request.collective == Collective::Join;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let seen = self.completed;
        let entry = Entry { request, sequence, seen, made: now, slot, bound: false, cut_batch: None };
        let id = RequestId(self.entries.insert(entry));
        self.slots.get_mut(slot).in_flight = Some(id);
        self.last_progress = now;
        self.awaited = None;
        if is_join {
            self.join = Some(id);
        }
        match self.mode {
            Mode::Negotiating => self.unannounced.push(id),
            Mode::Replaying(_) => self.put_in_cycle(id),
        }
        Ok(id)
    }

    /// The program waits for this request and asks for nothing more before it is done: what the request waits for in
    /// the cycle will not come. Forgotten when the next request comes all the same, from another thread. No effect on a
    /// request that is done.
    pub fn awaits(&mut self, name: &str) {
        self.awaited = self.names.get(name).and_then(|slot| self.slots.get(*slot).in_flight);
    }

    /// The next message to send; never to this rank itself. Call until `None`, before waiting.
    pub fn poll_send(&mut self, now: Duration) -> Option<(Rank, Message)> {
        self.settle(now);
        self.outbox.pop_front()
    }

    /// The next thing to do. Call until `None`, before waiting and after each [`Member::finished`].
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        if self.running.is_none() && self.queue.is_empty() && self.actions.is_empty() {
            // The hot path: a replaying rank has nothing to settle with anybody.
            if let Some(bucket) = self.start_replayed(now) {
                return Some(Action::Run(bucket));
            }
        }
        self.settle(now);
        if let Some(action) = self.actions.pop_front() {
            match &action {
                Action::Refuse { requests, .. } => requests.iter().for_each(|id| self.free(*id)),
                Action::Joined { request, .. } => self.free(*request),
                _ => {}
            }
            return Some(action);
        }
        if self.running.is_some() {
            return None;
        }
        if let Some(bucket) = self.queue.pop_front() {
            self.run(&bucket, now);
            return Some(Action::Run(bucket));
        }
        if let Some(bucket) = self.start_replayed(now) {
            return Some(Action::Run(bucket));
        }
        if let Life::Draining(cause) = &self.life {
            let cause = Arc::clone(cause);
            self.life = Life::Closed(Arc::clone(&cause));
            return Some(Action::Closed { cause });
        }
        None
    }

    /// The outstanding bucket has run. Call it before the callers learn of it.
    ///
    /// # Panics
    /// If it is not the outstanding bucket.
    pub fn finished(&mut self, operation: Operation, now: Duration) {
        let running = self.running.take().expect("a bucket finishes after it was given out");
        assert_eq!(running.operation, operation, "buckets finish in order");
        for id in running.requests.into_iter().flatten() {
            self.free(id);
        }
        self.completed = operation.index() + 1;
        self.last_progress = now;
        if matches!(&self.mode, Mode::Replaying(replaying) if replaying.stopped) {
            // All ranks have entered it, and this one has entered no other.
            self.expects_resume = true;
            self.leave_replay();
        }
    }

    /// When [`Member::handle_timeout`] must be called at the latest.
    pub fn next_timeout(&self) -> Option<Duration> {
        let Mode::Replaying(replaying) = &self.mode else { return None };
        if replaying.stopped {
            return None;
        }
        match &self.running {
            Some(running) if running.replayed => Some(running.since + self.settings.run_limit),
            None if self.queue.is_empty() && replaying.cycle.waiting() > 0 => {
                let patience = if self.awaited.is_some() { Duration::ZERO } else { self.settings.patience };
                Some(self.last_progress + patience)
            }
            _ => None,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.next_timeout().is_none_or(|at| now < at) {
            return;
        }
        if let Mode::Replaying(Replaying { cycle, .. }) = &self.mode
            && (self.running.is_some() || !cycle.is_ready())
        {
            self.stop();
        }
    }

    /// Whether buckets are replayed at present, without any message.
    pub fn is_replaying(&self) -> bool {
        matches!(&self.mode, Mode::Replaying(replaying) if !replaying.stopped)
    }

    /// Whether all ranks are known to have asked for the bucket that runs. During replay a rank enters a bucket without
    /// knowing that of the others.
    pub fn all_have_asked(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.replayed || matches!(self.mode, Mode::Negotiating))
    }

    /// Whether the agreed stream has ended, because a rank has closed the group.
    pub fn is_closed(&self) -> bool {
        matches!(self.life, Life::Draining(_) | Life::Closed(_))
    }

    /// Why the rank that has closed the group leaves the job, if it does.
    pub fn departure(&self) -> Option<&RankDeparture> {
        self.departure.as_ref()
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn limits(&self) -> fuse::FusionLimits {
        fuse::FusionLimits {
            size: self.size,
            threshold_bytes: self.settings.threshold_bytes,
            stage_below_bytes: self.settings.stage_below_bytes,
            alone_from_bytes: self.settings.alone_from_bytes,
            batches: self.settings.batches,
        }
    }

    /// Puts a pending request into its place in the cycle, or ends the replay if it has none there.
    pub(super) fn put_in_cycle(&mut self, id: RequestId) {
        let Mode::Replaying(replaying) = &mut self.mode else { return };
        let entry = self.entries.get(id.0);
        match self.slots.get(entry.slot).place {
            Some(place) if replaying.cycle.item(place).fits(self.me, &entry.request) => replaying.cycle.put(place, id),
            _ => self.stop(),
        }
    }

    /// Enters no more buckets of the replay, if there is one, and tells the coordinator.
    pub(super) fn stop(&mut self) {
        let Mode::Replaying(replaying) = &mut self.mode else { return };
        if std::mem::replace(&mut replaying.stopped, true) {
            return;
        }
        let (round, entered, completed) = (self.round, self.next_index, self.completed);
        self.tell_coordinator(Message::Stopped { round, entered, completed });
        if !self.running.as_ref().is_some_and(|running| running.replayed) {
            // What this rank has replayed is done, and so was entered by all: nothing can be abandoned here.
            self.expects_resume = true;
            self.leave_replay();
        }
    }

    pub(super) fn tell_coordinator(&mut self, message: Message) {
        self.outbox.push_back((COORDINATOR, message));
    }

    fn start_replayed(&mut self, now: Duration) -> Option<Bucket> {
        let Mode::Replaying(Replaying { cycle, stopped: false, .. }) = &mut self.mode else { return None };
        if !cycle.is_ready() {
            return None;
        }
        let (plan, requests) = cycle.start();
        let operation = Operation::new(self.round, self.next_index);
        self.next_index += 1;
        let entry_barrier = !plan.holds_until_all_entered();
        let bucket = Bucket { operation, plan, requests, replayed: true, entry_barrier };
        self.run(&bucket, now);
        Some(bucket)
    }

    fn run(&mut self, bucket: &Bucket, now: Duration) {
        let (operation, requests, replayed) = (bucket.operation, bucket.requests.clone(), bucket.replayed);
        self.running = Some(Running { operation, requests, replayed, since: now });
    }

    /// The request is over: forgets it, and its name unless that has a place in the cycle.
    pub(super) fn free(&mut self, id: RequestId) {
        let entry = self.entries.remove(id.0);
        let slot = self.slots.get_mut(entry.slot);
        slot.in_flight = None;
        if slot.place.is_none() {
            self.slots.remove(entry.slot);
            self.names.remove(&entry.request.name);
        }
        if self.join == Some(id) {
            self.join = None;
        }
        if self.awaited == Some(id) {
            self.awaited = None;
        }
    }

    /// Announces what is new and lets the messages between this rank and itself arrive.
    fn settle(&mut self, now: Duration) {
        self.announce(now);
        let Some(mut coordinator) = self.coordinator.take() else { return };
        loop {
            // In this order: what this rank tells its coordinator may decide what the coordinator tells everybody.
            while let Some(at) = self.outbox.iter().position(|(to, _)| *to == self.me) {
                let (_, message) = self.outbox.remove(at).expect("the message is there");
                coordinator.receive(self.me, message, now).expect("the coordinator's own member keeps the protocol");
            }
            coordinator.flush();
            let Some((target, message)) = coordinator.pop() else { break };
            let to_me = match target {
                Target::All => {
                    let others = (1..self.size).map(Rank::from);
                    self.outbox.extend(others.map(|rank| (rank, message.clone())));
                    true
                }
                Target::One(rank) if rank == self.me => true,
                Target::One(rank) => {
                    self.outbox.push_back((rank, message.clone()));
                    false
                }
            };
            if to_me {
                let learned = matches!(message, Message::Agreed { .. });
                self.follow(message, now).expect("a rank agrees with itself");
                if learned {
                    self.start_replay_if_repeated(&mut coordinator);
                }
                self.announce(now);
            }
        }
        self.coordinator = Some(coordinator);
    }
}
