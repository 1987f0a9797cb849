//! The thread behind an [`super::Endpoint`]: one poll loop over the listeners, all connections and the commands.
//!
//! Of two members the one with the higher number connects to the other, and a candidate connects to everybody. A
//! connection that breaks is made again by the same side. There may be two to one member for a while, if a candidate
//! and somebody who was let in meanwhile call each other; messages go over the older one, and the member has ended when
//! both have.
//!
//! **Invariant:** only the poll blocks. Nothing is read before this process has its number, so everything that others
//! say meets a state machine.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farandole_plan::membership::{
    Loss, LossEvidence, MemberId, MemberMessage, Membership, MembershipEffect, MembershipInput, MembershipStart,
};
use farandole_transport::AwakeClock;
use rustix::event::{PollFd, PollFlags, poll};

use super::connection::{Connection, ConnectionEnd, MemberListener, Stage, Target, has_ended, judge_end};
use super::endpoint::{Command, EndpointOptions, LossNotice, Outcome, Shared};
use super::record::{self, Recorder};
use super::vote_file::VoteFile;
use super::wire::{Packet, Whereabouts, decode_answer, encode_request};
use crate::channel::Received;
use crate::mailbox::Mailbox;

/// How long somebody who leaves waits until its last words are on their way.
pub(super) const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);

/// Between processes that are well a handshake is one round trip; on a crowded machine one of them may lose the
/// processor for a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Between attempts to connect to somebody: soon enough for one that is just starting, and no burden.
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// The loop turns at least this often, to notice that this process was stopped.
const TURN_AT_LEAST: Duration = Duration::from_millis(500);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

type ConnectionId = u64;

/// The state of the endpoint's thread.
pub(super) struct EndpointLoop {
    options: EndpointOptions,
    contact: Arc<[u8]>,
    listeners: Vec<MemberListener>,
    commands: Mailbox<Command>,
    shared: Arc<Shared>,
    /// Awake time is counted from here.
    began: Instant,
    machine: Option<Membership>,
    recorder: Option<Recorder>,
    votes: Option<VoteFile>,
    seeds: Vec<Vec<u8>>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_id: ConnectionId,
    /// When somebody is dialed again, and how often it was.
    dialed: BTreeMap<Target, (Instant, usize)>,
    /// When to look whom to dial; `None` while everybody is connected.
    next_dial: Option<Instant>,
    accept_again: Option<Instant>,
    /// Members of this host whose stream was read to its end, and whose process the kernel has not reported yet.
    ending: Vec<(MemberId, OwnedFd)>,
}

/// What is known of the process at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Process {
    Runs,
    HasEnded,
}

/// Says that the thread has ended, also when it panics: nobody waits for it any more.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.change(|state| state.over = true);
    }
}

/// Whether the thread goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    More,
    Nothing,
}

impl EndpointLoop {
    pub(super) fn new(
        options: EndpointOptions,
        contact: Vec<u8>,
        listeners: Vec<MemberListener>,
        commands: Mailbox<Command>,
        shared: Arc<Shared>,
    ) -> EndpointLoop {
        EndpointLoop {
            options,
            contact: contact.into(),
            listeners,
            commands,
            shared,
            began: Instant::now(),
            machine: None,
            recorder: None,
            votes: None,
            ending: Vec::new(),
            seeds: Vec::new(),
            connections: BTreeMap::new(),
            next_id: 0,
            dialed: BTreeMap::new(),
            next_dial: None,
            accept_again: None,
        }
    }

    /// Turns the loop until this process leaves.
    pub(super) fn run(mut self) {
        let _over = Over(Arc::clone(&self.shared));
        let mut clock = AwakeClock::new(self.began).judging_by(self.options.limits.silence.unwrap_or_default());
        loop {
            let at_most = self.longest_wait(clock.last());
            let ready = self.wait(at_most);
            let now = clock.look(Instant::now(), at_most);
            if self.obey(now) == After::Nothing {
                break;
            }
            if self.machine.is_some() {
                self.accept(now);
                for (connection, process) in ready {
                    self.attend(connection, now);
                    if process == Process::HasEnded {
                        // All that it had sent was there before.
                        self.part(connection, ConnectionEnd::Process, now);
                    }
                }
                self.look_at_endings(now);
                self.look_at_clocks(now);
                if self.next_dial.is_some_and(|next| next <= now) {
                    self.next_dial = self.dial(now);
                }
            }
        }
        self.say_goodbye();
    }

    /// How long nothing can be due.
    fn longest_wait(&self, now: Instant) -> Duration {
        let machine = self.machine.as_ref().and_then(Membership::due).map(|due| self.began + due);
        let handshakes = self.connections.values().filter_map(|connection| {
            connection.began.filter(|_| !connection.channel.is_established()).map(|began| began + HANDSHAKE_TIMEOUT)
        });
        let due = machine.into_iter().chain(handshakes).chain(self.next_dial).chain(self.accept_again).min();
        due.map_or(TURN_AT_LEAST, |due| due.saturating_duration_since(now).min(TURN_AT_LEAST))
    }

    /// Waits until something happens or is due; returns the connections that are ready, and whether the process at the
    /// other end has ended.
    fn wait(&self, at_most: Duration) -> Vec<(ConnectionId, Process)> {
        let listening = self.machine.is_some() && self.accept_again.is_none();
        let mut fds = vec![PollFd::new(&self.commands, PollFlags::IN)];
        let flags = if listening { PollFlags::IN } else { PollFlags::empty() };
        fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, flags)));
        let first = fds.len();
        fds.extend(self.connections.values().map(|connection| {
            let writing = if connection.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(connection.channel.fd(), PollFlags::IN | writing)
        }));
        let processes = self.connections.values().filter_map(|connection| connection.process.as_ref());
        let ending = self.ending.iter().map(|(_, process)| process);
        fds.extend(processes.chain(ending).map(|process| PollFd::new(process, PollFlags::IN)));
        // A millisecond more, lest the loop turns several times just before something is due.
        let timeout = (at_most + Duration::from_millis(1)).try_into().ok();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let mut processes = fds[first + self.connections.len()..].iter();
        let mut ready = Vec::new();
        for ((id, connection), fd) in self.connections.iter().zip(&fds[first..]) {
            let process = connection.process.as_ref().and_then(|_| processes.next());
            let has_ended = process.is_some_and(|process| !process.revents().is_empty());
            if has_ended || !fd.revents().is_empty() {
                ready.push((*id, if has_ended { Process::HasEnded } else { Process::Runs }));
            }
        }
        ready
    }

    fn obey(&mut self, now: Instant) -> After {
        for command in self.commands.take() {
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
                Command::Report { member, evidence, cause } => self.learn(member, evidence, &cause, now),
                Command::Witness(answer) => match decode_answer(&answer) {
                    Some(answer) => self.drive(now, MembershipInput::HearWitness(answer)),
                    None => log::warn!("the launcher's answer has another form: install the same farandole everywhere"),
                },
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
        self.ending.clear();
        self.dialed.clear();
        let create = |folder: &PathBuf| {
            let folder_name = folder.display();
            Recorder::create(folder, me)
                .map_err(|error| log::warn!("{folder_name}: decisions are not recorded: {error}"))
                .ok()
        };
        self.recorder = self.options.record_in.as_ref().and_then(create);
        self.record(|| record::encode_start(time, &start));
        let open = |descriptor| {
            VoteFile::open(descriptor, me).map_err(|error| log::warn!("votes are not recorded: {error}")).ok()
        };
        self.votes = self.options.votes_in.and_then(open);
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
            MembershipEffect::Record(record) => {
                if let Some(Err(error)) = self.votes.as_mut().map(|votes| votes.record(&record)) {
                    log::warn!("votes are not recorded any more: {error}");
                    self.votes = None;
                }
            }
            MembershipEffect::AskWitness(request) => self.shared.ask_witness(encode_request(&request)),
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
        for listener in 0..self.listeners.len() {
            loop {
                match self.listeners[listener].accept(&self.options.key) {
                    Ok(connection) => self.add(connection, now),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        self.accept_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                }
            }
        }
    }

    /// A connection is new; this side says who it is. To a stranger that goes out only when it has proved to hold the
    /// key.
    fn add(&mut self, mut connection: Connection, now: Instant) {
        let Some(member) = self.machine.as_ref().map(Membership::id) else { return };
        connection.began = Some(now);
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
            match Connection::dial(&place, &self.options.host, attempt, &self.options.key, me, target) {
                Ok(connection) => self.add(connection, now),
                Err(error) => log::debug!("{target:?} cannot be called: {error}"),
            }
        }
        next
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
                Ok(Received::Closed) => self.part(id, ConnectionEnd::Closed, now),
                Err(error) => self.part(id, ConnectionEnd::Failed(&error), now),
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
                if self.ending.extract_if(.., |(ending, _)| *ending == member).count() > 0 {
                    // It lives, and what it said while it was not connected is lost.
                    self.learn(member, LossEvidence::Broken, "its connection was closed", now);
                }
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
    fn part(&mut self, id: ConnectionId, end: ConnectionEnd<'_>, now: Instant) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.next_dial = Some(now);
        match connection.stage {
            Stage::Handshake => {
                if let (Some(target), ConnectionEnd::Failed(error)) = (connection.dialed, end) {
                    log::debug!("a connection to {target:?} failed: {error}");
                    self.shared.change(|state| state.obstacle = Some(error.to_string()));
                }
            }
            Stage::Known(member) => {
                let another_is_left = self.connections.values().any(|other| other.peer() == Some(member));
                let (evidence, cause) = judge_end(end);
                match connection.process.filter(|_| end.is_complete()) {
                    // The other one ends as well.
                    Some(_) if another_is_left => {}
                    Some(process) if evidence != LossEvidence::Ended => {
                        // A process that ends has its sockets closed a moment before its pidfd says so.
                        self.ending.push((member, process));
                        self.learn(member, LossEvidence::Doubted, &cause, now);
                    }
                    _ => {
                        self.learn(member, evidence, &cause, now);
                        if another_is_left {
                            self.drive(now, MembershipInput::Meet(member));
                        }
                    }
                }
            }
        }
    }

    /// Looks which processes have ended whose streams were read to the end.
    fn look_at_endings(&mut self, now: Instant) {
        let ended: Vec<(MemberId, OwnedFd)> = self.ending.extract_if(.., |(_, process)| has_ended(process)).collect();
        for (member, _) in ended {
            let (evidence, cause) = judge_end(ConnectionEnd::Process);
            self.learn(member, evidence, &cause, now);
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
            let is_late = connection.began.is_some_and(|began| now >= began + HANDSHAKE_TIMEOUT);
            connection.channel.is_established() || !is_late
        });
        if self.connections.len() < before {
            self.next_dial = Some(now);
        }
    }

    /// Waits, for a moment, until the last words have been taken. What has come meanwhile is read: a socket that is
    /// closed with something unread is reset, and what it has sent may go with it.
    fn say_goodbye(&mut self) {
        let until = Instant::now() + GOODBYE_PATIENCE;
        self.connections.retain(|_, connection| connection.peer().is_some());
        loop {
            self.connections.retain(|_, connection| {
                let is_done = connection.flush() || !connection.channel.wants_write();
                while let Ok(Received::Message(_)) = connection.channel.receive() {}
                !is_done
            });
            let left = until.saturating_duration_since(Instant::now());
            if self.connections.is_empty() || left.is_zero() {
                return;
            }
            self.wait(left.min(Duration::from_millis(20)));
        }
    }
}

/// Whether a connection leads to a target, or will when the other side answers.
fn leads_to(connection: &Connection, target: Target) -> bool {
    connection.dialed == Some(target) || matches!(target, Target::Member(member) if connection.peer() == Some(member))
}
