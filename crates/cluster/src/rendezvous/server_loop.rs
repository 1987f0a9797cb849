//! The thread behind a [`super::Server`]: one poll loop over the listener, all connections and the owner's commands.
//!
//! A connection performs the handshake and sends its arrival, waits until the epoch is complete, and is then closed or
//! stays as a *member*, which sends heartbeats and is watched for silence. The *rule* says who handles a failure: the
//! server of a whole job investigates (`liveness`) and notifies all members; the server of one host tells its owner.
//!
//! **Invariant:** all limits are measured in awake time (`farandole_transport::awake`): while this process is stopped,
//! no member's silence and no connection's timeout comes nearer.
//!
//! **Invariant:** only the poll blocks. An unauthenticated connection costs one descriptor for [`HANDSHAKE_TIMEOUT`]
//! and 64 bytes; beyond [`strangers::MOST_STRANGERS`] the oldest one is dropped, so that a rank, which needs one round
//! trip, gets in.

mod elastic;
mod silence;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{AwakeClock, Key, ProcessId};
use rustix::event::{PollFd, PollFlags, poll};

use super::address::{Listener, Stream};
use super::arrivals::{Arrivals, Arrived, ConnectionId};
use super::generation::Generation;
use super::liveness::{Blame, Member, host_name};
use super::message::{Arrival, Down, ServerProcess, Stay, Up};
use super::server::{Command, OnEvent, RendezvousEvent};
use super::{MOST_BLOB_BYTES, MOST_ENTRY_BYTES};
use crate::channel::{ChannelPurpose, Polled, Received};
use crate::environment;
use crate::failure_notice::{FailureKind, FailureNotice};
use crate::live::{JobState, LiveState};
use crate::mailbox::Mailbox;
use crate::strangers;

/// An honest rank needs one round trip to arrive; on a crowded machine it may lose the processor for a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection has to read its last message, and members to leave when the server closes.
const PARTING_PATIENCE: Duration = Duration::from_millis(500);

/// The loop turns at least this often while there are connections, to notice that this process was stopped.
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

/// What is done when an epoch is complete or a rank fails.
pub(super) enum Rule {
    /// All ranks arrive here: everything is decided here, and published for live views.
    Whole(Arc<JobState>),
    /// The owner decides.
    Part(OnEvent),
}

/// Whether the job has a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Its ranks are known, and come together.
    Fixed,
    /// Its members come and go.
    Elastic,
}

/// The state of the server's thread.
pub(super) struct ServerLoop {
    listener: Listener,
    key: Key,
    rule: Rule,
    size: Size,
    /// The latest generation of an elastic job that was heard of.
    generation: Option<Generation>,
    /// The lists that members here have told, by number; of the last generations.
    told: BTreeMap<u64, Vec<u64>>,
    /// Why there will be none, where there is none.
    abandoned: Option<String>,
    commands: Mailbox<Command>,
    server_process: ServerProcess,
    arrivals: Arrivals,
    connections: BTreeMap<ConnectionId, Connection>,
    next_id: ConnectionId,
    /// Epochs that were completed.
    epoch: u64,
    /// The epochs before this one have their notice, and get no other.
    judged_before: u64,
    /// The first blame of the current epoch, and when it becomes a failure notice.
    blame: Option<(Instant, Blame)>,
    accept_again: Option<Instant>,
    closing: Option<Instant>,
}

struct Connection {
    channel: Polled<Stream>,
    stage: Stage,
}

enum Stage {
    /// It has not arrived.
    Handshake { until: Instant },
    /// It waits for the others.
    Waiting { rank: Rank, until: Instant, stay: Stay, overdue: Overdue },
    /// A process of an elastic job waits for the job to begin.
    Entering { member: u64, until: Instant, stay: Stay },
    /// A candidate of an elastic job waits to be told whom to call.
    Asking { until: Instant },
    /// It stays.
    Member(Member),
    /// It has been told the last thing.
    Leaving { until: Instant },
}

/// Whether a rank at the table has waited for as long as it wanted to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overdue {
    No,
    /// The owner has been asked who is missing.
    Asked,
}

impl ServerLoop {
    pub(super) fn new(
        listener: Listener,
        arrivals: Arrivals,
        key: Key,
        rule: Rule,
        size: Size,
        commands: Mailbox<Command>,
    ) -> ServerLoop {
        let host = std::env::var(environment::HOST).unwrap_or_else(|_| environment::host_identity());
        ServerLoop {
            listener,
            key,
            rule,
            size,
            generation: None,
            told: BTreeMap::new(),
            abandoned: None,
            commands,
            server_process: ServerProcess { rank: None, process: ProcessId::own(), host },
            arrivals,
            connections: BTreeMap::new(),
            next_id: 0,
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
            for command in self.commands.take() {
                self.obey(command, now);
            }
            self.accept(now);
            for connection in ready {
                self.attend(connection, now);
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
        if self.connections.is_empty() { due } else { Some(due.unwrap_or(TURN_AT_LEAST).min(TURN_AT_LEAST)) }
    }

    /// Waits until something happens or is due; returns the connections that are ready.
    fn wait(&mut self, at_most: Option<Duration>) -> Vec<ConnectionId> {
        let accepting = self.closing.is_none() && self.accept_again.is_none();
        let mut fds = vec![
            PollFd::new(&self.commands, PollFlags::IN),
            PollFd::new(&self.listener, if accepting { PollFlags::IN } else { PollFlags::empty() }),
        ];
        fds.extend(self.connections.values().map(|connection| {
            let writing = if connection.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(connection.channel.fd(), PollFlags::IN | writing)
        }));
        // A millisecond more, lest the loop turns several times just before something is due.
        let timeout = at_most.map(|timeout| timeout + Duration::from_millis(1)).and_then(|t| t.try_into().ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = self.connections.keys().zip(&fds[2..]).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(connection, _)| *connection).collect()
    }

    fn next_due(&self) -> Option<Instant> {
        let connections = self.connections.values().filter_map(|connection| match &connection.stage {
            Stage::Member(member) => member.due(),
            other => other.until(),
        });
        let blame = self.blame.as_ref().map(|(due, _)| *due);
        connections.chain(blame).chain(self.accept_again).chain(self.closing).min()
    }

    fn members(&self) -> impl Iterator<Item = (ConnectionId, &Member)> {
        self.connections.iter().filter_map(|(id, connection)| match &connection.stage {
            Stage::Member(member) => Some((*id, member)),
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
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: Stream, now: Instant) {
        let Ok(channel) = Polled::accept(stream, &self.key, ChannelPurpose::Rendezvous) else { return };
        let most_bytes = match self.size {
            Size::Fixed => MOST_BLOB_BYTES + ARRIVAL_BYTES,
            Size::Elastic => MOST_ENTRY_BYTES,
        };
        let channel = channel.with_most_bytes(most_bytes);
        strangers::make_room(&mut self.connections, |one| matches!(one.stage, Stage::Handshake { .. }));
        self.connections
            .insert(self.next_id, Connection { channel, stage: Stage::Handshake { until: now + HANDSHAKE_TIMEOUT } });
        self.next_id += 1;
    }

    /// Receives all pending messages of a connection.
    fn attend(&mut self, id: ConnectionId, now: Instant) {
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.channel.receive() {
                Ok(Received::Message(message)) => self.hear(id, &message, now),
                Ok(Received::NothingYet) => return,
                Ok(Received::Closed) => self.part(id, "its connection was closed without a goodbye".into()),
                Err(error) => self.part(id, format!("its connection broke: {error}")),
            }
        }
    }

    /// The process of a rank has ended: all that it has said can be received now, even if a child of it holds the
    /// connection open.
    fn drain(&mut self, rank: Rank, now: Instant) {
        let of_rank = self.members().filter(|(_, member)| member.rank == rank);
        for id in of_rank.map(|(id, _)| id).collect::<Vec<_>>() {
            self.attend(id, now);
        }
        self.report(RendezvousEvent::Drained { rank });
    }

    fn hear(&mut self, id: ConnectionId, message: &[u8], now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match (&mut connection.stage, Up::decode(message)) {
            (Stage::Handshake { .. }, Some(Up::Arrival(arrival))) if self.size == Size::Fixed => {
                self.arrive(id, arrival, now)
            }
            (Stage::Handshake { .. }, Some(up)) if self.size == Size::Elastic => self.greet(id, up, now),
            (Stage::Member(member), Some(up)) => {
                member.hear(now);
                let (rank, epoch) = (member.rank, member.epoch);
                match up {
                    Up::Heartbeat => self.say(id, &Down::Pulse),
                    Up::Goodbye => {
                        connection.stage = Stage::Leaving { until: now };
                        self.write_up(|state| state.ended(rank.0, LiveState::Left, ""));
                        self.report(RendezvousEvent::Left { rank });
                    }
                    Up::Blame { peer, cause } => self.take_blame(Blame { by: rank, peer, cause }, epoch, now),
                    Up::Seen { rank: silent, state } => self.take_sight(silent, epoch, state, now),
                    Up::Sample(sample) => self.show(rank, sample, now),
                    Up::Generation(generation) => self.hear_generation(generation, now),
                    Up::AskWitness(question) => {
                        self.report(RendezvousEvent::WitnessAsked { member: rank.0.into(), question });
                    }
                    Up::Arrival(_) | Up::Enter(_) | Up::AskSeeds { .. } => {}
                }
            }
            (Stage::Leaving { .. }, _) => {}
            (_, _) => {
                let why = "the request has another form: install the same farandole everywhere";
                self.dismiss(id, &Down::Refused(why.into()), now);
            }
        }
    }

    fn arrive(&mut self, id: ConnectionId, arrival: Arrival, now: Instant) {
        let Some(connection) = self.connections.get(&id) else { return };
        let rank = Rank(connection.channel.caller().unwrap_or(u32::MAX));
        let Arrival { job, ranks, patience, stay, blob } = arrival;
        let kept_out = self.members().find_map(|(_, member)| member.keeps_out(rank, &stay));
        if let Some(why) = kept_out {
            return self.dismiss(id, &Down::Refused(why), now);
        }
        if let Err(why) = self.arrivals.admit(rank, job, ranks, Arrived { connection: id, blob }) {
            return self.dismiss(id, &Down::Refused(why), now);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Stay::Yes { process, host, .. } = &stay
            && (*process, host) == (self.server_process.process, &self.server_process.host)
        {
            self.server_process.rank = Some(rank);
        }
        connection.stage = Stage::Waiting { rank, until: now + patience, stay, overdue: Overdue::No };
        if self.arrivals.is_full() {
            let blobs = self.arrivals.blobs();
            match &self.rule {
                Rule::Whole(_) => self.complete(blobs.into_iter().map(|(_, blob)| blob).collect(), now),
                Rule::Part(on_event) => on_event(RendezvousEvent::Gathered { epoch: self.epoch, blobs }),
            }
        }
    }

    /// Everybody at the table gets all messages, and goes or stays.
    fn complete(&mut self, blobs: Vec<Vec<u8>>, now: Instant) {
        let answer = Down::Everybody { server_process: self.server_process.clone(), blobs: Arc::new(blobs) };
        let answer = answer.encode();
        for id in self.arrivals.clear() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let Stage::Waiting { rank, stay, .. } = &connection.stage else { continue };
            let (rank, epoch) = (*rank, self.epoch);
            let _ = connection.channel.queue(&answer);
            connection.stage = match stay.clone() {
                Stay::No => Stage::Leaving { until: now + PARTING_PATIENCE },
                Stay::Yes { silence, process, host } => {
                    if let Rule::Whole(state) = &self.rule {
                        state.started(rank.0, process.pid, Some(host_name(&host)));
                    }
                    let (asked, look_again) = (Vec::new(), None);
                    Stage::Member(Member { rank, process, host, epoch, silence, heard: now, asked, look_again })
                }
            };
        }
        self.epoch += 1;
        self.blame = None;
    }

    fn obey(&mut self, command: Command, now: Instant) {
        match command {
            Command::Tell(blobs) => self.complete(blobs, now),
            Command::Refuse(missing) => self.refuse(missing, now),
            Command::Count => {
                self.report(RendezvousEvent::Missing { epoch: self.epoch, ranks: self.arrivals.missing() })
            }
            Command::Drain(rank) => self.drain(rank, now),
            Command::Pronounce(notice, Some(epoch)) => self.pronounce(&notice, Some(epoch)),
            Command::Pronounce(notice, None) => {
                self.turn_all_away(&Down::Refused(notice.to_string()), now);
                self.turn_entrants_away(&notice.to_string(), now);
                self.pronounce(&notice, None);
            }
            Command::Found(generation) => self.found(generation, now),
            Command::Learn(generation) => self.learn(generation, now),
            Command::Abandon(why) => self.abandon(why, now),
            Command::Lost(member, notice, votes) => self.tell_of_loss(member, notice, votes),
            Command::AnswerAsWitness(member, answer) => self.answer_as_witness(member, answer),
            Command::Close => {
                self.turn_entrants_away("the job is over", now);
                self.clear_the_table(now);
                let members: Vec<ConnectionId> = self.members().map(|(id, _)| id).collect();
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
            let missing = self.arrivals.missing();
            self.turn_all_away(&Down::Missing(missing), now);
        }
        for id in self.arrivals.clear() {
            self.connections.remove(&id);
        }
    }

    /// Tells those who have waited long enough who is missing; the others go on waiting.
    fn refuse(&mut self, missing: Vec<Rank>, now: Instant) {
        let answer = Down::Missing(missing);
        let overdue = self.connections.iter().filter_map(|(id, connection)| match connection.stage {
            Stage::Waiting { rank, overdue: Overdue::Asked, .. } => Some((*id, rank)),
            _ => None,
        });
        for (id, rank) in overdue.collect::<Vec<_>>() {
            self.leave_the_table(id, rank);
            self.dismiss(id, &answer, now);
        }
    }

    /// A rank does not wait any more. An owner that was told of a full table has to know.
    fn leave_the_table(&mut self, id: ConnectionId, rank: Rank) {
        let was_full = self.arrivals.is_full();
        self.arrivals.remove(rank, id);
        if was_full && !self.arrivals.is_full() {
            self.report(RendezvousEvent::Withdrawn { epoch: self.epoch, rank });
        }
    }

    /// A rank at the table has waited for as long as it wanted to. The owner of a part may know more about who is
    /// missing.
    fn outwait(&mut self, id: ConnectionId, now: Instant) {
        let missing = self.arrivals.missing();
        let Some(Connection { stage: Stage::Waiting { rank, until, overdue, .. }, .. }) = self.connections.get_mut(&id)
        else {
            return;
        };
        if matches!(self.rule, Rule::Part(_)) && *overdue == Overdue::No {
            (*until, *overdue) = (now + OWNER_PATIENCE, Overdue::Asked);
            return self.report(RendezvousEvent::Overdue { epoch: self.epoch, missing });
        }
        let rank = *rank;
        self.leave_the_table(id, rank);
        self.dismiss(id, &Down::Missing(missing), now);
    }

    fn turn_all_away(&mut self, answer: &Down, now: Instant) {
        for id in self.arrivals.clear() {
            self.dismiss(id, answer, now);
        }
    }

    /// Does what is due by now.
    fn look_at_clocks(&mut self, now: Instant) {
        let due: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| match &connection.stage {
                Stage::Member(member) => member.due().is_some_and(|due| due <= now),
                other => other.until().is_some_and(|until| until <= now),
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            match self.connections.get(&id).map(|connection| &connection.stage) {
                Some(Stage::Member(_)) => self.miss(id, now),
                Some(Stage::Waiting { .. }) => self.outwait(id, now),
                Some(Stage::Entering { .. } | Stage::Asking { .. }) => self.turn_entrant_away(id, now),
                // One who is on its way out and has taken everything closes its connection, or we do; so for a
                // stranger.
                Some(Stage::Handshake { .. }) => drop(self.connections.remove(&id)),
                Some(Stage::Leaving { .. }) => self.see_off(id),
                None => {}
            }
        }
        if self.blame.as_ref().is_some_and(|(due, _)| *due <= now)
            && let Some((_, blame)) = self.blame.take()
        {
            self.believe(blame, now);
        }
    }

    /// Flushes, and removes connections whose last message was sent.
    fn see_off(&mut self, id: ConnectionId) {
        if let Some(mut connection) = self.connections.remove(&id) {
            let _ = connection.channel.flush();
        }
    }

    fn flush(&mut self) {
        for connection in self.connections.values_mut().filter(|connection| connection.channel.wants_write()) {
            // A connection that takes nothing more will be heard closing.
            let _ = connection.channel.flush();
        }
    }

    fn say(&mut self, id: ConnectionId, down: &Down) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let _ = connection.channel.queue(&down.encode());
        }
    }

    /// Sends a connection its last message. It has a moment to read it and to close its side.
    fn dismiss(&mut self, id: ConnectionId, answer: &Down, now: Instant) {
        self.say(id, answer);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Leaving { until: now + PARTING_PATIENCE };
        }
    }

    /// A connection has ended.
    fn part(&mut self, id: ConnectionId, how: String) {
        let Some(connection) = self.connections.remove(&id) else { return };
        match connection.stage {
            Stage::Handshake { .. } | Stage::Leaving { .. } | Stage::Asking { .. } => {}
            Stage::Entering { member, .. } => self.report(RendezvousEvent::EntryWithdrawn { member }),
            Stage::Waiting { rank, .. } => self.leave_the_table(id, rank),
            Stage::Member(member) => match &self.rule {
                Rule::Whole(_) => {
                    self.write_up(|state| state.ended(member.rank.0, LiveState::Ended, &*how));
                    let notice = member.notice(FailureKind::Gone).saying(how);
                    self.pronounce_in(member.epoch, &notice);
                }
                Rule::Part(on_event) => on_event(RendezvousEvent::Lost { rank: member.rank, how }),
            },
        }
    }

    fn report(&self, event: RendezvousEvent) {
        if let Rule::Part(on_event) = &self.rule {
            on_event(event);
        }
    }

    fn write_up(&self, write: impl FnOnce(&JobState)) {
        if let Rule::Whole(state) = &self.rule {
            write(state);
        }
    }

    fn show(&self, rank: Rank, sample: Vec<u8>, now: Instant) {
        self.write_up(|state| state.sampled(rank.0, &sample, now));
        self.report(RendezvousEvent::Sampled { rank, sample });
    }

    fn pronounce(&mut self, notice: &FailureNotice, epoch: Option<u64>) {
        let down = Down::FailureNotice(notice.clone()).encode();
        for connection in self.connections.values_mut() {
            if let Stage::Member(member) = &connection.stage
                && epoch.is_none_or(|epoch| member.epoch == epoch)
            {
                let _ = connection.channel.queue(&down);
            }
        }
    }
}
