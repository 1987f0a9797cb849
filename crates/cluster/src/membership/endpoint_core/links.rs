//! The connections of an endpoint: whom it dials, what it reads, and what the end of a connection means for the state
//! machine.
//!
//! **Invariant:** a connection counts for a member only after its hello.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::membership::{LossEvidence, MemberId, Membership, MembershipInput, Waiting};

use super::super::connection::{Connection, ConnectionEnd, MemberMedium, Stage, Target, judge_end};
use super::super::network::{MemberCall, MemberChannel, MemberNetwork, PeerWatch as _, Rule};
use super::super::wire::{Answer, Packet, Whereabouts};
use super::{ConnectionId, EndpointCore, HANDSHAKE_TIMEOUT};
use crate::channel::Received;
use crate::strangers::{MOST_STRANGERS, make_room};

/// Between attempts to connect to somebody: soon enough for one that is just starting, and no burden.
pub(super) const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl<N: MemberNetwork> EndpointCore<N> {
    pub(super) fn accept(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|again| now < again) {
            return;
        }
        self.accept_again = None;
        // Callers that arrive faster than they are accepted do not keep the loop from its members.
        for _ in 0..MOST_STRANGERS {
            match self.network.accept() {
                Ok(channel) => {
                    make_room(&mut self.connections, Connection::is_stranger);
                    self.add(channel, None, now);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
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
        connection.put(&Packet::Hello { job: self.options.job, member }.encode());
        self.connections.insert(self.next_id, connection);
        self.next_id += 1;
    }

    /// Whom this process should connect to and is not connected to.
    fn targets(&self) -> Vec<(Target, Arc<[u8]>)> {
        let Some(machine) = &self.machine else { return Vec::new() };
        let knows_nobody = machine.generation().number == 0;
        let is_candidate = !machine.generation().contains(machine.id());
        // The others may have continued without this member, and then do not dial it any more.
        let may_be_evicted = machine.waiting().is_some_and(may_be_evicted);
        let mut targets: Vec<(Target, Arc<[u8]>)> = machine
            .contacts()
            .filter(|(member, _)| is_candidate || may_be_evicted || *member < machine.id())
            .map(|(member, contact)| (Target::Member(member), Arc::clone(contact)))
            .collect();
        if knows_nobody {
            let seeds = self.seeds.iter().enumerate();
            targets.extend(seeds.map(|(place, contact)| (Target::Seed(place), contact.as_slice().into())));
        }
        // Between hosts a connection may be gone at the other side alone, which this side notices late.
        let is_doubtful = |connection: &Connection<N::Channel>| {
            let suspects = connection.peer().is_some_and(|member| machine.suspects(member));
            suspects && connection.channel.medium() == MemberMedium::Tcp
        };
        let leads = |connection: &&Connection<N::Channel>, target| leads_to(connection, target);
        let connected =
            |target| self.connections.values().filter(|one| leads(one, target)).any(|one| !is_doubtful(one));
        targets.retain(|(target, _)| !connected(*target));
        targets
    }

    /// Dials whom it is time to dial; returns when it is time for the next one.
    pub(super) fn dial(&mut self, now: Instant) -> Option<Instant> {
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
            match self.network.dial(&MemberCall { place: &place, attempt, me }) {
                Ok(channel) => self.add(channel, Some(target), now),
                Err(error) if is_here && error.kind() == io::ErrorKind::ConnectionRefused => self.doubt(target, now),
                Err(error) => log::debug!("{target:?} cannot be called: {error}"),
            }
        }
        next
    }

    /// No socket listens where a member of this host should. That is a reason to suspect it and does not prove its
    /// death: only its pidfd, or an agent, does.
    fn doubt(&mut self, target: Target, now: Instant) {
        if let Target::Member(member) = target {
            if self.network.broken_rule() == Some(Rule::RefusalProvesNothing) {
                return self.learn(member, LossEvidence::Dead, "refused", now);
            }
            self.learn(member, LossEvidence::Doubted, "no socket listens at its address", now);
        }
    }

    /// Receives all pending messages of a connection, and sends what waits.
    pub(super) fn attend(&mut self, id: ConnectionId, now: Instant) {
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
        connection.hear(now);
        match (connection.stage, Packet::decode(message)) {
            (Stage::Handshake, Some(Packet::Hello { job: theirs, member })) if theirs == job => {
                connection.stage = Stage::Known(member);
                if self.ending.extract_if(.., |(ending, _)| *ending == member).count() > 0 {
                    // It lives, and what it said while it was not connected is lost.
                    self.learn(member, LossEvidence::Broken, "its connection was closed", now);
                }
                self.replace(id, member, now);
                self.drive(now, MembershipInput::Meet(member));
            }
            (Stage::Known(member), Some(Packet::Message(message))) => {
                self.drive(now, MembershipInput::Hear { from: member, message });
            }
            (Stage::Known(member), Some(Packet::Again { answer })) => {
                if answer == Answer::Wanted {
                    connection.put(&Packet::Again { answer: Answer::Given }.encode());
                }
                self.drive(now, MembershipInput::Meet(member));
            }
            (Stage::Known(member), _) => log::warn!("member {member} said something that has no meaning here"),
            (Stage::Handshake, _) => {
                log::warn!("a process that holds the key is of another job or version, and is turned away");
                self.connections.remove(&id);
                // The member may listen there again, and that is no reason to ask often.
                self.next_dial = self.next_dial.or(Some(now + HANDSHAKE_TIMEOUT));
            }
        }
    }

    /// There is a new connection to a member: others between hosts over which it was not heard for long are gone at the
    /// other side, although this side was not told.
    fn replace(&mut self, id: ConnectionId, member: MemberId, now: Instant) {
        let is_gone = |connection: &Connection<N::Channel>| {
            let is_silent = now >= connection.heard() + HANDSHAKE_TIMEOUT;
            connection.peer() == Some(member) && connection.channel.medium() == MemberMedium::Tcp && is_silent
        };
        let gone: Vec<ConnectionId> =
            self.connections.range(..id).filter(|(_, connection)| is_gone(connection)).map(|(id, _)| *id).collect();
        for old in gone {
            self.attend(old, now);
            if self.connections.remove(&old).is_some() {
                self.learn(member, LossEvidence::Broken, "it has made another connection", now);
            }
        }
    }

    /// The process at the other end has ended: what it had sent has been received, unless something was cut off.
    pub(super) fn finish(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_whole = connection.channel.finish().is_ok();
        self.part(id, if is_whole { ConnectionEnd::Process } else { ConnectionEnd::ProcessCutOff }, now);
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
                let (evidence, cause) = match self.network.broken_rule() {
                    Some(Rule::ResetProvesNothing) => (LossEvidence::Ended, "its process has ended".to_owned()),
                    _ => judge_end(end),
                };
                match (connection.channel.into_watch().filter(|_| end.is_complete()), self.connection_to(member)) {
                    // The other one ends as well.
                    (Some(_), Some(_)) => {}
                    // A process that ends has its sockets closed a moment before its pidfd says so.
                    (Some(process), None) if evidence != LossEvidence::Ended => {
                        self.ending.push((member, process));
                        self.learn(member, LossEvidence::Doubted, &cause, now);
                    }
                    (_, None) => self.learn(member, evidence, &cause, now),
                    (None, Some(other)) => self.repeat_over(other, member, &cause, now),
                }
            }
        }
    }

    /// Looks which processes have ended whose streams were read to the end.
    pub(super) fn look_at_endings(&mut self, now: Instant) {
        let ended: Vec<MemberId> =
            self.ending.extract_if(.., |(_, process)| process.has_ended()).map(|(member, _)| member).collect();
        for member in ended {
            let (evidence, cause) = judge_end(ConnectionEnd::Process);
            self.learn(member, evidence, &cause, now);
        }
    }

    /// One of two connections to a member is broken: both sides repeat over the other one what must not be lost. The
    /// member's part of that begins with its answer.
    fn repeat_over(&mut self, other: ConnectionId, member: MemberId, cause: &str, now: Instant) {
        if self.network.broken_rule() == Some(Rule::EveryConnectionCounts) {
            return;
        }
        let packet = Packet::Again { answer: Answer::Wanted }.encode();
        self.connections.entry(other).and_modify(|connection| connection.put(&packet));
        self.drive(now, MembershipInput::Meet(member));
        self.learn(member, LossEvidence::Broken, cause, now);
    }

    pub(super) fn look_at_clocks(&mut self, now: Instant) {
        let time = self.time(now);
        if self.machine.as_ref().and_then(Membership::due).is_some_and(|due| due <= time) {
            self.drive(now, MembershipInput::Tick);
        }
        let before = self.connections.len();
        self.connections.retain(|_, connection| {
            let is_late = now >= connection.began + HANDSHAKE_TIMEOUT;
            !(is_late && connection.is_shaking_hands())
        });
        if self.connections.len() < before {
            self.next_dial = Some(now);
        }
    }
}

/// Whether a member that waits for this may miss the generation of the others.
pub(super) fn may_be_evicted(waiting: &Waiting) -> bool {
    matches!(waiting, Waiting::Majority { .. } | Waiting::Witness { .. } | Waiting::Candidates { .. })
}

/// Whether a connection leads to a target, or will when the other side answers.
fn leads_to<C: MemberChannel>(connection: &Connection<C>, target: Target) -> bool {
    connection.dialed == Some(target) || matches!(target, Target::Member(member) if connection.peer() == Some(member))
}
