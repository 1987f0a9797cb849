//! What the launcher decides: a job from its first agent to its last process, as a state machine.
//!
//! Reports of agents, news about them, signals and time go in ([`Supervision::report`], [`Supervision::agent_gone`],
//! [`Supervision::signal`], [`Supervision::tick`]); actions come out ([`Supervision::next_action`]). There is no I/O
//! and no clock in here, so every order of events can be tested; `launcher` drives it.
//!
//! ```text
//!   arriving ──all agents are there──> probing ──all reach all──> running ──a rank fails──> settling ──a moment──> ending ──> finished
//!      │                                  │                         │  └────all ranks end well──────────────────────────────────^
//!      └──────────failure─────────────────┴──────> ending           └───signal──> asked ──grace or a second signal──> ending
//! ```
//!
//! **Root cause.** The first process whose end is *reported* need not be the one that failed first: a rank that dies
//! of an exception closes its connections long before its process ends, and its peers may end earlier. So after the
//! first failure the ranks get [`SETTLE`] to end by themselves, every rank that lost a peer, or waited in vain for one
//! that had left, reports which one ([`AgentReport::Blamed`]), and the launcher follows these reports to a rank that
//! blames nobody, or itself. That rank is the cause whether its own end has been reported or not, and with any exit
//! code. A rank reports before it ends, and agents pass both on in this order; so the order in which processes end
//! decides nothing.
//!
//! **Awake time.** All times here are awake time (`farandole_transport::awake`), which the driver gives: while the
//! launcher is stopped, neither an agent's silence nor the end of a phase comes nearer.
//!
//! **Everybody hears of the first failure** at once, as a failure notice, so that ranks that wait for the dead one stop
//! waiting. The notice, too, follows the reports: if the rank that ended has blamed another, it is on that other.

mod agents;
mod exit_report;
mod gather;
mod store;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::connectivity::{Attempt, ReachMap};
use super::failure::{Failure, What};
use super::message::{AgentReport, Directive, HowEnded, OutputStream, RankSlot, StartRanks};
use super::output::Tail;
use crate::rendezvous::{FailureKind, FailureNotice};
use gather::{Left, RendezvousGather};

/// How long the ranks of a failed job have to end by themselves, with their own words, before they are told to.
const SETTLE: Duration = Duration::from_secs(1);

/// Beyond the grace period, agents have this long to clear up before the launcher goes without them.
const CLEAR_UP: Duration = Duration::from_secs(3);

/// A heartbeat is sent this many times in the time whose silence is a death.
const BEATS: u32 = 4;

/// What the job is like.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Hosts by the names that the user gave them.
    pub(crate) hosts: Vec<String>,
    /// What each host starts.
    pub(crate) starts: Vec<StartRanks>,
    /// How long agents and probes may take.
    pub(crate) start_timeout: Duration,
    /// Silence longer than this is a death; zero: never.
    pub(crate) silence: Duration,
    /// Between asking ranks to end and ending them.
    pub(crate) grace: Duration,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Tell an agent.
    Send(usize, Directive),
    /// Tell the user.
    Say(String),
    /// The job is over.
    Finish,
    /// Start the agent of a host of an elastic job, which may have had one before.
    StartAgent(usize, String),
    /// Close the channel to an agent; it is not heard any more.
    DropAgent(usize),
    /// Have members of an elastic job started on a host.
    StartMembers(usize, MembersToStart),
}

/// Members of an elastic job for one host.
#[derive(Debug, PartialEq)]
pub(crate) struct MembersToStart {
    /// Who, and in which slots.
    pub(crate) members: Vec<RankSlot>,
    /// How many slots the host has.
    pub(crate) slots: usize,
    /// Where others reach the host.
    pub(crate) addresses: Vec<std::net::IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Arriving {
        until: Instant,
    },
    Probing {
        until: Instant,
    },
    Running,
    Settling {
        until: Instant,
    },
    /// The user's signal has been passed on; ranks may end in their own way.
    Asked {
        until: Instant,
    },
    Ending {
        until: Instant,
    },
    Finished,
}

#[derive(Debug)]
struct Host {
    presence: Presence,
    pid: Option<u32>,
    probe_addresses: Vec<std::net::SocketAddr>,
    probed: Option<Vec<Attempt>>,
    last_heard: Instant,
    last_told: Instant,
    /// Whether the user was told that the agent is stopped.
    said_stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Its agent has not said anything yet.
    Expected,
    /// Its agent is there.
    Here,
    /// Its agent is there, and all its processes are gone.
    Empty,
    /// Its agent is gone or silent.
    Lost,
}

#[derive(Debug, Default)]
struct RankState {
    host: usize,
    pid: Option<u32>,
    ended: Option<HowEnded>,
    stopped: Option<(i32, Instant)>,
    tail: Tail,
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq)]
enum Ending {
    /// All ranks ended well.
    Well,
    /// Something failed; the failures tell.
    Badly,
    /// The user ended it by a signal.
    Interrupted(i32),
    /// Nobody reads the output any more.
    Unheard,
}

/// The state of a job.
#[derive(Debug)]
pub(crate) struct Supervision {
    settings: Settings,
    began: Instant,
    hosts: Vec<Host>,
    ranks: Vec<RankState>,
    phase: Phase,
    ending: Ending,
    failures: Vec<Failure>,
    /// Whom each rank points at.
    blamed: HashMap<u32, (Option<u32>, String)>,
    gather: RendezvousGather,
    actions: VecDeque<Action>,
}

impl Supervision {
    /// A job whose agents are being started.
    pub(crate) fn new(settings: Settings, now: Instant) -> Supervision {
        let host = || Host {
            presence: Presence::Expected,
            pid: None,
            probe_addresses: Vec::new(),
            probed: None,
            last_heard: now,
            last_told: now,
            said_stopped: false,
        };
        let size = settings.starts.iter().map(|start| start.ranks.len()).sum();
        let mut ranks: Vec<RankState> = std::iter::repeat_with(RankState::default).take(size).collect();
        for (host, start) in settings.starts.iter().enumerate() {
            for slot in &start.ranks {
                ranks[slot.rank as usize].host = host;
            }
        }
        Supervision {
            began: now,
            hosts: std::iter::repeat_with(host).take(settings.hosts.len()).collect(),
            ranks,
            phase: Phase::Arriving { until: now + settings.start_timeout },
            ending: Ending::Well,
            failures: Vec::new(),
            blamed: HashMap::new(),
            gather: RendezvousGather::new(size, settings.hosts.len()),
            actions: VecDeque::new(),
            settings,
        }
    }

    /// The next thing to do, if there is one.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes in what an agent says.
    pub(crate) fn report(&mut self, host: usize, report: AgentReport, now: Instant) {
        if self.hosts[host].presence == Presence::Lost {
            return;
        }
        self.heard_of(host, now);
        match report {
            AgentReport::Ready { pid, host_name: _, probe_addresses } => {
                self.agent_came(host, pid, probe_addresses, now)
            }
            AgentReport::Probed(attempts) => {
                self.hosts[host].probed = Some(attempts);
                self.look_at_the_map(now);
            }
            AgentReport::StorePort(port) => self.port_reserved(host, port),
            AgentReport::Started { rank, process } => self.rank_mut(rank, |state| state.pid = Some(process.pid)),
            AgentReport::NotStarted { rank, why } => self.fail(host, rank, What::NotStarted(why), now),
            // The driver shows output itself and keeps its tail here.
            AgentReport::Output { rank, stream, bytes } => self.keep_tail(rank, stream, &bytes),
            AgentReport::Ended { rank, how, .. } => self.rank_ended(host, rank, how, now),
            AgentReport::Stopped { rank, signal } => {
                self.rank_mut(rank, |state| state.stopped = Some((signal, now)));
                self.say_stopped(rank, signal);
            }
            AgentReport::Continued { rank } => self.rank_mut(rank, |state| state.stopped = None),
            AgentReport::Gathered { epoch, messages } => {
                if let Some(everybody) = self.gather.gathered(host, epoch, messages) {
                    self.introduce(everybody);
                }
            }
            AgentReport::Withdrawn { epoch, rank } => self.rank_withdrew(host, epoch, rank, now),
            AgentReport::Overdue { epoch, missing } => {
                let directives = self.gather.overdue(host, epoch, missing);
                self.answer_ranks_that_wait(directives, now);
            }
            AgentReport::Missing { epoch, ranks } => {
                let directives = self.gather.counted(host, epoch, ranks);
                self.answer_ranks_that_wait(directives, now);
            }
            AgentReport::Silent { rank } => self.fail(host, Some(rank), What::Silent(self.settings.silence), now),
            AgentReport::Blamed { by, peer, cause } => {
                self.blamed.entry(by).or_insert((peer, cause));
            }
            AgentReport::Empty => {
                self.hosts[host].presence = Presence::Empty;
                self.look_whether_over(now);
            }
            AgentReport::Note(text) => {
                let text = format!("{}: {text}", self.settings.hosts[host]);
                self.actions.push_back(Action::Say(text));
            }
            AgentReport::MpsEnded { pid, how, words } => {
                self.fail(host, None, What::MpsGone { pid, how, words }, now);
            }
            // The driver keeps results itself, and publishes samples. This job is not elastic.
            AgentReport::Result { .. }
            | AgentReport::Samples(_)
            | AgentReport::Alive
            | AgentReport::Entered { .. }
            | AgentReport::Reaped { .. }
            | AgentReport::WitnessAsked { .. }
            | AgentReport::EntryWithdrawn { .. }
            | AgentReport::Entering(_)
            | AgentReport::NotThere(_) => {}
        }
    }

    /// The channel to an agent is closed, or it has never come; `how` is what is known about it.
    pub(crate) fn agent_gone(&mut self, host: usize, how: String, now: Instant) {
        if matches!(self.hosts[host].presence, Presence::Lost | Presence::Empty) {
            return;
        }
        let what = match self.hosts[host].presence {
            Presence::Expected => What::AgentNeverCame(how),
            _ => What::AgentGone(how),
        };
        self.lose(host, what, now);
    }

    /// What a rank has made of its task cannot be kept, so there is no use in going on.
    pub(crate) fn result_lost(&mut self, host: usize, rank: u32, why: String, now: Instant) {
        self.fail(host, Some(rank), What::ResultLost(why), now);
    }

    /// The ranks' task cannot be read.
    pub(crate) fn task_lost(&mut self, host: usize, why: String, now: Instant) {
        self.fail(host, None, What::NotStarted(why), now);
    }

    /// The user sends a signal. A second one ends everything at once.
    pub(crate) fn signal(&mut self, signal: i32, now: Instant) {
        match self.phase {
            Phase::Finished => {}
            Phase::Asked { .. } | Phase::Ending { .. } => self.end_within(Duration::ZERO, now),
            Phase::Arriving { .. } | Phase::Probing { .. } => {
                self.ending = Ending::Interrupted(signal);
                self.end_within(Duration::ZERO, now);
            }
            Phase::Running | Phase::Settling { .. } => {
                self.ending = Ending::Interrupted(signal);
                self.tell_all(&Directive::Signal(signal), now);
                self.phase = Phase::Asked { until: now + self.settings.grace };
            }
        }
    }

    /// Agents are not listened to just now, because nobody reads what they say: their silence is no death.
    pub(crate) fn excuse_silence(&mut self, now: Instant) {
        for host in &mut self.hosts {
            host.last_heard = now;
        }
    }

    /// Nobody reads standard output any more.
    pub(crate) fn output_closed(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Asked { .. } | Phase::Ending { .. } | Phase::Finished) {
            self.ending = Ending::Unheard;
            self.end_within(self.settings.grace, now);
        }
    }

    /// Whatever is due now. Returns when to come back at the latest.
    pub(crate) fn tick(&mut self, now: Instant) -> Instant {
        self.watch_hosts(now);
        self.watch_stopped(now);
        match self.phase {
            Phase::Arriving { until } if now >= until => self.nobody_came(now),
            Phase::Probing { until } if now >= until => self.look_at_half_a_map(now),
            Phase::Settling { until } if now >= until => self.end_within(self.settings.grace, now),
            Phase::Asked { until } if now >= until => self.end_within(Duration::ZERO, now),
            Phase::Ending { until } if now >= until => self.finish(),
            _ => {}
        }
        self.next_deadline(now)
    }

    fn next_deadline(&self, now: Instant) -> Instant {
        let due = match self.phase {
            Phase::Arriving { until }
            | Phase::Probing { until }
            | Phase::Settling { until }
            | Phase::Asked { until }
            | Phase::Ending { until } => Some(until),
            Phase::Running | Phase::Finished => None,
        };
        let idle = now + Duration::from_secs(1);
        let beat = if self.settings.silence.is_zero() { idle } else { now + self.settings.silence / BEATS };
        due.unwrap_or(idle).min(beat).min(idle)
    }

    // Coming together.

    fn agent_came(&mut self, host: usize, pid: u32, probe_addresses: Vec<std::net::SocketAddr>, now: Instant) {
        let state = &mut self.hosts[host];
        (state.presence, state.pid, state.probe_addresses) = (Presence::Here, Some(pid), probe_addresses);
        let all_here = self.hosts.iter().all(|host| host.presence == Presence::Here);
        if !matches!(self.phase, Phase::Arriving { .. }) || !all_here {
            return;
        }
        if self.hosts.len() == 1 {
            return self.start(now);
        }
        self.phase = Phase::Probing { until: now + self.settings.start_timeout };
        let probe_addresses: Vec<_> = self.hosts.iter().map(|host| host.probe_addresses.clone()).collect();
        for from in 0..self.hosts.len() {
            self.tell(from, Directive::Probe(super::connectivity::probes(from, &probe_addresses)), now);
        }
    }

    fn look_at_the_map(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Probing { .. }) || self.hosts.iter().any(|host| host.probed.is_none()) {
            return;
        }
        self.look_at_half_a_map(now);
    }

    /// Decides by what is known of who reaches whom.
    fn look_at_half_a_map(&mut self, now: Instant) {
        let attempts = self
            .hosts
            .iter()
            .enumerate()
            .flat_map(|(from, host)| host.probed.iter().flatten().map(move |attempt| (from, attempt.clone())));
        let map = ReachMap::new(self.settings.hosts.clone(), attempts.collect());
        match map.addresses() {
            Ok(addresses) => {
                for (start, addresses) in self.settings.starts.iter_mut().zip(addresses) {
                    start.addresses = addresses;
                }
                self.start(now);
            }
            Err(gap) => self.fail(0, None, What::Unreachable(gap), now),
        }
    }

    fn nobody_came(&mut self, now: Instant) {
        let waited = self.settings.start_timeout.as_secs_f64();
        for host in 0..self.hosts.len() {
            if self.hosts[host].presence == Presence::Expected {
                self.agent_gone(host, format!("it has not answered within {waited} s (--start-timeout)"), now);
            }
        }
    }

    fn start(&mut self, now: Instant) {
        self.phase = Phase::Running;
        self.place_store();
        for host in 0..self.hosts.len() {
            let start = self.settings.starts[host].clone();
            self.tell(host, Directive::Start(Box::new(start)), now);
        }
    }

    /// Everybody has come and gets everything. What ranks have blamed each other for before is over.
    fn introduce(&mut self, everybody: Vec<Vec<u8>>) {
        self.blamed.clear();
        for host in 0..self.hosts.len() {
            self.actions.push_back(Action::Send(host, Directive::Everybody(everybody.clone())));
        }
    }

    /// A rank did not wait for the others. If they have just been told of it, they must not wait for it either.
    fn rank_withdrew(&mut self, host: usize, epoch: u64, rank: u32, now: Instant) {
        if self.gather.withdrawn(host, epoch) == Left::TooLate {
            let notice = FailureNotice::new(FailureKind::Other).on_rank(farandole_plan::Rank(rank));
            let notice = notice.saying("it gave up waiting just when the last rank came");
            self.tell_all(&Directive::Pronounce { notice, epoch: Some(epoch) }, now);
        }
    }

    // Watching.

    fn watch_stopped(&mut self, now: Instant) {
        let silence = self.settings.silence;
        if silence.is_zero() || self.phase != Phase::Running {
            return;
        }
        for rank in 0..self.ranks.len() {
            let RankState { stopped, host, .. } = self.ranks[rank];
            if let Some((signal, since)) = stopped
                && now.saturating_duration_since(since) > silence
            {
                self.fail(host, Some(rank as u32), What::Stopped(signal, silence), now);
            }
        }
    }

    fn say_stopped(&mut self, rank: u32, signal: i32) {
        if self.phase == Phase::Running {
            let name = self.name_of(rank);
            let until = match self.settings.silence {
                Duration::ZERO => String::new(),
                silence => format!("; the job ends if it stays so for {} s", silence.as_secs_f64()),
            };
            let by = super::signal::name(signal);
            self.actions.push_back(Action::Say(format!("{name} has been stopped by {by}{until}")));
        }
    }

    fn rank_ended(&mut self, host: usize, rank: u32, how: HowEnded, now: Instant) {
        self.rank_mut(rank, |state| {
            state.ended = Some(how);
            state.stopped = None;
        });
        if !how.is_success() {
            self.fail(host, Some(rank), What::Ended(how), now);
        }
        self.note_late_end(host, rank, how, now);
        self.look_whether_over(now);
    }

    fn lose(&mut self, host: usize, what: What, now: Instant) {
        self.hosts[host].presence = Presence::Lost;
        self.fail(host, None, what, now);
        self.look_whether_over(now);
    }

    /// Remembers a failure. The first one is told to everybody; those after the ranks were told to end are our own
    /// doing.
    fn fail(&mut self, host: usize, rank: Option<u32>, what: What, now: Instant) {
        if matches!(self.phase, Phase::Asked { .. } | Phase::Ending { .. } | Phase::Finished) {
            return;
        }
        if self.failures.iter().any(|failure| failure.rank == rank && failure.host == host) {
            return;
        }
        let failure = self.failure(host, rank, what, now);
        self.failures.push(failure);
        if self.failures.len() > 1 {
            return;
        }
        self.ending = Ending::Badly;
        if matches!(self.phase, Phase::Running) {
            let notice = self.first_notice(&self.failures[0]);
            self.tell_all(&Directive::Pronounce { notice, epoch: None }, now);
            self.phase = Phase::Settling { until: now + SETTLE };
        } else {
            self.end_within(self.settings.grace, now);
        }
    }

    fn failure(&self, host: usize, rank: Option<u32>, what: What, now: Instant) -> Failure {
        let pid = match rank {
            Some(rank) => self.ranks.get(rank as usize).and_then(|state| state.pid),
            None => self.hosts[host].pid,
        };
        let after = now.saturating_duration_since(self.began);
        Failure { rank, host, host_name: self.settings.hosts[host].clone(), pid, what, after }
    }

    // Coming to an end.

    /// Asks all ranks to end, and has those killed that have not after the grace period.
    fn end_within(&mut self, grace: Duration, now: Instant) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.phase = Phase::Ending { until: now + grace + CLEAR_UP };
        self.tell_all(&Directive::End { grace_ms }, now);
        self.look_whether_over(now);
    }

    fn look_whether_over(&mut self, now: Instant) {
        if self.phase == Phase::Finished {
            return;
        }
        // An agent that was never given anything to start has nothing to clear up, so an arriving job ends at once.
        let cleared = self.hosts.iter().all(|host| !matches!(host.presence, Presence::Here));
        let ending = matches!(self.phase, Phase::Ending { .. });
        if cleared && (ending || self.hosts.iter().all(|host| host.presence != Presence::Expected)) {
            return self.finish();
        }
        // All ranks have ended, but something that they started has not.
        let all_ended =
            self.ranks.iter().all(|rank| rank.ended.is_some() || self.hosts[rank.host].presence == Presence::Lost);
        if all_ended && matches!(self.phase, Phase::Running | Phase::Settling { .. } | Phase::Asked { .. }) {
            self.end_within(self.settings.grace, now);
        }
    }

    fn finish(&mut self) {
        self.phase = Phase::Finished;
        self.actions.push_back(Action::Finish);
    }

    // Small things.

    fn tell(&mut self, host: usize, directive: Directive, now: Instant) {
        self.hosts[host].last_told = now;
        self.actions.push_back(Action::Send(host, directive));
    }

    fn tell_all(&mut self, directive: &Directive, now: Instant) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].presence == Presence::Here {
                self.tell(host, directive.clone(), now);
            }
        }
    }

    fn rank_mut(&mut self, rank: u32, change: impl FnOnce(&mut RankState)) {
        if let Some(state) = self.ranks.get_mut(rank as usize) {
            change(state);
        }
    }

    fn keep_tail(&mut self, rank: u32, stream: OutputStream, bytes: &[u8]) {
        if stream == OutputStream::Stderr {
            self.rank_mut(rank, |state| state.tail.push(bytes));
        }
    }

    fn name_of(&self, rank: u32) -> String {
        let state = &self.ranks[rank as usize];
        super::failure::rank_name(rank, &self.settings.hosts[state.host], state.pid)
    }
}

#[cfg(test)]
mod tests;
