//! The thread behind a [`super::Server`]: one poll loop over the listener, all connections and the owner's orders.
//!
//! A connection is a *guest*. It comes to the door, where it shakes hands and says that it has arrived; sits at the
//! table until the epoch is complete; and then goes, or stays as a *member*, whose heartbeats are answered and whose
//! silence is noticed. What is done about a failure is a *rule*: a server for the whole job looks closer (`judge`) and
//! tells everybody; one for a part tells its owner.
//!
//! **Invariant:** whoever slept judges nobody. All moments here are awake time (`farandole_transport::awake`): while
//! this process is stopped no limit comes nearer, neither a member's silence nor a guest's patience.
//!
//! **Invariant:** nothing here blocks but the poll. A stranger costs a descriptor for [`DOOR_PATIENCE`] and 64 bytes;
//! when there are more than [`MOST_AT_DOOR`] the one who has stood there longest goes, so that an honest rank, which
//! needs one round trip, gets in.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{AwakeClock, Key};
use rustix::event::{PollFd, PollFlags, poll};

use super::MOST_BLOB_BYTES;
use super::address::{Listener, Stream};
use super::judge::{Judgement, Member, host_name, judge};
use super::message::{Arrival, Down, Keeper, ProcessState, Stay, Up};
use super::server::{Event, OnEvent, Order, Orders};
use super::table::{GuestId, Seat, Table};
use crate::channel::{Polled, Purpose, Received};
use crate::environment;
use crate::live::{Board, State};
use crate::verdict::{Verdict, VerdictKind};

/// An honest rank needs one round trip to arrive; on a crowded machine it may lose the processor for a second.
const DOOR_PATIENCE: Duration = Duration::from_secs(5);

/// So many may stand at the door at once.
const MOST_AT_DOOR: usize = 256;

/// How long a guest that has been told the last thing has to take it, and members to go when the server closes.
const PARTING_PATIENCE: Duration = Duration::from_millis(500);

/// The loop turns at least this often while there are guests, to notice that it was itself stopped.
const TURN_AT_LEAST: Duration = Duration::from_millis(500);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A neighbour that was asked to look at a process has this long to answer.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);

/// A rank that blames a peer is believed after this time, in which the peer's own end may come to light.
const BLAME_PATIENCE: Duration = Duration::from_secs(1);

/// The owner of a part has this long to find out who is missing elsewhere: one question to every host, and the answers.
const OWNER_PATIENCE: Duration = Duration::from_secs(2);

/// What an arrival needs besides the rank's message: numbers, and the name of a host.
const ARRIVAL_BYTES: usize = 4096;

/// What is done when a epoch is complete or a rank fails.
pub(super) enum Rule {
    /// All seats are here: everything is decided here, and written up for onlookers.
    Whole(Option<Arc<Board>>),
    /// The owner decides.
    Part(OnEvent),
}

/// The state of the server's thread.
pub(super) struct Reception {
    listener: Listener,
    key: Key,
    rule: Rule,
    orders: Arc<Orders>,
    keeper: Keeper,
    table: Table,
    guests: BTreeMap<GuestId, Guest>,
    next_guest: GuestId,
    /// Epochs that were completed.
    epoch: u64,
    /// The epochs before this one have their verdict, and get no other.
    judged_before: u64,
    /// The first blame of the current epoch, and when it becomes a verdict.
    blame: Option<(Instant, Blame)>,
    accept_again: Option<Instant>,
    closing: Option<Instant>,
}

struct Blame {
    by: Rank,
    peer: Option<Rank>,
    cause: String,
}

struct Guest {
    channel: Polled<Stream>,
    place: Place,
}

enum Place {
    /// It has not arrived.
    Door { until: Instant },
    /// It waits for the others.
    Table { rank: Rank, until: Instant, stay: Stay, overdue: Overdue },
    /// It stays.
    Member(Member),
    /// It has been told the last thing.
    Going { until: Instant },
}

/// Whether a rank at the table has waited for as long as it wanted to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overdue {
    No,
    /// The owner has been asked who is missing.
    Asked,
}

impl Reception {
    pub(super) fn new(listener: Listener, table: Table, key: Key, rule: Rule, orders: Arc<Orders>) -> Reception {
        let host = std::env::var(environment::HOST).unwrap_or_else(|_| environment::host_identity());
        Reception {
            listener,
            key,
            rule,
            orders,
            keeper: Keeper { rank: None, pid: std::process::id(), host },
            table,
            guests: BTreeMap::new(),
            next_guest: 0,
            epoch: 0,
            judged_before: 0,
            blame: None,
            accept_again: None,
            closing: None,
        }
    }

    /// Turns the loop until the server is dropped.
    pub(super) fn run(mut self) {
        let mut clock = AwakeClock::new(Instant::now());
        loop {
            let at_most = self.longest_wait(clock.last());
            let ready = self.wait(at_most);
            let limits = self.members().filter_map(|(_, member)| member.silence).min();
            clock = clock.judging_by(limits.unwrap_or_default());
            let now = clock.look(Instant::now(), at_most.unwrap_or(Duration::MAX));
            for order in self.orders.take() {
                self.obey(order, now);
            }
            self.accept(now);
            for guest in ready {
                self.attend(guest, now);
            }
            self.look_at_clocks(now);
            self.flush();
            if self.closing.is_some_and(|until| now >= until || self.members().next().is_none()) {
                return;
            }
        }
    }

    /// How long nothing can be due; for ever, if nobody is there.
    fn longest_wait(&self, now: Instant) -> Option<Duration> {
        let due = self.next_due().map(|due| due.saturating_duration_since(now));
        if self.guests.is_empty() { due } else { Some(due.unwrap_or(TURN_AT_LEAST).min(TURN_AT_LEAST)) }
    }

    /// Waits until something happens or is due; says which guests have something to say.
    fn wait(&mut self, at_most: Option<Duration>) -> Vec<GuestId> {
        let accepting = self.closing.is_none() && self.accept_again.is_none();
        let mut fds = vec![
            PollFd::new(self.orders.bell(), PollFlags::IN),
            PollFd::new(&self.listener, if accepting { PollFlags::IN } else { PollFlags::empty() }),
        ];
        fds.extend(self.guests.values().map(|guest| {
            let writing = if guest.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(guest.channel.fd(), PollFlags::IN | writing)
        }));
        // A millisecond more, lest the loop turns several times just before something is due.
        let timeout = at_most.map(|timeout| timeout + Duration::from_millis(1)).and_then(|t| t.try_into().ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = self.guests.keys().zip(&fds[2..]).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(guest, _)| *guest).collect()
    }

    fn next_due(&self) -> Option<Instant> {
        let guests = self.guests.values().filter_map(|guest| match &guest.place {
            Place::Door { until } | Place::Table { until, .. } | Place::Going { until } => Some(*until),
            Place::Member(member) => member.due(),
        });
        let blame = self.blame.as_ref().map(|(due, _)| *due);
        guests.chain(blame).chain(self.accept_again).chain(self.closing).min()
    }

    fn members(&self) -> impl Iterator<Item = (GuestId, &Member)> {
        self.guests.iter().filter_map(|(id, guest)| match &guest.place {
            Place::Member(member) => Some((*id, member)),
            _ => None,
        })
    }

    fn accept(&mut self, now: Instant) {
        if self.closing.is_some() || self.accept_again.is_some_and(|again| now < again) {
            return;
        }
        self.accept_again = None;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: Stream, now: Instant) {
        let Ok(channel) = Polled::accept(stream, &self.key, Purpose::Rendezvous) else { return };
        let channel = channel.with_most_bytes(MOST_BLOB_BYTES + ARRIVAL_BYTES);
        let at_door = |guest: &&Guest| matches!(guest.place, Place::Door { .. });
        if self.guests.values().filter(at_door).count() >= MOST_AT_DOOR {
            let oldest = self.guests.iter().find(|(_, guest)| at_door(guest)).map(|(id, _)| *id);
            oldest.and_then(|id| self.guests.remove(&id));
        }
        self.guests.insert(self.next_guest, Guest { channel, place: Place::Door { until: now + DOOR_PATIENCE } });
        self.next_guest += 1;
    }

    /// Listens to a guest until it has nothing more to say.
    fn attend(&mut self, id: GuestId, now: Instant) {
        while let Some(guest) = self.guests.get_mut(&id) {
            match guest.channel.receive() {
                Ok(Received::Message(message)) => self.hear(id, &message, now),
                Ok(Received::NothingYet) => return,
                Ok(Received::Closed) => self.part(id, "its connection was closed without a goodbye".into()),
                Err(error) => self.part(id, format!("its connection broke: {error}")),
            }
        }
    }

    fn hear(&mut self, id: GuestId, message: &[u8], now: Instant) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        match (&mut guest.place, Up::decode(message)) {
            (Place::Door { .. }, Some(Up::Arrival(arrival))) => self.arrive(id, arrival, now),
            (Place::Member(member), Some(up)) => {
                member.hear(now);
                let (rank, epoch) = (member.rank, member.epoch);
                match up {
                    Up::Heartbeat => self.say(id, &Down::Pulse),
                    Up::Goodbye => {
                        guest.place = Place::Going { until: now };
                        self.write_up(|board| board.ended(rank.0, State::Left, ""));
                        self.report(Event::Left { rank });
                    }
                    Up::Blame { peer, cause } => self.take_blame(Blame { by: rank, peer, cause }, epoch, now),
                    Up::Seen { rank: silent, state } => self.take_sight(silent, epoch, state, now),
                    Up::Sample(sample) => self.show(rank, sample, now),
                    Up::Arrival(_) => {}
                }
            }
            (Place::Going { .. }, _) => {}
            (_, _) => {
                let why = "the request has another form: install the same farandole everywhere";
                self.dismiss(id, &Down::Refused(why.into()), now);
            }
        }
    }

    fn arrive(&mut self, id: GuestId, arrival: Arrival, now: Instant) {
        let Some(guest) = self.guests.get(&id) else { return };
        let rank = Rank(guest.channel.caller().unwrap_or(u32::MAX));
        let Arrival { job, ranks, patience, stay, blob } = arrival;
        let kept_out = self.members().find_map(|(_, member)| member.keeps_out(rank, &stay));
        if let Some(why) = kept_out {
            return self.dismiss(id, &Down::Refused(why), now);
        }
        if let Err(why) = self.table.sit_down(rank, job, ranks, Seat { guest: id, blob }) {
            return self.dismiss(id, &Down::Refused(why), now);
        }
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if let Stay::Yes { pid, host, .. } = &stay
            && (*pid, host) == (self.keeper.pid, &self.keeper.host)
        {
            self.keeper.rank = Some(rank);
        }
        guest.place = Place::Table { rank, until: now + patience, stay, overdue: Overdue::No };
        if self.table.is_full() {
            let blobs = self.table.blobs();
            match &self.rule {
                Rule::Whole(_) => self.complete(blobs.into_iter().map(|(_, blob)| blob).collect(), now),
                Rule::Part(on_event) => on_event(Event::Gathered { epoch: self.epoch, blobs }),
            }
        }
    }

    /// Everybody at the table gets all messages, and goes or stays.
    fn complete(&mut self, blobs: Vec<Vec<u8>>, now: Instant) {
        let answer = Down::Everybody { keeper: self.keeper.clone(), blobs: Arc::new(blobs) };
        let answer = answer.encode();
        for id in self.table.clear() {
            let Some(guest) = self.guests.get_mut(&id) else { continue };
            let Place::Table { rank, stay, .. } = &guest.place else { continue };
            let (rank, epoch) = (*rank, self.epoch);
            let _ = guest.channel.queue(&answer);
            guest.place = match stay.clone() {
                Stay::No => Place::Going { until: now + PARTING_PATIENCE },
                Stay::Yes { silence, pid, host } => {
                    if let Rule::Whole(Some(board)) = &self.rule {
                        board.started(rank.0, pid, Some(host_name(&host)));
                    }
                    let (asked, look_again) = (Vec::new(), None);
                    Place::Member(Member { rank, pid, host, epoch, silence, heard: now, asked, look_again })
                }
            };
        }
        self.epoch += 1;
        self.blame = None;
    }

    fn obey(&mut self, order: Order, now: Instant) {
        match order {
            Order::Tell(blobs) => self.complete(blobs, now),
            Order::Refuse(missing) => self.refuse(missing, now),
            Order::Count => self.report(Event::Missing { epoch: self.epoch, ranks: self.table.missing() }),
            Order::Pronounce(verdict, Some(epoch)) => self.pronounce(&verdict, Some(epoch)),
            Order::Pronounce(verdict, None) => {
                self.turn_all_away(&Down::Refused(verdict.to_string()), now);
                self.pronounce(&verdict, None);
            }
            Order::Close => {
                self.clear_the_table(now);
                let members: Vec<GuestId> = self.members().map(|(id, _)| id).collect();
                for id in members {
                    self.say(id, &Down::Goodbye);
                }
                self.closing = Some(now + PARTING_PATIENCE);
            }
        }
    }

    /// The server closes while ranks wait. If they have met here before they are early for the next epoch: they go
    /// without a word and come again to whoever opens then. Else the host of the meeting has given up, and nobody will
    /// open.
    fn clear_the_table(&mut self, now: Instant) {
        if self.epoch == 0 {
            let missing = self.table.missing();
            self.turn_all_away(&Down::Missing(missing), now);
        }
        for id in self.table.clear() {
            self.guests.remove(&id);
        }
    }

    /// Tells those who have waited long enough who is missing; the others go on waiting.
    fn refuse(&mut self, missing: Vec<Rank>, now: Instant) {
        let answer = Down::Missing(missing);
        let overdue = self.guests.iter().filter_map(|(id, guest)| match guest.place {
            Place::Table { rank, overdue: Overdue::Asked, .. } => Some((*id, rank)),
            _ => None,
        });
        for (id, rank) in overdue.collect::<Vec<_>>() {
            self.leave_the_table(id, rank);
            self.dismiss(id, &answer, now);
        }
    }

    /// A rank does not wait any more. An owner that was told of a full table has to know.
    fn leave_the_table(&mut self, id: GuestId, rank: Rank) {
        let was_full = self.table.is_full();
        self.table.stand_up(rank, id);
        if was_full && !self.table.is_full() {
            self.report(Event::Withdrawn { epoch: self.epoch, rank });
        }
    }

    /// A rank at the table has waited for as long as it wanted to. The owner of a part may know more about who is
    /// missing.
    fn outwait(&mut self, id: GuestId, now: Instant) {
        let missing = self.table.missing();
        let Some(Guest { place: Place::Table { rank, until, overdue, .. }, .. }) = self.guests.get_mut(&id) else {
            return;
        };
        if matches!(self.rule, Rule::Part(_)) && *overdue == Overdue::No {
            (*until, *overdue) = (now + OWNER_PATIENCE, Overdue::Asked);
            return self.report(Event::Overdue { epoch: self.epoch, missing });
        }
        let rank = *rank;
        self.leave_the_table(id, rank);
        self.dismiss(id, &Down::Missing(missing), now);
    }

    fn turn_all_away(&mut self, answer: &Down, now: Instant) {
        for id in self.table.clear() {
            self.dismiss(id, answer, now);
        }
    }

    /// Does what is due by now.
    fn look_at_clocks(&mut self, now: Instant) {
        let due: Vec<GuestId> = self
            .guests
            .iter()
            .filter(|(_, guest)| match &guest.place {
                Place::Door { until } | Place::Table { until, .. } | Place::Going { until } => *until <= now,
                Place::Member(member) => member.due().is_some_and(|due| due <= now),
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            match self.guests.get(&id).map(|guest| &guest.place) {
                Some(Place::Member(_)) => self.miss(id, now),
                Some(Place::Table { .. }) => self.outwait(id, now),
                // One who is on its way out and has taken everything closes its connection, or we do; so for a
                // stranger.
                Some(Place::Door { .. }) => drop(self.guests.remove(&id)),
                Some(Place::Going { .. }) => self.see_off(id),
                None => {}
            }
        }
        if self.blame.as_ref().is_some_and(|(due, _)| *due <= now)
            && let Some((_, blame)) = self.blame.take()
        {
            self.believe(blame, now);
        }
    }

    /// Flushes and forgets a guest that is going.
    fn see_off(&mut self, id: GuestId) {
        if let Some(mut guest) = self.guests.remove(&id) {
            let _ = guest.channel.flush();
        }
    }

    fn flush(&mut self) {
        for guest in self.guests.values_mut().filter(|guest| guest.channel.wants_write()) {
            // A connection that takes nothing more will be heard closing.
            let _ = guest.channel.flush();
        }
    }

    fn say(&mut self, id: GuestId, down: &Down) {
        if let Some(guest) = self.guests.get_mut(&id) {
            let _ = guest.channel.queue(&down.encode());
        }
    }

    /// Tells a guest the last thing. It has a moment to take it and to close its side.
    fn dismiss(&mut self, id: GuestId, answer: &Down, now: Instant) {
        self.say(id, answer);
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.place = Place::Going { until: now + PARTING_PATIENCE };
        }
    }

    /// A guest's connection has ended.
    fn part(&mut self, id: GuestId, how: String) {
        let Some(guest) = self.guests.remove(&id) else { return };
        match guest.place {
            Place::Door { .. } | Place::Going { .. } => {}
            Place::Table { rank, .. } => self.leave_the_table(id, rank),
            Place::Member(member) => match &self.rule {
                Rule::Whole(_) => {
                    self.write_up(|board| board.ended(member.rank.0, State::Ended, &*how));
                    let verdict = member.verdict(VerdictKind::Gone).saying(how);
                    self.pronounce_in(member.epoch, &verdict);
                }
                Rule::Part(on_event) => on_event(Event::Lost { rank: member.rank, how }),
            },
        }
    }

    fn report(&self, event: Event) {
        if let Rule::Part(on_event) = &self.rule {
            on_event(event);
        }
    }

    fn write_up(&self, write: impl FnOnce(&Board)) {
        if let Rule::Whole(Some(board)) = &self.rule {
            write(board);
        }
    }

    fn show(&self, rank: Rank, sample: Vec<u8>, now: Instant) {
        self.write_up(|board| board.sampled(rank.0, &sample, now));
        self.report(Event::Sampled { rank, sample });
    }

    /// A member has been silent for too long.
    fn miss(&mut self, id: GuestId, now: Instant) {
        let Some(Guest { place: Place::Member(silent), .. }) = self.guests.get_mut(&id) else { return };
        let since = now.saturating_duration_since(silent.heard);
        let allowed = silent.silence.unwrap_or(since);
        silent.look_again = Some(now + LOOK_PATIENCE.min(allowed));
        let silent = silent.clone();
        match &self.rule {
            Rule::Part(on_event) => {
                on_event(Event::Silent { rank: silent.rank, since });
                self.stop_looking(id, now + allowed);
            }
            Rule::Whole(_) if silent.epoch < self.judged_before => self.stop_looking(id, now + allowed),
            Rule::Whole(_) if silent.host == self.keeper.host => {
                self.stop_looking(id, now + allowed);
                let verdict = silent.verdict_on(ProcessState::of(silent.pid), now);
                self.pronounce_in(silent.epoch, &verdict);
            }
            Rule::Whole(_) => {
                let neighbours = self.members().filter(|(other, member)| *other != id && member.host == silent.host);
                match judge(&silent, neighbours, now) {
                    Judgement::Ask(neighbour) => {
                        if let Some(Guest { place: Place::Member(silent), .. }) = self.guests.get_mut(&id) {
                            silent.asked.push(neighbour);
                        }
                        self.say(neighbour, &Down::Look { rank: silent.rank, pid: silent.pid });
                    }
                    Judgement::Pronounce(verdict) => {
                        self.stop_looking(id, now + allowed);
                        self.pronounce_in(silent.epoch, &verdict);
                    }
                }
            }
        }
    }

    /// Enough was said about a silent member for now.
    fn stop_looking(&mut self, id: GuestId, until: Instant) {
        if let Some(Guest { place: Place::Member(silent), .. }) = self.guests.get_mut(&id) {
            silent.look_again = Some(until);
        }
    }

    /// A neighbour has looked at the process of a silent member.
    fn take_sight(&mut self, rank: Rank, epoch: u64, state: ProcessState, now: Instant) {
        let silent =
            self.members().map(|(_, member)| member).find(|member| (member.rank, member.epoch) == (rank, epoch));
        // It may have been heard meanwhile.
        if let Some(silent) = silent.filter(|silent| !silent.asked.is_empty()).cloned() {
            self.pronounce_in(epoch, &silent.verdict_on(state, now));
        }
    }

    fn take_blame(&mut self, blame: Blame, epoch: u64, now: Instant) {
        match &self.rule {
            Rule::Part(on_event) => {
                on_event(Event::Blamed { by: blame.by, peer: blame.peer, cause: blame.cause });
            }
            Rule::Whole(_) if self.blame.is_none() && epoch >= self.judged_before && epoch + 1 == self.epoch => {
                self.blame = Some((now + BLAME_PATIENCE, blame));
            }
            Rule::Whole(_) => {}
        }
    }

    /// Nothing better has come to light than what a rank says of its peer.
    fn believe(&mut self, blame: Blame, now: Instant) {
        let epoch = self.epoch.saturating_sub(1);
        let members = self.members().map(|(_, member)| member).filter(|member| member.epoch == epoch);
        let peer = members.into_iter().find(|member| Some(member.rank) == blame.peer);
        let seen =
            peer.filter(|peer| peer.host == self.keeper.host).and_then(|peer| match ProcessState::of(peer.pid) {
                ProcessState::Alive => None,
                state => Some(peer.verdict_on(state, now)),
            });
        let verdict = seen.unwrap_or_else(|| Verdict::new(VerdictKind::Other).on_rank(blame.by).saying(blame.cause));
        self.pronounce_in(epoch, &verdict);
    }

    /// The first verdict on a epoch, to its members.
    fn pronounce_in(&mut self, epoch: u64, verdict: &Verdict) {
        if epoch < self.judged_before {
            return;
        }
        self.judged_before = epoch + 1;
        self.blame = None;
        self.pronounce(verdict, Some(epoch));
    }

    fn pronounce(&mut self, verdict: &Verdict, epoch: Option<u64>) {
        let down = Down::Verdict(verdict.clone()).encode();
        for guest in self.guests.values_mut() {
            if let Place::Member(member) = &guest.place
                && epoch.is_none_or(|epoch| member.epoch == epoch)
            {
                let _ = guest.channel.queue(&down);
            }
        }
    }
}
