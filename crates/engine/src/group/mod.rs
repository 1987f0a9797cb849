//! One group on one rank: its agreement, its mesh, the requests under way and the bucket that runs (`active`).
//!
//! [`Group::turn`] does what can be done now and never blocks: it hears what peers say, asks the agreement what to do,
//! moves the running bucket on, and says what there is to say. Groups share nothing with each other, so a group that
//! waits does not hold up another.
//!
//! A group's life: *open*; *closing* once this rank wants to leave; *closed* when the ranks have agreed to end, which
//! is orderly; *failed* after the first [`GroupError`]. In the last two states the mesh is kept a little longer, until
//! the peers have said their goodbyes: closing a socket whose peer still talks makes the kernel throw away our last
//! words.

mod active_bucket;
mod group_error;
mod stalls;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::{Action, Member, Refusal};
use farandole_plan::choose::{AlgorithmLimits, Choices, Hierarchical};
use farandole_plan::message::Message;
use farandole_plan::stall::{self, Word};
use farandole_plan::table::Table as Measured;
use farandole_plan::{GroupId, Rank, Request};
use farandole_trace::event::NameId;
use farandole_transport::{Error as TransportError, Mesh, Progress};

use crate::bucket::{GroupRank, Pending, PendingTable};
use crate::error::Error;
use crate::exec::fusion_buffer::FusionBuffer;
use crate::exec::planes::Planes;
use crate::plane::{Offer, PlaneGroup};
use crate::record::group::GroupRecord;
use crate::submission::Outcome;
use crate::tensor_table::TensorTable;

pub(crate) use group_error::GroupError;
pub use stalls::StallNotice;

use active_bucket::ActiveBucket;
use stalls::{Stalls, check_interval};

/// First byte of a control message that carries a message of the agreement.
const SAYS_AGREEMENT: u8 = 0;
/// The only byte of a control message that says: this rank leaves in good order.
const SAYS_GOODBYE: u8 = 1;
/// First byte of a control message about a stall.
const SAYS_STALL: u8 = 2;

/// How long a rank that wants to leave waits for the others to agree. What has been agreed before still runs, so this
/// is longer than any bucket takes; a coordinator that is alive answers at once otherwise.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long a failed or closed group waits for its peers' last words.
const LINGER: Duration = Duration::from_secs(2);

/// The same after an abort handle that names no rank: some of the peers will never answer, and those that live have
/// heard it themselves. Long enough to let our own words out, short beside the time that a launcher gives ranks to end.
const ABORTED_LINGER: Duration = Duration::from_millis(200);

/// A driver that spins on a running bucket hears the control lines this seldom: each look is a system call for each
/// peer, and the bucket is what is waited for.
const GLANCES_PER_HEARING: u32 = 32;

/// How closely a turn looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// At what most likely moves.
    Glance,
    /// At everything; due before sleeping, because the waiter reports a change once.
    Thorough,
}

/// What a group is told when it is made.
pub(crate) struct Settings {
    pub(crate) id: GroupId,
    /// World ranks of the members.
    pub(crate) ranks: Arc<[Rank]>,
    /// Names of hosts for messages, by world rank.
    pub(crate) hosts: Arc<[String]>,
    pub(crate) agree: farandole_plan::agree::Settings,
    /// Larger buffers are not kept.
    pub(crate) fusion_limit_bytes: usize,
    /// How long a bucket may stand still.
    pub(crate) wait: crate::wait_limits::WaitLimits,
    /// `None` if nobody watches.
    pub(crate) stall: Option<stall::StallLimits>,
    /// By which ways are chosen; the same on all ranks.
    pub(crate) table: Option<Arc<Measured>>,
    /// Whether the user has taken a part of that choice away; the same on all ranks.
    pub(crate) hierarchical: Hierarchical,
}

/// See the module's text.
pub(crate) struct Group {
    settings: Settings,
    here: GroupRank,
    mesh: Mesh,
    record: GroupRecord,
    member: Member,
    planes: Planes,
    table: PendingTable,
    fusion: FusionBuffer,
    /// Buckets that have ended here, if the ranks share memory.
    window_operations: u64,
    active: Option<Box<ActiveBucket>>,
    state: State,
    /// Peers that have said goodbye or are gone.
    left: Vec<bool>,
    /// Whether a control line still holds messages back.
    unflushed: bool,
    glances: u32,
    next_stall_check: Duration,
    /// Names whose stall was told, and when it is told again.
    stalls_reported: HashMap<Arc<str>, Duration>,
    stalls: Stalls,
    /// Reused between buckets.
    done: Vec<(Pending, Outcome)>,
    message: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This rank wants to leave, since this moment.
    Closing(Duration),
    /// Orderly or not, it is over; until this moment it waits for what peers have to say.
    Ended(Duration),
}

/// What a group needs of the engine in a turn.
pub(crate) struct TurnInput<'a> {
    pub(crate) now: Duration,
    pub(crate) tensor_table: &'a TensorTable,
    pub(crate) on_stall: &'a (dyn Fn(&StallNotice) + Send + Sync),
}

impl Group {
    pub(crate) fn new(
        settings: Settings,
        mesh: Mesh,
        record: GroupRecord,
        added: Vec<(Offer, Box<dyn PlaneGroup>)>,
    ) -> Group {
        let here = GroupRank { me: mesh.me(), size: mesh.size() };
        let member = Member::new(here.me, here.size, settings.agree.clone());
        let limits = AlgorithmLimits { hierarchical: settings.hierarchical, ..AlgorithmLimits::default() };
        let choices = Choices::new(settings.table.clone(), mesh.topology(), limits);
        let planes = Planes::new(here, choices, added);
        let next_stall_check = settings.stall.map_or(Duration::MAX, |wait_limits| check_interval(&wait_limits));
        Group {
            settings,
            here,
            mesh,
            record,
            member,
            planes,
            table: PendingTable::default(),
            fusion: FusionBuffer::new(),
            window_operations: 0,
            active: None,
            state: State::Open,
            left: vec![false; here.size],
            unflushed: false,
            glances: 0,
            next_stall_check,
            stalls_reported: HashMap::new(),
            stalls: Stalls::default(),
            done: Vec::new(),
            message: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> GroupId {
        self.settings.id
    }

    /// Takes a request in.
    pub(crate) fn submit(&mut self, request: Request, pending: Pending, turn: &TurnInput<'_>) {
        if let State::Ended(_) = self.state {
            let error = turn.tensor_table.ended(self.id()).unwrap_or(Error::ShutDown);
            return pending.fail(error);
        }
        self.record.submitted(&request, &pending, turn.now);
        match self.member.submit(request, turn.now) {
            Ok(id) => self.table.put(id, pending),
            Err(Refusal { reason }) => {
                turn.tensor_table.leave(self.id(), std::iter::once(&pending.name));
                self.record.failed(&pending, turn.now);
                let name = Arc::clone(&pending.name);
                pending.fail(Error::Refused { name, explanation: reason });
            }
        }
    }

    /// The driver has taken orders in.
    pub(crate) fn note_cycle(&mut self, now: Duration) {
        self.record.cycle(now);
    }

    /// This process has been found asleep for so long in all; the moments that it is told are awake time.
    pub(crate) fn slept(&mut self, slept: Duration) {
        self.record.slept(slept);
    }

    /// A moment as it is recorded.
    pub(crate) fn time_ns(&self, moment: Duration) -> u64 {
        self.record.at(moment)
    }

    /// The thread that drives has waited for a request, of this group or another one.
    pub(crate) fn note_wait(&mut self, name: NameId, since: Duration, turned_at: Duration) {
        self.record.waited(name, since, turned_at);
    }

    /// Another thread drives.
    pub(crate) fn pick_up(&mut self) {
        self.record.pick_up();
    }

    /// Does what can be done now. Says whether anything moved.
    pub(crate) fn turn(&mut self, look: Look, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        if let State::Ended(_) = self.state {
            return Ok(self.linger());
        }
        let mut moved = false;
        self.glances += 1;
        if look == Look::Thorough || self.active.is_none() || self.glances >= GLANCES_PER_HEARING {
            self.glances = 0;
            moved |= self.hear(turn)?;
        }
        if self.member.next_timeout().is_some_and(|timeout| timeout <= turn.now) {
            self.member.handle_timeout(turn.now);
        }
        moved |= self.act(turn)?;
        moved |= self.speak(turn.now)?;
        if self.cannot_close(turn.now) {
            self.say_goodbye(turn);
        }
        self.watch_for_stalls(turn)?;
        Ok(moved)
    }

    /// Whether somebody waits for this group to go on.
    pub(crate) fn has_work(&self) -> bool {
        self.state != State::Open || self.active.is_some() || !self.table.is_empty() || self.unflushed
    }

    /// When [`Group::turn`] is due at the latest, even if nothing happens.
    pub(crate) fn next_timeout(&self) -> Duration {
        if let State::Ended(until) = self.state {
            return until;
        }
        let closing = match self.state {
            State::Closing(since) => since + CLOSE_LIMIT,
            _ => Duration::MAX,
        };
        let agreement = self.member.next_timeout().unwrap_or(Duration::MAX).min(closing);
        let deadline = self
            .active
            .as_ref()
            .map_or(Duration::MAX, |active| active.moved.saturating_add(self.settings.wait.shortest()));
        agreement.min(deadline).min(self.next_stall_check).min(self.inquest_due())
    }

    /// The driver is about to sleep: peers on this host must ring when they have moved. Without a running bucket there
    /// is nothing in the windows to wait for, and ringing would only cost them time.
    pub(crate) fn fall_asleep(&mut self) {
        if let Some(active) = &self.active {
            self.record.doze(&active.bucket, || active.waiting_for(&self.mesh));
        }
        if let (Some(windows), Some(_)) = (&self.mesh.windows, &self.active) {
            windows.raise_asleep();
        }
    }

    /// The driver is awake: peers on this host need not ring.
    pub(crate) fn wake_up(&self) {
        if let Some(windows) = &self.mesh.windows {
            windows.lower_asleep();
        }
    }

    /// Wants to leave in good order.
    pub(crate) fn close(&mut self, now: Duration) {
        if self.state == State::Open {
            self.state = State::Closing(now);
            self.member.close(now);
        }
    }

    /// Whether waiting for an orderly end has become pointless: the coordinator does not answer.
    fn cannot_close(&self, now: Duration) -> bool {
        matches!(self.state, State::Closing(since) if now >= since + CLOSE_LIMIT)
    }

    /// Whether the group is over and the mesh can be dropped.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        let State::Ended(until) = self.state else { return false };
        let all_left = (0..self.here.size).all(|rank| rank == self.here.me.index() || self.left[rank]);
        (all_left && !self.unflushed) || now >= until
    }

    fn hear(&mut self, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut about_stalls = Vec::new();
        for peer in self.mesh.peers_mut() {
            while !self.left[peer.rank.index()] {
                let Some(message) = peer.control.recv()? else { break };
                moved = true;
                let garbled = |what: String| TransportError::Garbled { peer: peer.rank, what };
                match message.split_first() {
                    Some((&SAYS_AGREEMENT, body)) => {
                        let message = Message::decode(body).map_err(|bad| garbled(bad.to_string()))?;
                        if let Message::Announce { requests, .. } = &message {
                            self.record.arrived(peer.rank, requests, turn.now);
                        }
                        self.member
                            .receive(peer.rank, message, turn.now)
                            .map_err(|violation| garbled(violation.what))?;
                    }
                    Some((&SAYS_GOODBYE, [])) => self.left[peer.rank.index()] = true,
                    Some((&SAYS_STALL, body)) => {
                        let word = Word::decode(body).map_err(|bad| garbled(bad.to_string()))?;
                        about_stalls.push((peer.rank, word));
                    }
                    _ => return Err(garbled("a control message of no known kind".to_owned()).into()),
                }
            }
        }
        for (from, word) in about_stalls {
            self.hear_of_stall(from, word, turn)?;
        }
        Ok(moved)
    }

    fn speak(&mut self, now: Duration) -> Result<bool, GroupError> {
        let mut moved = false;
        while let Some((to, message)) = self.member.poll_send(now) {
            self.message.clear();
            self.message.push(SAYS_AGREEMENT);
            message.encode(&mut self.message);
            if !self.left[to.index()] {
                self.mesh.peer_mut(to).control.send(&self.message)?;
                self.unflushed = true;
            }
            moved = true;
        }
        self.flush()?;
        Ok(moved)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        if self.unflushed {
            self.unflushed = false;
            for peer in self.mesh.peers_mut() {
                if !self.left[peer.rank.index()] {
                    self.unflushed |= peer.control.flush()? != Progress::Done;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut refused = Vec::new();
        let result = loop {
            while let Some(action) = self.member.poll_action(turn.now) {
                moved = true;
                self.take(action, &mut refused, turn);
            }
            match self.advance(turn.now) {
                Ok(Some(Progress::Done)) => {
                    moved = true;
                    if let Err(group_error) = self.complete(turn) {
                        break Err(group_error);
                    }
                }
                Ok(progress) => {
                    moved |= progress == Some(Progress::Moved);
                    break Ok(moved);
                }
                Err(group_error) => break Err(group_error),
            }
        };
        self.refuse(refused, turn);
        result
    }

    fn take(&mut self, action: Action, refused: &mut Vec<(Pending, Arc<str>)>, turn: &TurnInput<'_>) {
        match action {
            Action::Run(bucket) => self.start(bucket, turn.now),
            Action::Abandon { operation } => {
                let active = self.active.take().expect("invariant: only the running bucket is abandoned");
                assert_eq!(active.bucket.operation, operation, "invariant: only the running bucket is abandoned");
                self.record.abandoned(operation, turn.now);
                if let Some(windows) = &mut self.mesh.windows {
                    windows.give_up();
                }
            }
            Action::Refuse { requests, reason } => {
                refused.extend(requests.into_iter().map(|id| (self.table.take(id), Arc::clone(&reason))));
            }
            Action::Joined { request, last } => {
                let pending = self.table.take(request);
                turn.tensor_table.leave(self.id(), std::iter::once(&pending.name));
                self.record.done(&pending, turn.now);
                pending.promise.fulfil(Ok(Outcome { last_joined: Some(last), ..Outcome::default() }));
            }
            Action::Closed { .. } => {
                // The last messages of the agreement go before the goodbye. Whoever cannot be told has left.
                let _ = self.speak(turn.now);
                self.say_goodbye(turn);
            }
        }
    }

    fn refuse(&mut self, refused: Vec<(Pending, Arc<str>)>, turn: &TurnInput<'_>) {
        turn.tensor_table.leave(self.id(), refused.iter().map(|(pending, _)| &pending.name));
        for (pending, explanation) in refused {
            self.record.failed(&pending, turn.now);
            let error = match self.state {
                State::Open => Error::Refused { name: Arc::clone(&pending.name), explanation },
                _ => Error::ShutDown,
            };
            pending.fail(error);
        }
    }

    fn say_goodbye(&mut self, turn: &TurnInput<'_>) {
        self.state = State::Ended(turn.now + LINGER);
        turn.tensor_table.end(self.id(), &Error::ShutDown);
        for pending in self.table.take_all() {
            pending.fail(Error::ShutDown);
        }
        for peer in self.mesh.peers_mut() {
            // A peer that cannot be told has left already.
            self.left[peer.rank.index()] |= peer.control.send(&[SAYS_GOODBYE]).is_err();
        }
        self.unflushed = true;
    }

    /// After the end: lets the last words out and waits for those of the peers.
    fn linger(&mut self) -> bool {
        let mut moved = false;
        self.unflushed = false;
        for peer in self.mesh.peers_mut() {
            let left = &mut self.left[peer.rank.index()];
            let flushed = peer.control.flush();
            self.unflushed |= flushed.is_ok_and(|progress| progress != Progress::Done);
            while !*left {
                match peer.control.recv() {
                    Ok(Some(message)) => {
                        moved = true;
                        *left = message == [SAYS_GOODBYE];
                    }
                    Ok(None) => break,
                    Err(_) => *left = true,
                }
            }
        }
        moved
    }

    /// Fails all requests under way, also those of a bucket that was being completed.
    pub(crate) fn fail_requests(&mut self, error: &Error, now: Duration) {
        while let Some((mut pending, outcome)) = self.done.pop() {
            (pending.input, pending.output) = (outcome.input, outcome.output);
            pending.fail(error.clone());
        }
        for pending in self.table.take_all() {
            self.record.failed(&pending, now);
            pending.fail(error.clone());
        }
    }

    /// A world rank is lost: its last words are not waited for.
    pub(crate) fn expect_nothing_of(&mut self, world_rank: Rank) {
        if let Some(member) = self.settings.ranks.iter().position(|&rank| rank == world_rank) {
            self.left[member] = true;
        }
    }

    /// Nobody knows which peers will never answer: a group that has ended does not wait long for any.
    pub(crate) fn expect_little(&mut self, now: Duration) {
        if let State::Ended(until) = &mut self.state {
            *until = (*until).min(now + ABORTED_LINGER);
        }
    }

    /// Ends the group for this cause, on all ranks.
    pub(crate) fn fail(&mut self, error: &Error, turn: &TurnInput<'_>) {
        if let State::Ended(_) = self.state {
            return;
        }
        self.state = State::Ended(turn.now + LINGER);
        self.active = None;
        turn.tensor_table.end(self.id(), error);
        let blamed = if let Error::Failed(failure) = error { failure.rank } else { None };
        self.mesh.abort(blamed, &error.to_string());
        self.unflushed = true;
        self.fail_requests(error, turn.now);
        self.record.group_error(&error.to_string(), turn.now);
        self.linger();
    }
}
