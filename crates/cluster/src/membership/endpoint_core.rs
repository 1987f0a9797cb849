//! The state behind an [`super::Endpoint`]: the state machine, the connections, and whom to call when.
//!
//! Of two members the one with the higher number connects to the other, and a candidate connects to everybody. A
//! connection that breaks is made again by the same side (`links`). There may be two to one member for a while, if a
//! candidate and a member call each other; messages go over the one on which the member was heard last, and the member
//! has ended when both have. If one of two breaks, both sides repeat over the other one what must not be lost.
//!
//! A member first says `LeftOut` to those without whom it votes. While a connection cannot take that message, and its
//! loss would not show at the other side, nothing else is sent (`EndpointCore::release`).
//!
//! The state has no thread, no clock and no sockets of its own: a driver gives it the time, commands and the
//! connections that are ready, and it makes channels by a [`MemberNetwork`]. In a process the driver is
//! `endpoint_thread`.
//!
//! **Invariant:** no call waits. Nothing is read before this process has its number, so everything that others say
//! meets a state machine.

mod links;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farandole_plan::membership::{
    ConfirmRefusal, Loss, LossEvidence, MemberId, MemberMessage, Membership, MembershipEffect, MembershipInput,
    MembershipStart,
};

use super::connection::{Connection, Target};
use super::endpoint::{BoundaryOutcome, Command, EndpointOptions, LossNotice, Shared};
use super::network::{MemberChannel, MemberNetwork};
use super::record::{self, Recorder};
use super::wire::{decode_answer, encode_request};
use crate::channel::Received;

/// Between processes that are well a handshake is one round trip; on a crowded machine one of them may lose the
/// processor for a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The driver turns the loop at least this often, to notice that this process was stopped.
const TURN_AT_LEAST: Duration = Duration::from_millis(500);

/// Numbers the connections of an endpoint in the order in which they began.
pub type ConnectionId = u64;

/// The state of an endpoint.
pub struct EndpointCore<N: MemberNetwork> {
    options: EndpointOptions,
    contact: Arc<[u8]>,
    pub(super) network: N,
    shared: Arc<Shared>,
    /// Awake time is counted from here.
    began: Instant,
    machine: Option<Membership>,
    recorder: Option<Recorder>,
    seeds: Vec<Vec<u8>>,
    connections: BTreeMap<ConnectionId, Connection<N::Channel>>,
    next_id: ConnectionId,
    /// When somebody is dialed again, and how often it was.
    dialed: BTreeMap<Target, (Instant, usize)>,
    /// When to look whom to dial; `None` while everybody is connected.
    next_dial: Option<Instant>,
    accept_again: Option<Instant>,
    /// Members of this host whose stream was read to its end, and whose process the kernel has not reported yet.
    ending: Vec<(MemberId, <N::Channel as MemberChannel>::Watch)>,
    /// Effects that wait, in their order, until a `LeftOut` before them is on its way, and the generation in which they
    /// were decided.
    withheld: VecDeque<(MembershipEffect, u64)>,
    /// Whether a connection may still have a `LeftOut` in its queue.
    has_sent_left_out: bool,
}

/// What is known of the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProcess {
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

impl<N: MemberNetwork> EndpointCore<N> {
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
            ending: Vec::new(),
            withheld: VecDeque::new(),
            has_sent_left_out: false,
        }
    }

    /// Does what the commands say, and what the connections that are ready and the time demand.
    pub fn turn(&mut self, now: Instant, commands: Vec<Command>, ready: &[(ConnectionId, PeerProcess)]) -> After {
        if self.obey(commands, now) == After::Nothing {
            return After::Nothing;
        }
        if self.machine.is_some() {
            self.accept(now);
            for (connection, process) in ready {
                self.attend(*connection, now);
                if *process == PeerProcess::HasEnded {
                    self.finish(*connection, now);
                }
            }
            self.look_at_endings(now);
            self.look_at_clocks(now);
            if self.next_dial.is_some_and(|next| next <= now) {
                self.next_dial = self.dial(now);
            }
            self.release(now);
            let known: BTreeSet<MemberId> = self.connections.values().filter_map(Connection::peer).collect();
            self.shared.connected.store(known.len(), Ordering::Relaxed);
        }
        After::More
    }

    /// The connections in the order in which they began.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, &N::Channel)> {
        self.connections.iter().map(|(id, connection)| (*id, &connection.channel))
    }

    /// Processes of this host that are about to end; a turn is due when one has.
    pub fn ending(&self) -> impl Iterator<Item = &<N::Channel as MemberChannel>::Watch> {
        self.ending.iter().map(|(_, process)| process)
    }

    /// This process's side of the agreement, once it has a number.
    pub fn machine(&self) -> Option<&Membership> {
        self.machine.as_ref()
    }

    /// Whether connections of others are accepted now.
    pub fn is_listening(&self) -> bool {
        self.machine.is_some() && self.accept_again.is_none()
    }

    /// How long nothing can be due.
    pub fn longest_wait(&self, now: Instant) -> Duration {
        let machine = self.machine.as_ref().and_then(Membership::due).map(|due| self.began + due);
        let handshakes = self
            .connections
            .values()
            .filter_map(|connection| connection.is_shaking_hands().then_some(connection.began + HANDSHAKE_TIMEOUT));
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
                Command::Confirm(nonce) if self.machine.is_none() => {
                    self.shared.confirm(nonce, Err(ConfirmRefusal::NotMember));
                }
                Command::Confirm(nonce) => self.drive(now, MembershipInput::Confirm(nonce)),
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
        self.withheld.clear();
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
        self.network.open_votes(me);
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
        self.withheld.extend(effects.into_iter().map(|effect| (effect, before)));
        self.release(now);
        if let Some(machine) = &self.machine {
            self.shared.candidates.store(machine.candidates(), Ordering::Relaxed);
            if machine.generation().number != before {
                self.next_dial = Some(now);
            }
        }
    }

    fn carry_out(&mut self, effect: MembershipEffect, generation_before: u64, now: Instant) {
        match effect {
            MembershipEffect::Record(record) => self.network.record_votes(&record),
            MembershipEffect::AskWitness(request) => self.shared.ask_witness(encode_request(&request)),
            MembershipEffect::Send { to, message } => self.send(to, message),
            MembershipEffect::Lost { member, loss, cause } => {
                let Some(generation) = self.machine.as_ref().map(|machine| Arc::clone(machine.generation())) else {
                    return;
                };
                let (number, rank) = (generation.number, generation.rank(member));
                let cause = cause.to_string();
                // A suspect may be reached over another connection.
                self.next_dial = self.next_dial.or(Some(now));
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
                self.shared.change(|state| state.outcome = Some(BoundaryOutcome::Evicted { generation, cause }));
            }
            MembershipEffect::Confirmed { nonce, outcome } => self.shared.confirm(nonce, outcome),
            MembershipEffect::Waiting(waiting) => {
                self.next_dial = self.next_dial.or(links::may_be_evicted(&waiting).then_some(now));
                log::info!("the next generation is waited for: {waiting}");
                self.shared.change(|state| state.waiting = Some(waiting));
            }
        }
    }

    fn send(&mut self, to: MemberId, message: MemberMessage) {
        self.has_sent_left_out |= matches!(message, MemberMessage::LeftOut { .. });
        let broken = self.network.broken_rule();
        if let Some(id) = self.connection_to(to) {
            self.connections.entry(id).and_modify(|connection| connection.send(message, broken));
        }
    }

    /// Carries out what waits, until a connection cannot take a `LeftOut`: what follows it may depend on the vote, also
    /// a generation that needs no other member's vote.
    fn release(&mut self, now: Instant) {
        while !self.is_withholding()
            && let Some((effect, before)) = self.withheld.pop_front()
        {
            self.carry_out(effect, before, now);
        }
    }

    /// Whether effects wait until a `LeftOut` is on its way.
    pub fn has_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    fn is_withholding(&mut self) -> bool {
        self.has_sent_left_out = self.has_sent_left_out && self.connections.values().any(Connection::holds_left_out);
        self.has_sent_left_out && self.connections.values().any(Connection::withholds)
    }

    /// The connection over which messages go to a member: the one over which it was heard last. Both sides come to use
    /// the same, and a connection that is gone at the other side alone is not used once there is another.
    fn connection_to(&self, member: MemberId) -> Option<ConnectionId> {
        let all = self.connections.iter().filter(|(_, connection)| connection.peer() == Some(member));
        all.max_by_key(|(id, connection)| (connection.heard(), **id)).map(|(id, _)| *id)
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

#[cfg(test)]
mod tests;
