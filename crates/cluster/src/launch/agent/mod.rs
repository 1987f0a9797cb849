//! The agent of a host: starts the host's ranks, watches them, and ends them when the job is over for whatever reason.
//!
//! One thread, one loop: it waits for the launcher's directives, for signals, for output of ranks and for events of the
//! rendezvous, and reports everything to the launcher, which decides. The agent decides one thing by itself: when the
//! launcher is gone or silent, the job is over. An elastic job is not (`elastic`): its agents look after their own
//! processes until the last has ended.
//!
//! **Invariant:** all limits are measured in awake time (`farandole_transport::awake`): an agent that was stopped still
//! gives its launcher, and its ranks' grace period, the full time.
//!
//! **Invariant:** an agent that has ended leaves no process behind. Ranks die with their agent (`super::exec_shim`),
//! orphans become the agent's children (`children`), and an agent ends only when it has none. So does the job's MPS
//! daemon (`mps`). Only a grandchild of a rank, or a child of the daemon, whose agent was killed by SIGKILL survives.

mod alias;
mod children;
mod connect;
mod elastic;
mod gpu_plan;
mod held;
mod mps;
mod rank;
mod ranks;
mod retransmits;
mod task;
mod torch_variables;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{AwakeClock, Key};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use super::addresses;
use super::bootstrap::Bootstrap;
use super::connectivity::{Attempt, ProbeListener, probe_all};
use super::message::{AgentReport, Directive, decode, encode};
use super::signal::{ENDING, SIGCHLD, Signals};
use super::socket::Socket;
use crate::channel::{Polled, Received};
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::rendezvous::{RendezvousEvent, Server};
use children::{Children, Reaped};
use held::HeldReports;
use ranks::Prepared;
use task::{PendingStart, ResultQueue};
use torch_variables::StorePort;

pub(crate) use torch_variables::STORE;

/// While so much waits to be sent, ranks are not read from: they wait in their `write`, as they would for a slow
/// terminal.
const MOST_QUEUED_BYTES: usize = 4 << 20;

/// What ranks get to end in when there is no launcher any more that could say.
const ORPHANED_GRACE: Duration = Duration::from_secs(1);

/// A heartbeat is sent this many times in the time whose silence is a death.
const BEATS: u32 = 4;

/// Samples of ranks go to the launcher in one message, this often.
const SAMPLES_PERIOD: Duration = Duration::from_millis(500);

/// News from other threads.
enum News {
    /// From the rendezvous of this host's ranks.
    Rendezvous(RendezvousEvent),
    /// The attempts to reach other hosts are over.
    Probed(Vec<Attempt>),
}

/// The agent's state.
struct Agent {
    channel: Polled<Socket>,
    key: Key,
    host: u32,
    /// Sets the rhythm of heartbeats.
    silence: Duration,
    /// Silence of the launcher longer than this is its death, unless its host still answers (`retransmits`): a launcher
    /// that a user has suspended is not dead. Zero on its own host, where a closed socket says everything.
    launcher_silence: Duration,
    network: Vec<String>,
    launcher: Launcher,
    clock: AwakeClock,
    last_heard: Instant,
    last_told: Instant,
    children: Children,
    presence: Presence,
    /// The order to start, while its task is on the way.
    awaited: Option<PendingStart>,
    results: ResultQueue,
    held: HeldReports,
    server: Option<Server>,
    /// What all ranks of this host share, once some have been started.
    prepared: Option<Prepared>,
    kind: JobKind,
    prober: Option<ProbeListener>,
    /// Kept while the job runs.
    store_port: Option<StorePort>,
    mailbox: Mailbox<News>,
    signals: Signals,
    /// Samples of ranks since they were last passed on, and when that was.
    samples: BTreeMap<u32, Vec<u8>>,
    samples_told: Instant,
}

/// Whether the job lives and dies as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    Fixed,
    Elastic,
}

/// Whether there is somebody to report to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    There,
    Gone,
}

/// How far the ranks of this host are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// None has been started.
    Unstarted,
    /// There are processes.
    Inhabited,
    /// There were, and are no more.
    Empty,
}

/// Serves as the agent of this host, as told through standard input, until the job is over.
pub fn serve() -> Result<()> {
    let stdin =
        io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::local("reading standard input", error))?;
    let mut stdin = Socket::from(stdin);
    let bootstrap = Bootstrap::read(&mut stdin).map_err(|error| Error::local("starting as an agent", error))?;
    let key: Key = bootstrap.key.parse().map_err(|_| Error::Refused { why: "the job's key is damaged".into() })?;
    let Some(channel) = connect::to_launcher(stdin, &bootstrap, &key)? else { return Ok(()) };
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Error::local("becoming the parent of orphans", error))?;
    let mut heard = ENDING.to_vec();
    heard.push(SIGCHLD);
    let now = Instant::now();
    let silence = Duration::from_millis(bootstrap.silence_ms);
    let mut agent = Agent {
        channel,
        key,
        host: bootstrap.host,
        silence,
        launcher_silence: if bootstrap.launcher.is_empty() { Duration::ZERO } else { silence },
        network: bootstrap.network.clone(),
        launcher: Launcher::There,
        clock: AwakeClock::new(now).judging_by(silence),
        last_heard: now,
        last_told: now,
        children: Children::default(),
        presence: Presence::Unstarted,
        awaited: None,
        results: ResultQueue::default(),
        held: HeldReports::default(),
        server: None,
        prepared: None,
        kind: JobKind::Fixed,
        prober: None,
        store_port: None,
        mailbox: Mailbox::new().map_err(|error| Error::local("making a mailbox", error))?,
        signals: Signals::hear(&heard)?,
        samples: BTreeMap::new(),
        samples_told: now,
    };
    agent.introduce_yourself(bootstrap.hosts);
    agent.run()
}

impl Agent {
    fn introduce_yourself(&mut self, hosts: u32) {
        let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if hosts > 1 {
            let offered = addresses::offered(&self.network);
            self.prober = ProbeListener::open(&offered, self.host, &self.key).ok();
        }
        // Without one, scripts of torch.distributed miss MASTER_PORT; others do not.
        self.store_port = StorePort::reserve().ok();
        if let Some(StorePort { port, .. }) = self.store_port {
            self.tell(&AgentReport::StorePort(port));
        }
        let probe_addresses = self.prober.as_ref().map_or(Vec::new(), |prober| prober.addresses().to_vec());
        self.tell(&AgentReport::Ready { pid: std::process::id(), host_name, probe_addresses });
    }

    fn run(&mut self) -> Result<()> {
        let mut reports = Vec::new();
        let mut ready = Vec::new();
        let mut at_most = Duration::ZERO;
        loop {
            let now = self.clock.look(Instant::now(), at_most);
            self.listen_to_launcher(now);
            self.take_news(&mut ready);
            self.hear_signals(now);
            if self.channel.queued_bytes() < MOST_QUEUED_BYTES || self.launcher == Launcher::Gone {
                self.children.read(&mut reports);
            }
            let reaped = self.children.reap(&mut reports);
            if let Some(server) = &self.server {
                self.held.hold(&mut reports, |rank| server.drain(Rank(rank)));
            }
            ready.append(&mut reports);
            self.tell_members_of_ends(&ready);
            for report in ready.drain(..) {
                self.pass_on(report);
            }
            self.send_results();
            self.send_samples(now);
            let all_told = self.results.is_empty() && self.held.is_empty();
            if reaped == Reaped::NoneLeft && self.presence == Presence::Inhabited && all_told {
                self.presence = Presence::Empty;
                self.tell(&AgentReport::Empty);
            }
            let kill_at = self.children.tick(now).into_iter().chain(self.children.let_mps_quit(now)).min();
            self.beat(now);
            if self.launcher == Launcher::Gone && self.presence != Presence::Inhabited {
                return Ok(());
            }
            self.flush();
            at_most = self.wait(now, kill_at);
        }
    }

    /// Waits until there is something to do, which is at `due` at the latest. Says for how long it would have waited.
    fn wait(&self, now: Instant, due: Option<Instant>) -> Duration {
        let beat = if self.silence.is_zero() { Duration::from_secs(1) } else { self.silence / BEATS };
        let until = due.map_or(now + beat, |due| due.min(now + beat));
        let until = if self.samples.is_empty() { until } else { until.min(self.samples_told + SAMPLES_PERIOD) };
        let left = until.saturating_duration_since(now);
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        if self.launcher == Launcher::There {
            let writing = if self.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN | writing));
        }
        fds.push(PollFd::new(&self.mailbox, PollFlags::IN));
        fds.extend(self.signals.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if self.channel.queued_bytes() < MOST_QUEUED_BYTES || self.launcher == Launcher::Gone {
            let pipes = self.children.ranks.iter().flat_map(|rank| rank.fds());
            fds.extend(pipes.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        // A wait that fails or is interrupted only makes the loop look once more.
        let _ = poll(&mut fds, Some(&timespec(left)));
        left
    }

    fn listen_to_launcher(&mut self, now: Instant) {
        while self.launcher == Launcher::There {
            match self.channel.receive() {
                Ok(Received::Message(bytes)) => {
                    self.last_heard = now;
                    match decode(&bytes) {
                        Some(directive) => self.obey(directive, now),
                        None => self.launcher_is_gone(now),
                    }
                }
                Ok(Received::NothingYet) => break,
                Ok(Received::Closed) | Err(_) => self.launcher_is_gone(now),
            }
        }
        if !self.launcher_silence.is_zero() && now.saturating_duration_since(self.last_heard) > self.launcher_silence {
            match self.launcher == Launcher::There && retransmits::is_answered(self.channel.fd()) {
                true => self.last_heard = now,
                false => self.launcher_is_gone(now),
            }
        }
    }

    fn launcher_is_gone(&mut self, now: Instant) {
        if self.launcher == Launcher::There {
            self.launcher = Launcher::Gone;
            (self.awaited, self.results) = (None, ResultQueue::default());
            match (self.kind, &self.server) {
                (JobKind::Fixed, _) => self.children.clear(ORPHANED_GRACE, now),
                (JobKind::Elastic, Some(server)) => server.abandon(elastic::ABANDONED),
                (JobKind::Elastic, None) => {}
            }
        }
    }

    fn obey(&mut self, directive: Directive, now: Instant) {
        match directive {
            Directive::Probe(probes) => {
                let (mailbox, key) = (self.mailbox.clone(), self.key.clone());
                let probe = move || mailbox.post(News::Probed(probe_all(&probes, &key)));
                if std::thread::Builder::new().name("farandole-probe".into()).spawn(probe).is_err() {
                    self.tell(&AgentReport::Probed(Vec::new()));
                }
            }
            Directive::Start(start) => {
                match start.elastic {
                    // Hosts that come later want to know whether they reach this one.
                    Some(_) => self.kind = JobKind::Elastic,
                    None => self.prober = None,
                }
                self.await_task(start);
            }
            Directive::Task(piece) => self.take_task(&piece),
            Directive::Everybody(messages) => {
                if let Some(server) = &self.server {
                    server.tell(messages);
                }
            }
            Directive::Count => {
                if let Some(server) = &self.server {
                    server.count();
                }
            }
            Directive::Refuse(missing) => {
                if let Some(server) = &self.server {
                    server.refuse(missing.into_iter().map(Rank).collect());
                }
            }
            Directive::Pronounce { notice, epoch } => match (&self.server, epoch) {
                (Some(server), None) => server.pronounce(&notice),
                (Some(server), Some(epoch)) => server.pronounce_in(epoch, &notice),
                (None, _) => {}
            },
            Directive::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.children.signal(signal);
                }
            }
            Directive::End { grace_ms } => {
                self.awaited = None;
                self.children.clear(Duration::from_millis(grace_ms), now);
                if self.presence == Presence::Unstarted {
                    self.presence = Presence::Empty;
                    self.tell(&AgentReport::Empty);
                }
            }
            Directive::Found(_)
            | Directive::Learn(_)
            | Directive::MemberLost { .. }
            | Directive::WitnessAnswer { .. }
            | Directive::EndMember { .. }
            | Directive::Seek(_) => self.obey_elastic(directive, now),
            Directive::Alive => {}
        }
    }

    fn take_news(&mut self, reports: &mut Vec<AgentReport>) {
        for news in self.mailbox.take() {
            match news {
                News::Probed(attempts) => reports.push(AgentReport::Probed(attempts)),
                News::Rendezvous(RendezvousEvent::Gathered { epoch, blobs }) => {
                    let messages = blobs.into_iter().map(|(rank, bytes)| (rank.0, bytes)).collect();
                    reports.push(AgentReport::Gathered { epoch, messages });
                }
                News::Rendezvous(RendezvousEvent::Withdrawn { epoch, rank }) => {
                    reports.push(AgentReport::Withdrawn { epoch, rank: rank.0 });
                }
                News::Rendezvous(RendezvousEvent::Overdue { epoch, missing }) => {
                    reports.push(AgentReport::Overdue { epoch, missing: numbers(&missing) });
                }
                News::Rendezvous(RendezvousEvent::Missing { epoch, ranks }) => {
                    reports.push(AgentReport::Missing { epoch, ranks: numbers(&ranks) });
                }
                News::Rendezvous(RendezvousEvent::Blamed { by, peer, cause }) => {
                    reports.push(AgentReport::Blamed { by: by.0, peer: peer.map(|peer| peer.0), cause });
                }
                News::Rendezvous(RendezvousEvent::Silent { rank, .. }) if !self.is_stopped(rank) => {
                    reports.push(AgentReport::Silent { rank: rank.0 });
                }
                News::Rendezvous(RendezvousEvent::Sampled { rank, sample }) => {
                    drop(self.samples.insert(rank.0, sample))
                }
                // Its process will say how it ended.
                News::Rendezvous(RendezvousEvent::Left { rank }) => self.children.set_left(rank),
                News::Rendezvous(RendezvousEvent::Lost { .. }) => {}
                News::Rendezvous(RendezvousEvent::Drained { rank }) => self.held.release(rank.0, reports),
                News::Rendezvous(other) => reports.extend(elastic::report_of(other)),
            }
        }
    }

    fn is_stopped(&self, rank: Rank) -> bool {
        self.children.ranks.iter().any(|process| process.slot.rank == rank.0 && process.stopped)
    }

    /// Somebody wants this process to end: then the job is over on this host.
    fn hear_signals(&mut self, now: Instant) {
        if self.signals.take().iter().any(|signal| *signal != SIGCHLD) {
            self.launcher_is_gone(now);
            self.children.clear(ORPHANED_GRACE, now);
        }
    }

    /// Passes samples on, unless the launcher is behind: the next ones will do as well.
    fn send_samples(&mut self, now: Instant) {
        if self.samples.is_empty() || now < self.samples_told + SAMPLES_PERIOD {
            return;
        }
        self.samples_told = now;
        let samples = std::mem::take(&mut self.samples).into_iter().collect();
        if self.channel.queued_bytes() < MOST_QUEUED_BYTES {
            self.tell(&AgentReport::Samples(samples));
        }
    }

    fn beat(&mut self, now: Instant) {
        if !self.silence.is_zero() && now.saturating_duration_since(self.last_told) >= self.silence / BEATS {
            self.tell(&AgentReport::Alive);
        }
    }

    fn tell(&mut self, report: &AgentReport) {
        if self.launcher == Launcher::There {
            self.last_told = self.clock.last();
            if self.channel.queue(&encode(report)).is_err() {
                self.launcher_is_gone(self.clock.last());
            }
        }
    }

    fn flush(&mut self) {
        if self.launcher == Launcher::There && self.channel.flush().is_err() {
            self.launcher_is_gone(self.clock.last());
        }
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

/// A duration as the kernel wants it.
pub(super) fn timespec(duration: Duration) -> rustix::time::Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    rustix::time::Timespec { tv_sec: seconds, tv_nsec: duration.subsec_nanos().into() }
}
