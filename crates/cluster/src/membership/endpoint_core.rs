//! The state behind an [`super::Endpoint`]: the state machine, the connections, and whom to call when.
//!
//! Of two members the one with the higher number connects to the other, and a candidate connects to everybody. A
//! connection that breaks is made again by the same side. There may be two to one member for a while, if a candidate
//! and somebody who was let in meanwhile call each other; messages go over the older one, and the member has ended when
//! both have.
//!
//! The state has no thread, no clock and no sockets of its own: a driver gives it the time, commands and the
//! connections that are ready, and it makes channels by a [`Network`]. In a process the driver is `endpoint_thread`.
//!
//! **Invariant:** no call waits. Nothing is read before this process has its number, so everything that others say
//! meets a state machine.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farandole_plan::membership::{
    Loss, LossEvidence, MemberId, MemberMessage, Membership, MembershipEffect, MembershipInput, MembershipStart,
};

use super::connection::{Connection, Stage, Target, judge_end};
use super::endpoint::{Command, EndpointOptions, LossNotice, Outcome, Shared};
use super::network::{Call, MemberChannel, Network};
use super::record::{self, Recorder};
use super::wire::{Packet, Whereabouts};
use crate::channel::Received;

/// Between processes that are well a handshake is one round trip; on a crowded machine one of them may lose the
/// processor for a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Between attempts to connect to somebody: soon enough for one that is just starting, and no burden.
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// The driver turns the loop at least this often, to notice that this process was stopped.
const TURN_AT_LEAST: Duration = Duration::from_millis(500);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Numbers the connections of an endpoint in the order in which they began.
pub type ConnectionId = u64;

/// The state of an endpoint.
pub struct EndpointCore<N: Network> {
    options: EndpointOptions,
    contact: Arc<[u8]>,
    pub(super) network: N,
    shared: Arc<Shared>,
    /// Awake time is counted from here.
    began: Instant,
    machine: Option<Membership>,
    recorder: Option<Recorder>,
    seeds: Vec<Vec<u8>>,
    pub(super) connections: BTreeMap<ConnectionId, Connection<N::Channel>>,
    next_id: ConnectionId,
    /// When somebody is dialed again, and how often it was.
    dialed: BTreeMap<Target, (Instant, usize)>,
    /// When to look whom to dial; `None` while everybody is connected.
    next_dial: Option<Instant>,
    accept_again: Option<Instant>,
}

/// What is known of the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Nothing: it runs, or cannot be watched.
    Runs,
    /// The kernel says that it has ended.
    HasEnded,
}

/// Whether an endpoint takes part in anything after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It does.
    More,
    /// It has left; [`EndpointCore::say_goodbye`] sends the rest.
    Nothing,
}

impl<N: Network> EndpointCore<N> {
    /// An endpoint that listens at `contact` by the network, and has no number yet. Awake time begins at `began`.
    pub fn new(
        options: EndpointOptions,
        contact: Vec<u8>,
        network: N,
        shared: Arc<Shared>,
        began: Instant,
    ) -> EndpointCore<N> {
        EndpointCore {
            options,
            contact: contact.into(),
            network,
            shared,
            began,
            machine: None,
            recorder: None,
            seeds: Vec::new(),
            connections: BTreeMap::new(),
            next_id: 0,
            dialed: BTreeMap::new(),
            next_dial: None,
            accept_again: None,
        }
    }

    /// Does what the commands say, and what the connections that are ready and the time demand.
    pub fn turn(&mut self, now: Instant, commands: Vec<Command>, ready: &[(ConnectionId, Process)]) -> After {
        if self.obey(commands, now) == After::Nothing {
            return After::Nothing;
        }
        if self.machine.is_some() {
            self.accept(now);
            for (connection, process) in ready {
                self.attend(*connection, now);
                if *process == Process::HasEnded {
                    // All that it had sent was there before.
                    self.part(*connection, Ok(()), now);
                }
            }
            self.look_at_clocks(now);
            if self.next_dial.is_some_and(|next| next <= now) {
                self.next_dial = self.dial(now);
            }
        }
        After::More
    }

    /// Whether connections of others are accepted now.
    pub fn is_listening(&self) -> bool {
        self.machine.is_some() && self.accept_again.is_none()
    }

    /// How long nothing can be due.
    pub fn longest_wait(&self, now: Instant) -> Duration {
        let machine = self.machine.as_ref().and_then(Membership::due).map(|due| self.began + due);
        let handshakes = self.connections.values().filter_map(|connection| {
            (!connection.channel.is_established()).then_some(connection.began + HANDSHAKE_TIMEOUT)
        });
        let due = machine.into_iter().chain(handshakes).chain(self.next_dial).chain(self.accept_again).min();
        due.map_or(TURN_AT_LEAST, |due| due.saturating_duration_since(now).min(TURN_AT_LEAST))
    }

    fn obey(&mut self, commands: Vec<Command>, now: Instant) -> After {
        for command in commands {
            match command {
                Command::Found { me, generation } => {
                    let limits = self.options.limits;
                    self.begin(me, MembershipStart::Founder { me, generation, limits }, Vec::new(), now);
                }
                Command::Join { me, seeds } => {
                    let (contact, limits) = (Arc::clone(&self.contact), self.options.limits);
                    self.begin(me, MembershipStart::Candidate { me, contact, limits }, seeds, now);
                }
                Command::Come(payload) => {
                    self.drive(now, MembershipInput::Come(payload.into()));
                    if self.machine.as_ref().is_none_or(Membership::is_over) {
                        self.shared.give_up();
                    }
                }
                Command::GiveUp => self.give_up(now),
                Command::Report { member, loss, cause } => {
                    let evidence = if loss == Loss::Certain { LossEvidence::Dead } else { LossEvidence::Doubted };
                    self.learn(member, evidence, &cause, now);
                }
                Command::Leave => {
                    self.drive(now, MembershipInput::Leave);
                    return After::Nothing;
                }
            }
        }
        After::More
    }

    /// Begins with a new number, and with new connections.
    fn begin(&mut self, me: MemberId, start: MembershipStart, seeds: Vec<Vec<u8>>, now: Instant) {
        let time = self.time(now);
        self.connections.clear();
        self.dialed.clear();
        let create = |folder: &PathBuf| {
            let folder_name = folder.display();
            Recorder::create(folder, me)
                .map_err(|error| log::warn!("{folder_name}: decisions are not recorded: {error}"))
                .ok()
        };
        self.recorder = self.options.record_in.as_ref().and_then(create);
        self.record(|| record::encode_start(time, &start));
        (self.machine, self.seeds, self.next_dial) = (Some(start.begin(time)), seeds, Some(now));
    }

    /// Takes part no more, unless the next generation has just come.
    fn give_up(&mut self, now: Instant) {
        if self.machine.as_ref().is_none_or(Membership::is_at_boundary) {
            self.drive(now, MembershipInput::Leave);
            self.shared.give_up();
        }
    }

    fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    fn record(&mut self, record: impl FnOnce() -> Vec<u8>) {
        if let Some(recorder) = &mut self.recorder
            && !recorder.add(&record())
        {
            self.recorder = None;
        }
    }

    fn learn(&mut self, member: MemberId, evidence: LossEvidence, cause: &str, now: Instant) {
        self.drive(now, MembershipInput::Learn { member, evidence, cause: cause.into() });
    }

    /// Tells the state machine something, and does what it says.
    fn drive(&mut self, now: Instant, input: MembershipInput) {
        let time = self.time(now);
        let Some(machine) = &mut self.machine else { return };
        let before = machine.generation().number;
        let told = self.recorder.as_ref().map(|_| record::encode_input(time, &input));
        let effects = machine.take(input, time);
        if let Some(mut bytes) = told {
            record::put_effects(&mut bytes, &effects);
            self.record(|| bytes);
        }
        for effect in effects {
            self.carry_out(effect, before);
        }
        if let Some(machine) = &self.machine {
            self.shared.candidates.store(machine.candidates(), Ordering::Relaxed);
            if machine.generation().number != before {
                self.next_dial = Some(now);
            }
        }
    }

    fn carry_out(&mut self, effect: MembershipEffect, generation_before: u64) {
        match effect {
            MembershipEffect::Send { to, message } => self.send(to, message),
            MembershipEffect::Lost { member, loss, cause } => {
                let Some(generation) = self.machine.as_ref().map(|machine| Arc::clone(machine.generation())) else {
                    return;
                };
                let (number, rank) = (generation.number, generation.rank(member));
                let cause = cause.to_string();
                self.shared.tell(LossNotice { generation: number, member, rank, loss, cause });
            }
            MembershipEffect::Called { by } => self.shared.call(generation_before, by),
            MembershipEffect::Installed(generation) => {
                log::info!("generation {} has {} members", generation.number, generation.members.len());
                self.shared.enter(generation);
            }
            MembershipEffect::Evicted { generation, cause } => {
                let Some(member) = self.machine.as_ref().map(Membership::id) else { return };
                let cause = cause.to_string();
                let notice = LossNotice {
                    generation: generation_before,
                    member,
                    rank: None,
                    loss: Loss::Certain,
                    cause: format!("this process is evicted from generation {generation}: {cause}"),
                };
                self.shared.tell(notice);
                self.shared.change(|state| state.outcome = Some(Outcome::Evicted { generation, cause }));
            }
            MembershipEffect::Waiting(waiting) => {
                log::info!("the next generation is waited for: {waiting}");
                self.shared.change(|state| state.waiting = Some(waiting));
            }
        }
    }

    fn send(&mut self, to: MemberId, message: MemberMessage) {
        if let Some(connection) = self.connections.values_mut().find(|connection| connection.peer() == Some(to)) {
            connection.send(message);
        }
    }

    fn accept(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|again| now < again) {
            return;
        }
        self.accept_again = None;
        loop {
            match self.network.accept() {
                Ok(channel) => self.add(channel, None, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// A connection is new; this side says who it is. To a stranger that goes out only when it has proved to hold the
    /// key.
    fn add(&mut self, channel: N::Channel, dialed: Option<Target>, now: Instant) {
        let Some(member) = self.machine.as_ref().map(Membership::id) else { return };
        let mut connection = Connection::new(channel, dialed, now);
        connection.put(&Packet::Hello { job: self.options.job, member });
        self.connections.insert(self.next_id, connection);
        self.next_id += 1;
    }

    /// Whom this process should connect to and is not connected to.
    fn targets(&self) -> Vec<(Target, Arc<[u8]>)> {
        let Some(machine) = &self.machine else { return Vec::new() };
        let knows_nobody = machine.generation().number == 0;
        let is_candidate = !machine.generation().contains(machine.id());
        let mut targets: Vec<(Target, Arc<[u8]>)> = machine
            .contacts()
            .filter(|(member, _)| is_candidate || *member < machine.id())
            .map(|(member, contact)| (Target::Member(member), Arc::clone(contact)))
            .collect();
        if knows_nobody {
            let seeds = self.seeds.iter().enumerate();
            targets.extend(seeds.map(|(place, contact)| (Target::Seed(place), contact.as_slice().into())));
        }
        targets.retain(|(target, _)| !self.connections.values().any(|connection| leads_to(connection, *target)));
        targets
    }

    /// Dials whom it is time to dial; returns when it is time for the next one.
    fn dial(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for (target, contact) in self.targets() {
            let (again, attempt) = self.dialed.get(&target).copied().unwrap_or((now, 0));
            if now < again {
                next = next.into_iter().chain([again]).min();
                continue;
            }
            self.dialed.insert(target, (now + DIAL_PAUSE, attempt + 1));
            next = next.into_iter().chain([now + DIAL_PAUSE]).min();
            let (Some(place), Some(me)) = (Whereabouts::decode(&contact), self.machine.as_ref().map(Membership::id))
            else {
                log::warn!("the contact of a member has another form: install the same farandole everywhere");
                continue;
            };
            let is_here = place.host == self.options.host;
            match self.network.dial(&Call { place: &place, attempt, me }) {
                Ok(channel) => self.add(channel, Some(target), now),
                // Nobody listens where a member of this host should: its process has ended. From farther away that
                // would prove nothing.
                Err(error) if is_here && error.kind() == io::ErrorKind::ConnectionRefused => self.bury(target, now),
                Err(error) => log::debug!("{target:?} cannot be called: {error}"),
            }
        }
        next
    }

    fn bury(&mut self, target: Target, now: Instant) {
        let cause = "its process has ended: nobody listens at its address";
        if let Target::Member(member) = target {
            self.learn(member, LossEvidence::Dead, cause, now);
        }
    }

    /// Receives all pending messages of a connection, and sends what waits.
    fn attend(&mut self, id: ConnectionId, now: Instant) {
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.channel.receive() {
                Ok(Received::Message(message)) => self.hear(id, &message, now),
                Ok(Received::NothingYet) => {
                    connection.flush();
                    return;
                }
                Ok(Received::Closed) => self.part(id, Ok(()), now),
                Err(error) => self.part(id, Err(&error), now),
            }
        }
    }

    fn hear(&mut self, id: ConnectionId, message: &[u8], now: Instant) {
        let job = self.options.job;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.hear();
        match (connection.stage, Packet::decode(message)) {
            (Stage::Handshake, Some(Packet::Hello { job: theirs, member })) if theirs == job => {
                connection.stage = Stage::Known(member);
                self.drive(now, MembershipInput::Meet(member));
            }
            (Stage::Known(member), Some(Packet::Message(message))) => {
                self.drive(now, MembershipInput::Hear { from: member, message });
            }
            (Stage::Known(member), _) => log::warn!("member {member} said something that has no meaning here"),
            (Stage::Handshake, _) => {
                log::warn!("a process that holds the key is of another job or version, and is turned away");
                self.connections.remove(&id);
            }
        }
    }

    /// A connection has ended.
    fn part(&mut self, id: ConnectionId, end: Result<(), &io::Error>, now: Instant) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.next_dial = Some(now);
        match connection.stage {
            Stage::Handshake => {
                if let (Some(target), Err(error)) = (connection.dialed, end) {
                    log::debug!("a connection to {target:?} failed: {error}");
                    self.shared.change(|state| state.obstacle = Some(error.to_string()));
                }
            }
            Stage::Known(member) => {
                if self.connections.values().any(|other| other.peer() == Some(member)) {
                    return;
                }
                let suspected = self.machine.as_ref().is_some_and(|machine| machine.suspects(member));
                let (evidence, cause) = judge_end(connection.channel.medium(), end, suspected);
                self.learn(member, evidence, &cause, now);
            }
        }
    }

    fn look_at_clocks(&mut self, now: Instant) {
        let time = self.time(now);
        if self.machine.as_ref().and_then(Membership::due).is_some_and(|due| due <= time) {
            self.drive(now, MembershipInput::Tick);
        }
        let before = self.connections.len();
        self.connections.retain(|_, connection| {
            // Whoever holds the key may know this process already, and would take a closed connection for its end.
            let is_late = now >= connection.began + HANDSHAKE_TIMEOUT;
            connection.channel.is_established() || !is_late
        });
        if self.connections.len() < before {
            self.next_dial = Some(now);
        }
    }

    /// Sends last words. What has come meanwhile is read: a socket that is closed with something unread is reset, and
    /// what it has sent may go with it. Says whether all of it is on its way.
    pub fn say_goodbye(&mut self) -> bool {
        self.connections.retain(|_, connection| {
            let is_done = connection.flush() || !connection.channel.wants_write();
            while let Ok(Received::Message(_)) = connection.channel.receive() {}
            connection.peer().is_some() && !is_done
        });
        self.connections.is_empty()
    }
}

/// Whether a connection leads to a target, or will when the other side answers.
fn leads_to<C: MemberChannel>(connection: &Connection<C>, target: Target) -> bool {
    connection.dialed == Some(target) || matches!(target, Target::Member(member) if connection.peer() == Some(member))
}
