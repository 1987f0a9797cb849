//! One group on one rank: its agreement, its mesh, the requests under way and the bucket that runs.
//!
//! [`Group::turn`] does what can be done now and never blocks: it hears what peers say, asks the agreement what to do, moves
//! the running bucket on, and says what there is to say. Groups share nothing with each other, so a group that waits does
//! not hold up another.
//!
//! A group's life: *open*; *closing* once this rank wants to leave; *closed* when the ranks have agreed to end, which is
//! orderly; *failed* after the first [`Trouble`]. In the last two states the mesh is kept a little longer, until the peers
//! have said their goodbyes: closing a socket whose peer still talks makes the kernel throw away our last words.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::{Action, Bucket, Member, Refusal};
use farandole_plan::message::Message;
use farandole_plan::{Collective, GroupId, Rank, Request, stall};
use farandole_transport::{Error as TransportError, Mesh, Progress, Waiter};

use crate::bucket::{Pending, Place, Table, Workspace};
use crate::error::{Error, Failure};
use crate::fusion::FusionBuffer;
use crate::roster::Roster;
use crate::route::{Road, Router, Travel, shares_memory};
use crate::run::{Memory, Run};
use crate::submission::Outcome;

/// First byte of a control message that carries a message of the agreement.
const SAYS_AGREEMENT: u8 = 0;
/// The only byte of a control message that says: this rank leaves in good order.
const SAYS_GOODBYE: u8 = 1;

/// How long a rank that wants to leave waits for the others to agree. What has been agreed before still runs, so this is
/// longer than any bucket takes; a coordinator that is alive answers at once otherwise.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long a failed or closed group waits for its peers' last words.
const LINGER: Duration = Duration::from_secs(2);

/// How long a broken connection waits for the control lines to tell the cause. A peer sends the cause before it closes
/// anything, so it is here at once or not at all; the network may still reorder connections by some milliseconds.
const CAUSE_PATIENCE: Duration = Duration::from_millis(100);

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

/// What ended a group.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A peer or the way to it.
    Transport(TransportError),
    /// Ranks that never came.
    Stalled(String),
    /// A bug of ours.
    Panicked(String),
}

impl From<TransportError> for Trouble {
    fn from(error: TransportError) -> Trouble {
        Trouble::Transport(error)
    }
}

/// What a group is told when it is made.
pub(crate) struct Settings {
    pub(crate) id: GroupId,
    /// World ranks of the members.
    pub(crate) ranks: Arc<[Rank]>,
    /// Host names by world rank.
    pub(crate) hosts: Arc<[String]>,
    pub(crate) agree: farandole_plan::agree::Settings,
    /// Larger buffers are not kept.
    pub(crate) fusion_limit_bytes: usize,
    pub(crate) deadline: Duration,
    /// `None` if nobody watches.
    pub(crate) stall: Option<stall::Limits>,
}

/// See the module's text.
pub(crate) struct Group {
    settings: Settings,
    place: Place,
    mesh: Mesh,
    member: Member,
    router: Router,
    table: Table,
    fusion: FusionBuffer,
    /// Buckets that have ended here, if the ranks share memory.
    window_operations: u64,
    job: Option<Job>,
    state: State,
    /// Peers that have said goodbye or are gone.
    left: Vec<bool>,
    /// Whether a control line still holds messages back.
    unflushed: bool,
    glances: u32,
    next_stall_check: Duration,
    stalls_reported: HashSet<Arc<str>>,
    /// Reused between buckets.
    done: Vec<(Pending, Outcome)>,
    message: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This rank wants to leave, since this moment.
    Closing(Duration),
    /// Orderly or not, it is over since this moment.
    Ended(Duration),
}

/// The bucket that runs.
struct Job {
    bucket: Bucket,
    road: Road,
    workspace: Workspace,
    stage: Stage,
    began: Duration,
    /// When something last moved.
    moved: Duration,
}

enum Stage {
    /// All ranks gather before memory is touched: in their windows if they share memory, else by a barrier.
    Entry(Option<Run>),
    /// The ranks work.
    Work(Travel),
}

/// What a group needs of the engine in a turn.
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Duration,
    pub(crate) roster: &'a Roster,
    pub(crate) on_stall: &'a (dyn Fn(&str) + Send + Sync),
}

impl Group {
    pub(crate) fn new(settings: Settings, mesh: Mesh) -> Group {
        let place = Place { me: mesh.me(), size: mesh.size() };
        let member = Member::new(place.me, place.size, settings.agree.clone());
        let router = Router::new(place);
        let next_stall_check = settings.stall.map_or(Duration::MAX, |limits| check_interval(&limits));
        Group {
            settings,
            place,
            mesh,
            member,
            router,
            table: Table::default(),
            fusion: FusionBuffer::new(),
            window_operations: 0,
            job: None,
            state: State::Open,
            left: vec![false; place.size],
            unflushed: false,
            glances: 0,
            next_stall_check,
            stalls_reported: HashSet::new(),
            done: Vec::new(),
            message: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> GroupId {
        self.settings.id
    }

    /// Takes a request in.
    pub(crate) fn submit(&mut self, request: Request, pending: Pending, around: &Surroundings<'_>) {
        if let State::Ended(_) = self.state {
            let error = around.roster.ended(self.id()).unwrap_or(Error::ShutDown);
            return pending.promise.fulfil(Err(error));
        }
        match self.member.submit(request, around.now) {
            Ok(id) => self.table.put(id, pending),
            Err(Refusal { reason }) => {
                around.roster.leave(self.id(), std::iter::once(&pending.name));
                let name = Arc::clone(&pending.name);
                pending.promise.fulfil(Err(Error::Refused { name, explanation: reason }));
            }
        }
    }

    /// Does what can be done now. Says whether anything moved.
    pub(crate) fn turn(&mut self, look: Look, around: &Surroundings<'_>) -> Result<bool, Trouble> {
        if let State::Ended(_) = self.state {
            return Ok(self.linger());
        }
        let mut moved = false;
        self.glances += 1;
        if look == Look::Thorough || self.job.is_none() || self.glances >= GLANCES_PER_HEARING {
            self.glances = 0;
            moved |= self.hear(around)?;
        }
        if self.member.next_timeout().is_some_and(|timeout| timeout <= around.now) {
            self.member.handle_timeout(around.now);
        }
        moved |= self.act(around)?;
        moved |= self.speak(around.now)?;
        if self.cannot_close(around.now) {
            self.say_goodbye(around);
        }
        self.watch_for_stalls(around)?;
        Ok(moved)
    }

    /// Whether somebody waits for this group to go on.
    pub(crate) fn has_work(&self) -> bool {
        self.state != State::Open || self.job.is_some() || !self.table.is_empty() || self.unflushed
    }

    /// When [`Group::turn`] is due at the latest, even if nothing happens.
    pub(crate) fn next_timeout(&self) -> Duration {
        if let State::Ended(since) = self.state {
            return since + LINGER;
        }
        let closing = match self.state {
            State::Closing(since) => since + CLOSE_LIMIT,
            _ => Duration::MAX,
        };
        let agreement = self.member.next_timeout().unwrap_or(Duration::MAX).min(closing);
        let deadline = self.job.as_ref().map_or(Duration::MAX, |job| job.moved + self.settings.deadline);
        agreement.min(deadline).min(self.next_stall_check)
    }

    /// The driver is about to sleep: peers on this host must ring when they have moved. Without a running bucket there is
    /// nothing in the windows to wait for, and ringing would only cost them time.
    pub(crate) fn fall_asleep(&self) {
        if let (Some(windows), Some(_)) = (&self.mesh.windows, &self.job) {
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
        let State::Ended(since) = self.state else { return false };
        let all_left = (0..self.place.size).all(|rank| rank == self.place.me.index() || self.left[rank]);
        (all_left && !self.unflushed) || now >= since + LINGER
    }

    fn hear(&mut self, around: &Surroundings<'_>) -> Result<bool, Trouble> {
        let mut moved = false;
        for peer in self.mesh.peers_mut() {
            while !self.left[peer.rank.index()] {
                let Some(message) = peer.control.recv()? else { break };
                moved = true;
                let garbled = |what: String| TransportError::Garbled { peer: peer.rank, what };
                match message.split_first() {
                    Some((&SAYS_AGREEMENT, body)) => {
                        let message = Message::decode(body).map_err(|bad| garbled(bad.to_string()))?;
                        self.member
                            .receive(peer.rank, message, around.now)
                            .map_err(|violation| garbled(violation.what))?;
                    }
                    Some((&SAYS_GOODBYE, [])) => self.left[peer.rank.index()] = true,
                    _ => return Err(garbled("a control message of no known kind".to_owned()).into()),
                }
            }
        }
        Ok(moved)
    }

    fn speak(&mut self, now: Duration) -> Result<bool, Trouble> {
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

    fn act(&mut self, around: &Surroundings<'_>) -> Result<bool, Trouble> {
        let mut moved = false;
        let mut refused = Vec::new();
        let result = loop {
            while let Some(action) = self.member.poll_action(around.now) {
                moved = true;
                self.take(action, &mut refused, around);
            }
            match self.advance(around.now) {
                Ok(Some(Progress::Done)) => {
                    moved = true;
                    if let Err(trouble) = self.complete(around) {
                        break Err(trouble);
                    }
                }
                Ok(progress) => {
                    moved |= progress == Some(Progress::Moved);
                    break Ok(moved);
                }
                Err(trouble) => break Err(trouble),
            }
        };
        self.refuse(refused, around);
        result
    }

    fn take(&mut self, action: Action, refused: &mut Vec<(Pending, Arc<str>)>, around: &Surroundings<'_>) {
        match action {
            Action::Run(bucket) => self.start(bucket, around.now),
            Action::Abandon { operation } => {
                let job = self.job.take().expect("invariant: only the running bucket is abandoned");
                assert_eq!(job.bucket.operation, operation, "invariant: only the running bucket is abandoned");
                if let Some(windows) = &mut self.mesh.windows {
                    windows.give_up();
                }
            }
            Action::Refuse { requests, reason } => {
                refused.extend(requests.into_iter().map(|id| (self.table.take(id), Arc::clone(&reason))));
            }
            Action::Joined { request, last } => {
                let pending = self.table.take(request);
                around.roster.leave(self.id(), std::iter::once(&pending.name));
                pending.promise.fulfil(Ok(Outcome { last_joined: Some(last), ..Outcome::default() }));
            }
            Action::Closed { .. } => {
                // The last messages of the agreement go before the goodbye. Whoever cannot be told has left.
                let _ = self.speak(around.now);
                self.say_goodbye(around);
            }
        }
    }

    fn start(&mut self, bucket: Bucket, now: Duration) {
        assert!(self.job.is_none(), "invariant: one bucket runs at a time");
        let road = self.router.road(&bucket.plan, &self.mesh, self.fusion.mapped_bytes());
        let mut workspace = Workspace::choose(&bucket, road, self.place, self.settings.fusion_limit_bytes);
        let number = self.window_operation(&bucket);
        let shares_memory = shares_memory(&self.mesh);
        if let Some(windows) = self.mesh.windows.as_mut().filter(|_| shares_memory) {
            windows.begin(number, bucket.plan.hash, &[]);
        }
        // Whoever shares memory must see that all others have come before it goes on to the next bucket, or a slow
        // rank would find the board overwritten. Steps through windows see to that themselves.
        let gathers = shares_memory && (road == Road::Messages || bucket.plan.elems == 0);
        let stage = if bucket.entry_barrier || gathers {
            Stage::Entry((!shares_memory).then(|| self.router.entry(&bucket)))
        } else {
            workspace.load(&bucket, self.place, &mut self.table, &mut self.fusion);
            Stage::Work(self.router.travel(&bucket, road, &self.mesh, None))
        };
        self.job = Some(Job { bucket, road, workspace, stage, began: now, moved: now });
    }

    /// The number of a bucket on the boards of this host. Like the bucket's own it grows and is the same on all ranks; besides,
    /// two buckets that run one after the other have numbers of different parity, because a board has two sides. An
    /// abandoned bucket and the one in its place have the same parity, which does no harm: nobody looks any more.
    fn window_operation(&self, bucket: &Bucket) -> u64 {
        self.window_operations + 2 * u64::from(bucket.operation.generation()) + 1
    }

    /// Moves the running bucket on, if there is one.
    fn advance(&mut self, now: Duration) -> Result<Option<Progress>, Trouble> {
        let Some(job) = &mut self.job else { return Ok(None) };
        let mut progress = Progress::Done;
        if let Stage::Entry(barrier) = &mut job.stage {
            progress = gather(&mut self.mesh, barrier)?;
            if progress == Progress::Done {
                let entry = barrier.take();
                job.workspace.load(&job.bucket, self.place, &mut self.table, &mut self.fusion);
                job.stage = Stage::Work(self.router.travel(&job.bucket, job.road, &self.mesh, entry));
            }
        }
        if let Stage::Work(travel) = &mut job.stage {
            let baggage = job.workspace.baggage(&job.bucket, self.place, &mut self.table, &mut self.fusion);
            progress = travel.advance(&mut self.mesh, &job.bucket.plan, baggage)?;
        }
        if progress != Progress::Pending {
            job.moved = now;
        } else if now.saturating_sub(job.moved) >= self.settings.deadline {
            let peer = match &job.stage {
                Stage::Entry(Some(barrier)) => barrier.waiting_for(),
                Stage::Entry(None) => {
                    self.mesh.windows.as_ref().and_then(|windows| windows.first_absent().map(|seat| windows.rank(seat)))
                }
                Stage::Work(travel) => travel.waiting_for(&self.mesh),
            };
            let waiting_for = "nothing moved".to_owned();
            return Err(TransportError::Deadline { peer, waiting_for, waited: now - job.moved }.into());
        }
        Ok(Some(progress))
    }

    /// The running bucket is done on this rank.
    fn complete(&mut self, around: &Surroundings<'_>) -> Result<(), Trouble> {
        let Job { bucket, road, workspace, .. } =
            self.job.take().expect("invariant: a bucket that is done was running");
        workspace.unload(&bucket, road, self.place, &mut self.table, &mut self.fusion, &mut self.done);
        self.member.finished(bucket.operation, around.now);
        around.roster.leave(self.settings.id, self.done.iter().map(|(pending, _)| &pending.name));
        for (pending, outcome) in self.done.drain(..) {
            pending.promise.fulfil(Ok(outcome));
        }
        self.prepare_mapped(&bucket)
    }

    /// Lets the mapped fusion buffer grow to what this bucket would have liked.
    fn prepare_mapped(&mut self, bucket: &Bucket) -> Result<(), Trouble> {
        self.window_operations += 1;
        if !shares_memory(&self.mesh) {
            return Ok(());
        }
        let plan = &bucket.plan;
        let wants = plan.staged && matches!(plan.collective, Collective::Allreduce { .. });
        let wanted_bytes = if wants { plan.elems as usize * plan.dtype.size_bytes() } else { 0 };
        let windows = self.mesh.windows.as_mut().expect("invariant: ranks that share memory have windows");
        Ok(self.fusion.after_bucket(wanted_bytes, windows)?)
    }

    fn refuse(&mut self, refused: Vec<(Pending, Arc<str>)>, around: &Surroundings<'_>) {
        around.roster.leave(self.id(), refused.iter().map(|(pending, _)| &pending.name));
        for (pending, explanation) in refused {
            let error = match self.state {
                State::Open => Error::Refused { name: Arc::clone(&pending.name), explanation },
                _ => Error::ShutDown,
            };
            pending.promise.fulfil(Err(error));
        }
    }

    fn say_goodbye(&mut self, around: &Surroundings<'_>) {
        self.state = State::Ended(around.now);
        around.roster.end(self.id(), &Error::ShutDown);
        for pending in self.table.take_all() {
            pending.promise.fulfil(Err(Error::ShutDown));
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

    fn watch_for_stalls(&mut self, around: &Surroundings<'_>) -> Result<(), Trouble> {
        if around.now < self.next_stall_check {
            return Ok(());
        }
        let Some(limits) = &self.settings.stall else { return Ok(()) };
        self.next_stall_check = around.now + check_interval(limits);
        let Some(report) = self.member.stalled(limits, around.now) else {
            self.stalls_reported.clear();
            return Ok(());
        };
        let news =
            report.stalled.iter().filter(|waiting| self.stalls_reported.insert(Arc::clone(&waiting.name))).count();
        if news > 0 {
            (around.on_stall)(&report.text);
        }
        if report.shut_down {
            return Err(Trouble::Stalled(report.text));
        }
        Ok(())
    }

    /// The first cause behind a trouble of this group, complete with everything a user wants to know.
    pub(crate) fn first_cause(&mut self, trouble: Trouble, waiter: &Waiter, now: Duration) -> Failure {
        let (what, rank) = match trouble {
            Trouble::Transport(error) => {
                let error = self.mesh.first_cause(error, waiter, CAUSE_PATIENCE);
                let rank = error.peer().map(|peer| self.settings.ranks[peer.index()]);
                if let TransportError::PeerAborted { cause, .. } = error {
                    return self.failure(cause, rank, now);
                }
                (in_words(&error, rank, &self.settings.hosts), rank)
            }
            Trouble::Stalled(text) => return self.failure(text, None, now),
            Trouble::Panicked(text) => (text, Some(self.settings.ranks[self.place.me.index()])),
        };
        let under_way = self.under_way(now);
        self.failure(format!("{what}{under_way}"), rank, now)
    }

    /// Ends the group for this cause, on all ranks.
    pub(crate) fn fail(&mut self, error: &Error, around: &Surroundings<'_>) {
        if let State::Ended(_) = self.state {
            return;
        }
        self.state = State::Ended(around.now);
        self.job = None;
        around.roster.end(self.id(), error);
        self.mesh.abort(&error.to_string());
        self.unflushed = true;
        for pending in self.table.take_all() {
            pending.promise.fulfil(Err(error.clone()));
        }
        self.linger();
    }

    fn failure(&self, what: String, rank: Option<Rank>, now: Duration) -> Failure {
        let job = self.job.as_ref();
        let tensor = job.map(|job| Arc::clone(&job.bucket.plan.parts[0].item.name));
        Failure { what, rank, tensor, elapsed: job.map(|job| now.saturating_sub(job.began)), orderly: false }
    }

    fn under_way(&self, now: Duration) -> String {
        let me = self.settings.ranks[self.place.me.index()];
        let noticed = format!("noticed by rank {me} on {}", self.settings.hosts[me.index()]);
        let group = match self.settings.id {
            GroupId::WORLD => String::new(),
            group => format!(" in group {group}"),
        };
        let Some(job) = &self.job else { return format!("; nothing was running{group}; {noticed}") };
        let parts = &job.bucket.plan.parts;
        let more = if parts.len() > 1 { format!(" and {} more", parts.len() - 1) } else { String::new() };
        format!(
            "; under way for {:.3} s{group}: {} \"{}\"{more}; {noticed}",
            now.saturating_sub(job.began).as_secs_f64(),
            job.bucket.plan.collective.word(),
            parts[0].item.name,
        )
    }
}

/// Waits until all ranks have come to the bucket.
fn gather(mesh: &mut Mesh, barrier: &mut Option<Run>) -> Result<Progress, TransportError> {
    if let Some(run) = barrier {
        return run.advance(mesh, &mut Memory { work: &mut [], source: &[], elem_bytes: 1, fold: None });
    }
    let windows = mesh.windows.as_mut().expect("invariant: ranks gather by a barrier or in their windows");
    Ok(if windows.all_begun()? { Progress::Done } else { Progress::Pending })
}

fn check_interval(limits: &stall::Limits) -> Duration {
    let shortest = match limits.shut_down_after {
        Duration::ZERO => limits.warn_after,
        shut_down_after => limits.warn_after.min(shut_down_after),
    };
    (shortest / 4).max(Duration::from_millis(10))
}

/// An error in terms of world ranks, with the host of the one that is to blame.
fn in_words(error: &TransportError, rank: Option<Rank>, hosts: &[String]) -> String {
    let Some(rank) = rank else { return error.to_string() };
    let who = format!("rank {rank} on {}", hosts[rank.index()]);
    match error {
        TransportError::PeerGone { how, .. } => format!("{who} is gone ({how})"),
        TransportError::Garbled { what, .. } => format!("{who} sent something unexpected: {what}"),
        TransportError::Corrupt { what, .. } => format!("data from {who} arrived damaged: {what}"),
        TransportError::Deadline { waiting_for, waited, .. } => {
            format!("waited {:.1} s for {who}: {waiting_for}", waited.as_secs_f64())
        }
        other => other.to_string(),
    }
}
