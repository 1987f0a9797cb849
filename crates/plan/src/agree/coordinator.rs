//! What rank 0 does for its group: collects announcements, decides, and sends everybody the same.
//!
//! Invariant: at any moment of one round, the messages sent to the members are the same for all, in the same
//! order, but for refusals, which go to those ranks that had announced the request. (A rank whose announcement is still
//! on its way hears of the refusal when that arrives; told earlier, it could confuse the request with its next one.)
//!
//! While a cycle is replayed the coordinator knows nothing and needs to know nothing; announcements that cross the
//! start of a replay on their way are dropped, because their senders put these requests into the cycle themselves. When
//! it ends, each rank says where it has stopped and announces what it still wants; the coordinator decides when it has
//! heard all.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use super::gradient_sets::GradientSets;
use super::table::{ByName, NameHasher};
use super::{Joining, Settings, Violation};
use crate::departure::RankDeparture;
use crate::item::Item;
use crate::message::{Agreed, Announcement, Message};
use crate::request::{Batch, Collective, Rank, Request};
use crate::stall;
use crate::validate::{agree_on, refuse_for_horovod};

/// Who gets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    All,
    One(Rank),
}

/// The coordinator's part of a group.
#[derive(Debug)]
pub(super) struct Coordinator {
    size: usize,
    world_ranks: Vec<Rank>,
    joining: Joining,
    round: u32,
    phase: Phase,
    table: ByName<Entry>,
    /// Batches of which something has been announced. Batches are told apart by their size too, because what is left of
    /// a batch that a break has cut in two is announced under its name with a smaller size.
    batches: ByBatch<BatchState>,
    /// Batches that were refused before every rank had announced all of its requests. The rest is refused when it
    /// comes, whatever round that is in.
    refused_batches: ByBatch<RefusedBatch>,
    /// Agreed, not yet sent.
    ready: Vec<Agreed>,
    /// Names that all ranks have asked for before; see [`NAMES_REMEMBERED`].
    agreed_before: HashSet<Arc<str>, BuildHasherDefault<NameHasher>>,
    gradient_sets: GradientSets,
    joined: Vec<bool>,
    /// The rank that joined last.
    last_joined: Option<Rank>,
    /// The rank that has asked to close the group, and why it leaves the job if it does.
    closing: Option<(Rank, Option<RankDeparture>)>,
    out: VecDeque<(Target, Message)>,
}

#[derive(Debug, PartialEq)]
enum Phase {
    Negotiating,
    Replaying,
    /// Waits until all ranks have stopped: for each that has, how many buckets it has entered and finished.
    Halting(Vec<Option<(u64, u64)>>),
    Closed,
}

/// What has been announced under one name.
#[derive(Debug)]
struct Entry {
    requests: Vec<Option<Request>>,
    announced: usize,
    seen: u64,
    since: Duration,
}

/// How many names are remembered to explain stalls. Of a program whose names never come again, the latest are kept.
const NAMES_REMEMBERED: usize = 1 << 16;

/// A map from the name and size of a batch.
type ByBatch<T> = HashMap<(Arc<str>, u32), T, BuildHasherDefault<NameHasher>>;

#[derive(Debug)]
struct BatchState {
    /// Items that every rank has announced.
    done: Vec<Agreed>,
    /// How many requests of the batch each rank has announced.
    announced: Vec<u32>,
}

#[derive(Debug)]
struct RefusedBatch {
    reason: Arc<str>,
    /// How many requests each rank has yet to announce.
    left: Vec<u32>,
}

impl BatchState {
    fn new(size: usize) -> BatchState {
        BatchState { done: Vec::new(), announced: vec![0; size] }
    }
}

impl Coordinator {
    pub(super) fn new(size: usize, settings: &Settings) -> Coordinator {
        Coordinator {
            size,
            world_ranks: settings.world_ranks.clone(),
            joining: settings.joining,
            round: 0,
            phase: Phase::Negotiating,
            table: ByName::default(),
            batches: HashMap::default(),
            refused_batches: HashMap::default(),
            ready: Vec::new(),
            agreed_before: HashSet::default(),
            gradient_sets: GradientSets::new(size),
            joined: vec![false; size],
            last_joined: None,
            closing: None,
            out: VecDeque::new(),
        }
    }

    /// The next message to send. Call [`Coordinator::flush`] first.
    pub(super) fn pop(&mut self) -> Option<(Target, Message)> {
        self.out.pop_front()
    }

    /// Takes in a message that a member sends to the coordinator.
    pub(super) fn receive(&mut self, from: Rank, message: Message, now: Duration) -> Result<(), Violation> {
        match message {
            Message::Announce { round, requests } => {
                let takes = match &self.phase {
                    Phase::Negotiating => round == self.round,
                    // A rank that has stopped need not wait for the others before it asks for what comes next.
                    Phase::Halting(stopped) if stopped[from.index()].is_some() => round == self.round + 1,
                    _ => false,
                };
                if takes {
                    return requests.into_iter().try_for_each(|announcement| self.announced(from, announcement, now));
                }
                self.check_round(from, round)
            }
            Message::Stopped { round, entered, completed } => {
                if round != self.round {
                    return Err(self.violation(from, format!("it stops round {round}, this is {}", self.round)));
                }
                if self.phase == Phase::Replaying {
                    self.halt();
                }
                self.stopped(from, entered, completed)
            }
            Message::Close { departure } => {
                self.closing.get_or_insert((from, departure));
                if self.phase == Phase::Replaying {
                    self.halt();
                }
                Ok(())
            }
            Message::Reduces { names } => {
                self.gradient_sets.declare(from, names);
                self.refuse_lacking();
                Ok(())
            }
            _ => Err(self.violation(from, "only rank 0 sends this message")),
        }
    }

    /// Puts everything that has been decided since into messages.
    pub(super) fn flush(&mut self) {
        if self.phase != Phase::Negotiating {
            return;
        }
        if !self.ready.is_empty() {
            // The sort is stable: equal priorities keep the order in which they became ready.
            self.ready.sort_by_key(|agreed| std::cmp::Reverse(agreed.item.priority));
            let items = std::mem::take(&mut self.ready);
            self.out.push_back((Target::All, Message::Agreed { round: self.round, items }));
        }
        if self.joined.iter().all(|joined| *joined) {
            self.all_joined();
        }
        if let Some((rank, departure)) = self.closing.clone() {
            let rank = self.world_ranks.get(rank.index()).copied().unwrap_or(rank);
            let cause = format!(
                "Farandole has been shut down: rank {rank} has closed the group. Requests that were not ready on all \
                 ranks by then cannot run any more."
            );
            self.out.push_back((Target::All, Message::Closed { cause: cause.into(), departure }));
            self.phase = Phase::Closed;
        }
    }

    /// Whether a replay of a cycle with these names can begin: nobody has joined or asked for something else.
    pub(super) fn can_replay(&self, is_in_cycle: impl Fn(&str) -> bool) -> bool {
        self.phase == Phase::Negotiating
            && self.closing.is_none()
            && self.ready.is_empty()
            && self.joined.iter().all(|joined| !joined)
            && self.refused_batches.is_empty()
            && self.table.keys().all(|name| is_in_cycle(name))
    }

    /// Begins a replay of the last `items` items of the stream.
    pub(super) fn replay(&mut self, items: u32, hash: u64) {
        // The members announce in the next round what does not run in this one. Nobody has joined now: while somebody
        // has, nothing is replayed.
        self.table.clear();
        self.batches.clear();
        self.phase = Phase::Replaying;
        self.out.push_back((Target::All, Message::Replay { round: self.round, items, hash }));
    }

    /// Which names wait for which ranks.
    pub(super) fn waiting(&self) -> Vec<stall::Waiting> {
        let waiting = |(name, entry): (&Arc<str>, &Entry)| {
            let missing = |rank: &usize| entry.requests[*rank].is_none() && !self.joined[*rank];
            let asked = |rank: &usize| entry.requests[*rank].is_some();
            stall::Waiting {
                name: Arc::clone(name),
                since: entry.since,
                missing: (0..self.size).filter(missing).map(Rank::from).collect(),
                asked: (0..self.size).filter(asked).map(Rank::from).collect(),
                has_run: self.agreed_before.contains(name),
                seen: entry.seen,
            }
        };
        self.table.iter().map(waiting).collect()
    }

    fn violation(&self, from: Rank, what: impl Into<String>) -> Violation {
        Violation { from, what: what.into() }
    }

    fn check_round(&self, from: Rank, round: u32) -> Result<(), Violation> {
        if round <= self.round {
            return Ok(());
        }
        Err(self.violation(from, format!("round {round} has not begun, this is {}", self.round)))
    }

    fn announced(&mut self, from: Rank, announcement: Announcement, now: Duration) -> Result<(), Violation> {
        let Announcement { request, seen, waited } = announcement;
        if self.joined[from.index()] {
            return Err(self.violation(from, format!("it asks for {:?} after it has joined", request.name)));
        }
        if request.collective == Collective::Join {
            self.join(from);
            return Ok(());
        }
        if let Some(batch) = &request.batch
            && let Some(reason) = self.count_in_batch(from, batch)
        {
            self.refuse(from, vec![request.name], reason);
            return Ok(());
        }
        let size = self.size;
        let name = Arc::clone(&request.name);
        let entry = self.table.entry(Arc::clone(&name)).or_insert_with(|| Entry {
            requests: vec![None; size],
            announced: 0,
            seen: 0,
            since: now,
        });
        entry.since = entry.since.min(now.saturating_sub(waited));
        if entry.requests[from.index()].is_some() {
            return Err(self.violation(from, format!("it announces {name:?} twice")));
        }
        entry.requests[from.index()] = Some(request);
        entry.announced += 1;
        entry.seen = entry.seen.max(seen);
        if self.is_complete(&name) {
            self.complete(&name);
        } else {
            self.refuse_if_lacking(&name);
        }
        Ok(())
    }

    /// Whether every rank has announced the name or has joined.
    fn is_complete(&self, name: &Arc<str>) -> bool {
        let entry = &self.table[name];
        entry.announced == self.size
            || entry.requests.iter().zip(&self.joined).all(|(request, joined)| *joined || request.is_some())
    }

    /// Every rank that has to has announced this name: decides.
    fn complete(&mut self, name: &Arc<str>) {
        let Entry { requests, seen, .. } = self.table.remove(name).expect("a complete name is in the table");
        let allowed = match self.joining {
            Joining::Everything => Ok(()),
            Joining::LikeHorovod => refuse_for_horovod(&requests),
        };
        match allowed.and_then(|()| agree_on(&requests, &self.world_ranks)) {
            Ok(item) => self.agreed(Agreed { item: Arc::new(item), seen }),
            Err(reason) => {
                let reason: Arc<str> = reason.into();
                self.refuse_announcers(&requests, &reason);
                self.refuse_batches(&requests, &reason);
            }
        }
    }

    /// Refuses what waits for a gradient that a rank does not have.
    fn refuse_lacking(&mut self) {
        if self.gradient_sets.are_equal() {
            return;
        }
        let mut names: Vec<Arc<str>> = self.table.keys().cloned().collect();
        names.sort();
        names.iter().for_each(|name| self.refuse_if_lacking(name));
    }

    /// Refuses a name that waits for a gradient that a rank does not have.
    fn refuse_if_lacking(&mut self, name: &Arc<str>) {
        if self.gradient_sets.are_equal() {
            return;
        }
        // Refusing a batch may have taken it away.
        let Some(entry) = self.table.get(name) else { return };
        let is_missing = |rank: &Rank| entry.requests[rank.index()].is_none() && !self.joined[rank.index()];
        let lacking: Vec<Rank> = self.gradient_sets.lacking(name).into_iter().filter(is_missing).collect();
        if lacking.is_empty() {
            return;
        }
        let asked: Vec<Rank> = (0..self.size).filter(|rank| entry.requests[*rank].is_some()).map(Rank::from).collect();
        let reason: Arc<str> = stall::no_gradient(&lacking, &asked, &self.world_ranks).into();
        let Entry { requests, .. } = self.table.remove(name).expect("it was there just now");
        self.refuse_announcers(&requests, &reason);
        self.refuse_batches(&requests, &reason);
    }

    fn agreed(&mut self, agreed: Agreed) {
        if self.agreed_before.len() >= NAMES_REMEMBERED {
            self.agreed_before.clear();
        }
        self.agreed_before.insert(Arc::clone(&agreed.item.name));
        let Some(batch) = &agreed.item.batch else {
            self.ready.push(agreed);
            return;
        };
        let key = (Arc::clone(&batch.name), batch.members);
        let size = self.size;
        // A batch of which more is announced than it has members is let through and then begins anew.
        let state = self.batches.entry(key.clone()).or_insert_with(|| BatchState::new(size));
        state.done.push(agreed);
        if state.done.len() >= key.1 as usize {
            let state = self.batches.remove(&key).expect("it was there just now");
            self.ready.extend(state.done);
        }
    }

    fn join(&mut self, rank: Rank) {
        self.joined[rank.index()] = true;
        self.last_joined = Some(rank);
        // It announces no more of any batch.
        self.refused_batches.values_mut().for_each(|refused| refused.left[rank.index()] = 0);
        self.refused_batches.retain(|_, refused| refused.left.iter().any(|left| *left > 0));
        let mut complete: Vec<Arc<str>> = self.table.keys().filter(|name| self.is_complete(name)).cloned().collect();
        // The table has no order of its own; that of the first announcements is the natural one, names break ties.
        complete.sort_by(|a, b| (self.table[a].since, a).cmp(&(self.table[b].since, b)));
        for name in complete {
            // Refusing a batch may have taken it away.
            if self.table.contains_key(&name) {
                self.complete(&name);
            }
        }
    }

    /// Everybody has joined, and so everything announced is complete, but for batches that lack members.
    fn all_joined(&mut self) {
        let reason: Arc<str> = "All ranks have joined before this batch of requests was complete.".into();
        let states: Vec<BatchState> = self.batches.drain().map(|(_, state)| state).collect();
        for agreed in states.iter().flat_map(|state| &state.done) {
            self.refuse_item(&agreed.item, &reason);
        }
        let last = self.last_joined.take().expect("somebody was the last to join");
        self.joined.fill(false);
        self.out.push_back((Target::All, Message::Joined { last }));
    }

    /// Counts a request of a batch. Gives the reason if it belongs to a batch that has been refused already.
    fn count_in_batch(&mut self, from: Rank, batch: &Batch) -> Option<Arc<str>> {
        let key = (Arc::clone(&batch.name), batch.members);
        if let Some(refused) = self.refused_batches.get_mut(&key).filter(|refused| refused.left[from.index()] > 0) {
            refused.left[from.index()] -= 1;
            let reason = Arc::clone(&refused.reason);
            if refused.left.iter().all(|left| *left == 0) {
                self.refused_batches.remove(&key);
            }
            return Some(reason);
        }
        let size = self.size;
        self.batches.entry(key).or_insert_with(|| BatchState::new(size)).announced[from.index()] += 1;
        None
    }

    /// One request of a batch was refused, so all are: at once what has been announced, the rest when it is announced.
    /// `requests` is what the ranks asked for; they need not mean the same batch.
    fn refuse_batches(&mut self, requests: &[Option<Request>], reason: &Arc<str>) {
        let batch_of = |request: &Option<Request>| request.as_ref().and_then(|request| request.batch.clone());
        for batch in requests.iter().filter_map(batch_of) {
            let key = (Arc::clone(&batch.name), batch.members);
            let Some(state) = self.batches.remove(&key) else { continue };
            for agreed in state.done {
                self.refuse_item(&agreed.item, reason);
            }
            let of_batch = |entry: &Entry| entry.requests.iter().flatten().any(|r| r.batch.as_ref() == Some(&batch));
            let mut names: Vec<Arc<str>> =
                self.table.iter().filter(|(_, entry)| of_batch(entry)).map(|(name, _)| Arc::clone(name)).collect();
            names.sort();
            for name in names {
                let entry = self.table.remove(&name).expect("the name was in the table just now");
                self.refuse_announcers(&entry.requests, reason);
            }
            let left = |(request, announced): (&Option<Request>, u32)| match batch_of(request) {
                Some(of_rank) if of_rank == batch => batch.members.saturating_sub(announced),
                _ => 0,
            };
            let left: Vec<u32> = requests.iter().zip(state.announced).map(left).collect();
            if left.iter().any(|left| *left > 0) {
                self.refused_batches.insert(key, RefusedBatch { reason: Arc::clone(reason), left });
            }
        }
    }

    fn refuse_announcers(&mut self, requests: &[Option<Request>], reason: &Arc<str>) {
        for (rank, request) in requests.iter().enumerate() {
            if let Some(request) = request {
                self.refuse(Rank::from(rank), vec![Arc::clone(&request.name)], Arc::clone(reason));
            }
        }
    }

    fn refuse_item(&mut self, item: &Item, reason: &Arc<str>) {
        for rank in (0..self.size).map(Rank::from).filter(|rank| !item.joined.contains(rank)) {
            self.refuse(rank, vec![Arc::clone(&item.name)], Arc::clone(reason));
        }
    }

    fn refuse(&mut self, rank: Rank, names: Vec<Arc<str>>, reason: Arc<str>) {
        self.out.push_back((Target::One(rank), Message::Refuse { names, reason }));
    }

    fn halt(&mut self) {
        self.phase = Phase::Halting(vec![None; self.size]);
        self.out.push_back((Target::All, Message::Halt { round: self.round }));
    }

    fn stopped(&mut self, from: Rank, entered: u64, completed: u64) -> Result<(), Violation> {
        let Phase::Halting(stopped) = &mut self.phase else {
            return Err(self.violation(from, "it stops a replay that has not begun"));
        };
        if stopped[from.index()].replace((entered, completed)).is_some() {
            return Err(self.violation(from, "it stops twice"));
        }
        let Some(stopped) = stopped.iter().copied().collect::<Option<Vec<_>>>() else { return Ok(()) };
        let until = stopped.iter().map(|(entered, _)| *entered).min().expect("a group has ranks");
        if let Some(rank) = stopped.iter().position(|(_, completed)| *completed > until) {
            let completed = stopped[rank].1;
            let what = format!("it has finished {completed} buckets although a rank has entered only {until}");
            return Err(self.violation(Rank::from(rank), what));
        }
        self.round += 1;
        self.phase = Phase::Negotiating;
        self.out.push_back((Target::All, Message::Resume { round: self.round, until }));
        Ok(())
    }
}
