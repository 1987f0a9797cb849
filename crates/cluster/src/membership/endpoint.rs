//! A process's handle on the membership of its job.
//!
//! All the work is done by one thread (`endpoint_thread`); this handle sends it commands and waits for what it decides.
//! One thread of the process is at the boundary at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_plan::membership::{
    ConfirmRefusal, Generation, Introduction, Limits, Loss, LossEvidence, MemberId, Waiting,
};
use farandole_transport::descriptors::make_room;
use farandole_transport::{Countdown, JobId, Key};

use super::connection::{MemberListener, Sockets};
use super::endpoint_core::EndpointCore;
use super::endpoint_thread::{self, GOODBYE_PATIENCE};
use super::vote_file::decode_votes;
use super::wire::Whereabouts;
use crate::environment;
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::strangers::MOST_STRANGERS;

/// The thread reads, seals and calls back; the largest thing on its stack is a read buffer of 8 KB.
const STACK_BYTES: usize = 256 << 10;

/// Descriptors are reserved for so many members; of a job without an upper limit nobody knows how many there will be.
const MOST_RESERVED: usize = 1024;

/// The thread answers at the end of the longest silence. This much later the question has met no generation at all.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(5);

/// What an endpoint needs to know before anybody is met.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// The job's key.
    pub key: Key,
    /// Which job this is; others may have the same key.
    pub job: JobId,
    /// Identity of this host, within which Unix sockets are used.
    pub host: String,
    /// Where members of other hosts connect; port 0 becomes a free one. Empty, if there are none.
    pub listen_at: Vec<SocketAddr>,
    /// How many members there may be, and how long one may be silent.
    pub limits: Limits,
    /// The folder in which this member's decisions are recorded, if they are.
    pub record_in: Option<PathBuf>,
    /// The descriptor of the file in which it records its votes for its agent, if it has one.
    pub votes_in: Option<u32>,
}

impl EndpointOptions {
    /// For a job on this host.
    pub fn new(key: Key, job: JobId, limits: Limits) -> EndpointOptions {
        let (host, listen_at) = (environment::this_host(), Vec::new());
        EndpointOptions { key, job, host, listen_at, limits, record_in: None, votes_in: None }
    }
}

/// A member of the current generation is lost, or this process is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossNotice {
    /// The generation that cannot go on.
    pub generation: u64,
    /// Who; this process itself, if the others have gone on without it.
    pub member: MemberId,
    /// The rank of that member in the generation.
    pub rank: Option<usize>,
    /// How sure that is.
    pub loss: Loss,
    /// What was seen.
    pub cause: String,
}

impl fmt::Display for LossNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LossNotice { generation, member, rank, loss, cause } = self;
        match rank {
            Some(rank) => write!(f, "rank {rank} of generation {generation} (member {member}) ")?,
            None => write!(f, "member {member} of generation {generation} ")?,
        }
        let how = if *loss == Loss::Certain { "is lost" } else { "cannot be reached" };
        write!(f, "{how}: {cause}")
    }
}

/// A process's part in the membership of its job. Dropping it leaves in order.
pub struct Endpoint {
    contact: Vec<u8>,
    commands: Mailbox<Command>,
    shared: Arc<Shared>,
    /// How long a member may be silent.
    silence: Duration,
    /// The process that has the thread: a fork of it has a copy of this handle and takes no part.
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

/// What the endpoint's thread is to do.
#[derive(Debug)]
pub enum Command {
    /// Begin as a member of the first generation.
    Found {
        /// The number of this process.
        me: MemberId,
        /// The first generation.
        generation: Arc<Generation>,
    },
    /// Begin as a candidate.
    Join {
        /// The number of this process.
        me: MemberId,
        /// Contacts of members.
        seeds: Vec<Vec<u8>>,
    },
    /// Come to the boundary with this payload.
    Come(Vec<u8>),
    /// Leave, unless the next generation has been installed.
    GiveUp,
    /// Ask whether this process is still in the job; the answer has the same number.
    Confirm(u64),
    /// Another process has noticed a loss.
    Report {
        /// Which member.
        member: MemberId,
        /// What was seen.
        evidence: LossEvidence,
        /// In which words.
        cause: String,
    },
    /// The answer of the witness.
    Witness(Vec<u8>),
    /// Leave in order.
    Leave,
}

type OnLoss = Box<dyn Fn(&LossNotice) + Send>;
type OnBoundary = Box<dyn Fn(u64, MemberId) + Send>;
type OnQuestion = Box<dyn Fn(Vec<u8>) + Send>;

/// What the endpoint's thread and the handle share.
#[derive(Default)]
pub struct Shared {
    /// Locked by the thread when something is decided or lost, and while the callback runs; by the process when it
    /// waits, asks or sets the callback.
    state: Mutex<EndpointState>,
    changed: Condvar,
    /// The next question of [`Endpoint::confirm`], counted by the threads that ask; orders nothing.
    next_nonce: AtomicU64,
    /// Written by the thread, read by the process once in a step or so; only a hint.
    pub(super) candidates: AtomicUsize,
    /// The same.
    pub(super) connected: AtomicUsize,
}

/// What a process is told by its endpoint.
#[derive(Default)]
pub struct EndpointState {
    /// The generation that this process is in.
    pub generation: Option<Arc<Generation>>,
    /// Set when somebody who is at the boundary gets what it waits for.
    pub outcome: Option<BoundaryOutcome>,
    /// Answers to [`Endpoint::confirm`], by nonce, until the thread that has asked takes them.
    confirmed: BTreeMap<u64, std::result::Result<u64, ConfirmRefusal>>,
    /// What it waits for there.
    pub waiting: Option<Waiting>,
    /// Why the last attempt to connect to somebody failed.
    pub(super) obstacle: Option<String>,
    /// Losses in the current generation; a callback that comes later hears of them.
    pub notices: Vec<LossNotice>,
    on_loss: Option<OnLoss>,
    /// Who was first at the boundary of which generation, as far as this process was told.
    pub called: Option<(u64, MemberId)>,
    on_boundary: Option<OnBoundary>,
    on_question: Option<OnQuestion>,
    /// Set when the thread has ended.
    pub(super) over: bool,
}

/// How a stay at the boundary has ended.
#[derive(Clone, Debug)]
pub enum BoundaryOutcome {
    /// This process is in the next generation.
    Installed(Arc<Generation>),
    /// The others have continued without it.
    Evicted {
        /// In this generation.
        generation: u64,
        /// Why.
        cause: String,
    },
    /// Its deadline has passed.
    GaveUp,
}

impl Endpoint {
    /// Listens for other members, whom it does not know yet.
    pub fn bind(options: EndpointOptions) -> Result<Endpoint> {
        let starting = |error| Error::local("starting the membership endpoint", error);
        let random = Key::random().map_err(|error| starting(std::io::Error::other(error)))?.to_hex();
        let unix_name = format!("farandole-member-{}-{}", std::process::id(), &random[..16]);
        let mut listeners = vec![MemberListener::unix(&unix_name).map_err(starting)?];
        for at in &options.listen_at {
            let listening = |error| Error::local(format!("listening for members at {at}"), error);
            listeners.push(MemberListener::tcp(*at).map_err(listening)?);
        }
        // Each other member, and each stranger, takes a connection and, on this host, a pidfd.
        let descriptors = 2 * (options.limits.max_members.min(MOST_RESERVED) + MOST_STRANGERS) as u64;
        if let Err(error) = make_room(descriptors, || "the connections of an elastic job's members".into()) {
            log::warn!("{error}");
        }
        let tcp = listeners.iter().filter_map(MemberListener::tcp_address).collect();
        let contact = Whereabouts { host: options.host.clone(), unix_name, tcp }.encode();
        let commands = Mailbox::new().map_err(starting)?;
        let shared = Arc::<Shared>::default();
        let (key, host) = (options.key.clone(), options.host.clone());
        let network = Sockets { listeners, key, host, votes_in: options.votes_in, votes: None };
        let (began, silence) = (Instant::now(), options.limits.silence);
        let core = EndpointCore::new(options, contact.clone(), network, Arc::clone(&shared), began);
        let (inbox, told) = (commands.clone(), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("membership".into())
            .stack_size(STACK_BYTES)
            .spawn(move || endpoint_thread::run(core, &inbox, told, began, silence.unwrap_or_default()))
            .map_err(starting)?;
        Ok(Endpoint {
            contact,
            commands,
            shared,
            silence: silence.unwrap_or(CONFIRM_PATIENCE),
            pid: std::process::id(),
            thread: Some(thread),
        })
    }

    /// Where this endpoint listens, for the others.
    pub fn contact(&self) -> Vec<u8> {
        self.contact.clone()
    }

    /// Begins as a member of the first generation, whose members, with what they bring along and their contacts, are
    /// known to all of them in the same order. The job has no witness.
    pub fn found(&self, me: MemberId, members: Vec<(MemberId, Vec<u8>, Vec<u8>)>) -> Arc<Generation> {
        self.found_as(me, members, false)
    }

    /// The same in a job whose launcher is the witness. All members begin in the same way.
    pub fn found_with_witness(&self, me: MemberId, members: Vec<(MemberId, Vec<u8>, Vec<u8>)>) -> Arc<Generation> {
        self.found_as(me, members, true)
    }

    fn found_as(&self, me: MemberId, members: Vec<(MemberId, Vec<u8>, Vec<u8>)>, witness: bool) -> Arc<Generation> {
        let introduce = |(id, payload, contact): (MemberId, Vec<u8>, Vec<u8>)| Introduction {
            id,
            contact: contact.into(),
            payload: payload.into(),
        };
        let members = members.into_iter().map(introduce).collect();
        let generation = Arc::new(Generation { number: 1, members, left_out: Vec::new(), witness });
        assert!(generation.contains(me), "invariant: whoever founds a generation is in it");
        self.shared.enter(Arc::clone(&generation));
        self.commands.post(Command::Found { me, generation: Arc::clone(&generation) });
        generation
    }

    /// Begins as a candidate, who gets into a generation by [`Endpoint::next_generation`]. `seeds` are contacts of
    /// members, as far as known. Whoever was evicted can come back so, with a number that nobody has had.
    pub fn join(&self, me: MemberId, seeds: Vec<Vec<u8>>) {
        self.shared.change(|state| {
            let callbacks = (state.on_loss.take(), state.on_boundary.take(), state.on_question.take());
            let (on_loss, on_boundary, on_question) = callbacks;
            *state = EndpointState { on_loss, on_boundary, on_question, ..EndpointState::default() };
        });
        self.commands.post(Command::Join { me, seeds });
    }

    /// Comes to the boundary with `payload`, and waits for the next generation. At the deadline it takes part no more,
    /// and the error says what it waited for. Time in which this process is stopped does not count.
    pub fn next_generation(&self, payload: Vec<u8>, deadline: Instant) -> Result<Arc<Generation>> {
        let began = Instant::now();
        let countdown = Countdown::until(deadline);
        if self.pid != std::process::id() {
            let cause = "this process is a fork of a member and takes no part itself".to_string();
            return Err(Error::NoGeneration { waited: Duration::ZERO, cause });
        }
        let mut state = self.shared.state();
        if !matches!(state.outcome, Some(BoundaryOutcome::Evicted { .. })) {
            state.outcome = None;
            self.commands.post(Command::Come(payload));
        }
        let mut gives_up = false;
        loop {
            let waited = began.elapsed();
            match state.outcome.clone() {
                Some(BoundaryOutcome::Installed(generation)) => return Ok(generation),
                Some(BoundaryOutcome::Evicted { generation, cause }) => {
                    return Err(Error::Evicted { generation, cause });
                }
                Some(BoundaryOutcome::GaveUp) => return Err(no_generation(&state, waited)),
                None if state.over => return Err(no_generation(&state, waited)),
                None => {}
            }
            let step = countdown.step();
            if step.is_zero() && !gives_up {
                gives_up = true;
                self.commands.post(Command::GiveUp);
            }
            let step = if gives_up { Countdown::STEP } else { step };
            state = self.shared.changed.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the members whether this process is still in the job, and returns the number of its generation. A majority
    /// of that generation has confirmed it after the call began. Waits no longer than a member may be silent.
    ///
    /// # Errors
    /// [`Error::Unconfirmed`], with the cause.
    pub fn confirm(&self) -> Result<u64> {
        if self.pid != std::process::id() {
            return Err(Error::Unconfirmed("this process is a fork of a member and takes no part itself".into()));
        }
        let nonce = self.shared.next_nonce.fetch_add(1, Ordering::Relaxed);
        self.commands.post(Command::Confirm(nonce));
        let countdown = Countdown::new(CONFIRM_PATIENCE + self.silence);
        let mut state = self.shared.state();
        loop {
            if let Some(outcome) = state.confirmed.remove(&nonce) {
                return match (outcome, &state.outcome) {
                    (Ok(generation), _) => Ok(generation),
                    (Err(ConfirmRefusal::NotMember), Some(BoundaryOutcome::Evicted { generation, .. })) => {
                        let refusal = ConfirmRefusal::LeftOut { generation: *generation };
                        Err(Error::Unconfirmed(refusal.to_string()))
                    }
                    (Err(refusal), _) => Err(Error::Unconfirmed(refusal.to_string())),
                };
            }
            let step = countdown.step();
            if state.over || step.is_zero() {
                return Err(Error::Unconfirmed(ConfirmRefusal::NotMember.to_string()));
            }
            state = self.shared.changed.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The generation that this process is in.
    pub fn generation(&self) -> Option<Arc<Generation>> {
        self.shared.state().generation.clone()
    }

    /// How many candidates the next generation would take in, on the member that decides it, and 0 on all others (so
    /// the largest of all members' answers counts). Costs nothing.
    pub fn candidates(&self) -> usize {
        self.shared.candidates.load(Ordering::Relaxed)
    }

    /// How many other processes this one is connected with, as members or candidates. Costs nothing.
    pub fn connected(&self) -> usize {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// What this process waits for at the boundary, in words; `None` if it does not.
    pub fn waiting(&self) -> Option<String> {
        self.shared.state().waiting.as_ref().map(Waiting::to_string)
    }

    /// Says that somebody else has noticed a loss: certain, if its process was seen to end; suspected, if somebody has
    /// trouble with it. A suspect that is heard of within two heartbeats is none.
    pub fn report(&self, member: MemberId, loss: Loss, cause: impl Into<String>) {
        let evidence = if loss == Loss::Certain { LossEvidence::Dead } else { LossEvidence::Doubted };
        self.commands.post(Command::Report { member, evidence, cause: cause.into() });
    }

    /// Says that an agent has reaped the process of a member, and what it has read in its vote file.
    pub fn report_reaped(&self, member: MemberId, votes: &[u8], cause: impl Into<String>) {
        let evidence = decode_votes(votes).map_or(LossEvidence::Dead, LossEvidence::Reaped);
        self.commands.post(Command::Report { member, evidence, cause: cause.into() });
    }

    /// Calls back with each question to the witness, on the endpoint's thread, under the rules of
    /// [`Endpoint::on_loss`]. Questions that get no answer are repeated.
    pub fn on_question(&self, callback: impl Fn(Vec<u8>) + Send + 'static) {
        self.shared.set_on_question(callback);
    }

    /// The witness has answered.
    pub fn hear_witness(&self, answer: Vec<u8>) {
        self.commands.post(Command::Witness(answer));
    }

    /// Calls back when a member of the current generation is lost, or this process is evicted: on the endpoint's
    /// thread, and here and now for what is known already. The callback must be quick and must not call this endpoint;
    /// it takes the place of the one before.
    pub fn on_loss(&self, callback: impl Fn(&LossNotice) + Send + 'static) {
        let mut state = self.shared.state();
        state.notices.iter().for_each(&callback);
        state.on_loss = Some(Box::new(callback));
    }

    /// Calls back when another member is at the boundary of the generation (its number) in which this process still
    /// works, or has left in order: whoever waits for its links waits in vain. Once in a generation, on the endpoint's
    /// thread, or here and now if it is so already, under the rules of [`Endpoint::on_loss`].
    pub fn on_boundary(&self, callback: impl Fn(u64, MemberId) + Send + 'static) {
        let mut state = self.shared.state();
        if let Some((generation, member)) = state.called {
            callback(generation, member);
        }
        state.on_boundary = Some(Box::new(callback));
    }

    /// Leaves in order: the others' next generation is without this process. Waits a moment until they can know.
    pub fn leave(&self) {
        if self.pid != std::process::id() {
            return;
        }
        self.commands.post(Command::Leave);
        let until = Instant::now() + 2 * GOODBYE_PATIENCE;
        let mut state = self.shared.state();
        while !state.over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generation().map(|generation| generation.number);
        f.debug_struct("Endpoint").field("generation", &generation).finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread did not come along into this process.
            std::mem::forget(self.thread.take());
            return;
        }
        self.commands.post(Command::Leave);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Sets what is called with each question to the witness.
    pub fn set_on_question(&self, callback: impl Fn(Vec<u8>) + Send + 'static) {
        self.state().on_question = Some(Box::new(callback));
    }

    /// What the process was told.
    pub fn state(&self) -> MutexGuard<'_, EndpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what a waiting thread looks at, and wakes it.
    pub(super) fn change(&self, change: impl FnOnce(&mut EndpointState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Notes that this process is in a generation.
    pub fn enter(&self, generation: Arc<Generation>) {
        self.change(|state| {
            state.notices.clear();
            (state.waiting, state.called) = (None, None);
            state.outcome = Some(BoundaryOutcome::Installed(Arc::clone(&generation)));
            state.generation = Some(generation);
        });
    }

    pub(super) fn tell(&self, notice: LossNotice) {
        let mut state = self.state();
        if let Some(on_loss) = &state.on_loss {
            on_loss(&notice);
        }
        state.notices.push(notice);
    }

    /// Notes that this process takes part no more, unless it has got what it came for.
    pub(super) fn give_up(&self) {
        self.change(|state| {
            state.outcome.get_or_insert(BoundaryOutcome::GaveUp);
        });
    }

    /// Notes the answer to a question.
    pub(super) fn confirm(&self, nonce: u64, outcome: std::result::Result<u64, ConfirmRefusal>) {
        self.change(|state| drop(state.confirmed.insert(nonce, outcome)));
    }

    pub(super) fn ask_witness(&self, question: Vec<u8>) {
        if let Some(on_question) = &self.state().on_question {
            on_question(question);
        }
    }

    pub(super) fn call(&self, generation: u64, by: MemberId) {
        let mut state = self.state();
        if let Some(on_boundary) = &state.on_boundary {
            on_boundary(generation, by);
        }
        state.called = Some((generation, by));
    }
}

fn no_generation(state: &EndpointState, waited: Duration) -> Error {
    let cause = match (&state.waiting, &state.obstacle) {
        (Some(Waiting::Welcome), Some(obstacle)) => format!("{}: {obstacle}", Waiting::Welcome),
        (Some(waiting), _) => waiting.to_string(),
        (None, _) => "this process takes part no more".to_string(),
    };
    Error::NoGeneration { waited, cause }
}
