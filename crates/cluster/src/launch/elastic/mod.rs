//! What the launcher decides in an elastic job: who is started where, for how long a host that fails is left alone, and
//! when the job is over. A state machine as [`super::supervision`] is one: reports, news and time go in, actions come
//! out, and there is no I/O and no clock in here. `launcher` drives it.
//!
//! ```text
//!   gathering ──enough hosts, or time is up──> running ──somebody ends well, then everybody──> ending ──> finished
//!                                               │   └──reset limit, nobody left, below min-np for too long──^
//!                                               └──signal──> asked ──grace or a second signal───────────────^
//! ```
//!
//! **Members decide on generations** (`crate::rendezvous::Generation`), not the launcher. It starts processes, founds
//! the first generation, tells candidates whom to call, and reports ends. A *member* has a number that no other process
//! of the job ever has. In reports and orders the number stands where fixed jobs have the rank.
//!
//! The launcher is their *witness*: a vote that half of the members need to continue without the others. It compares
//! the member lists that agents report, and ends the job if one generation has two.
//!
//! **Losses.** A member that ends with an error or by a signal, or whose agent is lost, is a loss. It does not end the
//! job: another process is started in its slot, or in another free one. Its host gets a strike (`hosts`).
//! Slow members are replaced likewise, where the user wants that (`slow`).
//! The job fails if it has been reset too often, if nobody is left who has its state, or if it stays below `min_np`
//! for the elastic timeout. Members of a host that is silent, or of an agent whose connection broke, may run and be in
//! the job (`adrift`).
//!
//! **The end.** When a member has ended well, the job is finishing: nobody is started any more. It is over when nobody
//! runs, or when nobody of the latest generation does; candidates that still wait are ended. A loss while it is
//! finishing fails the job, because nobody takes its place, unless the others have gone on without it.
//!
//! **Not here:** agreeing on generations (`membership`), running scripts that name hosts (`discovery`).

mod admission;
mod adrift;
pub(super) mod discovery;
#[cfg(test)]
mod evidence_tests;
mod exit_report;
#[cfg(test)]
mod histories;
mod hosts;
mod members;
mod slow;
#[cfg(test)]
mod story;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use farandole_plan::membership::Witness;
use farandole_plan::straggler::StragglerWatch;

use super::failure::What;
use super::job_spec::HostSlots;
use super::message::{AgentReport, Directive};
use super::overseer::Overseer;
use super::supervision::Action;
use crate::membership::answer_as_witness;
use crate::rendezvous::Generation;
use admission::Admission;
use hosts::{Host, Presence};
use members::{Loss, Member};

/// Beyond the grace period, agents have this long to clear up before the launcher goes without them.
const CLEAR_UP: Duration = Duration::from_secs(3);

/// A heartbeat is sent this many times in the time whose silence is a death.
const BEATS: u32 = 4;

/// When somebody of the latest generation that was told is lost, a later one may still be on its way here.
const NEWS_ARE_ON_THE_WAY: Duration = Duration::from_secs(1);

/// What an elastic job is like.
#[derive(Clone, Debug)]
pub(crate) struct ElasticSettings {
    /// The hosts with which it begins.
    pub(crate) hosts: Vec<HostSlots>,
    /// Whether its only host is this one, for ever: nobody elsewhere has to reach its members.
    pub(crate) on_one_host: bool,
    /// How many members found the job, if there are so many.
    pub(crate) np: usize,
    /// With fewer members it waits.
    pub(crate) min_np: usize,
    /// It never has more members.
    pub(crate) max_np: usize,
    /// So many processes wait beyond those.
    pub(crate) spares: usize,
    /// It may be reset so often.
    pub(crate) reset_limit: Option<u64>,
    /// A member that keeps the others waiting over so many iterations is replaced.
    pub(crate) replace_slow: Option<u64>,
    /// For how long it waits below `min_np`.
    pub(crate) timeout: Duration,
    /// For how long hosts that fail are left alone.
    pub(crate) cool_down: CoolDown,
    /// How long agents, probes and first members may take.
    pub(crate) start_timeout: Duration,
    /// Silence longer than this is a death; zero: never.
    pub(crate) silence: Duration,
    /// Between asking members to end and ending them.
    pub(crate) grace: Duration,
}

/// For how long a host whose members fail is left alone: from `low`, twice as long each time, up to `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoolDown {
    pub(crate) low: Duration,
    pub(crate) high: Duration,
    /// What the first failure costs.
    pub(crate) first: FirstStrike,
}

/// Whether the first failure of a host has a consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstStrike {
    /// None: a process may be killed once, and its place is filled at once.
    Free,
    /// As every other.
    Counts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Agents are coming; nobody has been started.
    Gathering {
        until: Instant,
    },
    Running,
    /// The user's signal has been passed on; members may end in their own way.
    Asked {
        until: Instant,
    },
    Ending {
        until: Instant,
    },
    Finished,
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq)]
enum Ending {
    Well,
    Badly(Cause),
    /// The user ended it by a signal.
    Interrupted(i32),
    /// Nobody reads the output any more.
    Unheard,
}

/// Why an elastic job failed.
#[derive(Clone, Debug, PartialEq)]
enum Cause {
    /// This loss came when the job was finishing.
    LossAtTheEnd(usize),
    /// Nobody is left who has the job's state; the last loss.
    NobodyLeft(usize),
    /// It was reset more often than it may be.
    ResetLimit(u64),
    /// It had so many members, too few, for as long as it may wait.
    TooFew(usize),
    /// Something on a host that all its members need has ended.
    Host(String),
    /// A generation has two member lists.
    TwoHistories(String),
}

/// The state of an elastic job.
#[derive(Debug)]
pub(crate) struct ElasticSupervision {
    settings: ElasticSettings,
    hosts: Vec<Host>,
    /// All that were ever started, by number.
    members: Vec<Member>,
    losses: Vec<Loss>,
    admission: Admission,
    phase: Phase,
    ending: Ending,
    /// The latest generation that was told, and how many there were.
    generation: Option<Generation>,
    generations: u64,
    /// The member lists of the last generations, by number.
    lists: BTreeMap<u64, Vec<u64>>,
    /// Decides which half of a generation continues (`farandole_plan::membership`).
    witness: Witness,
    /// Whom members that end for good hold responsible for their end, which may be themselves, and in which words.
    blamed: HashMap<u32, (Option<u32>, String)>,
    /// Whether a member has ended well.
    finishing: bool,
    /// Losses since then, and when they came; only those that the latest generation has.
    late_losses: Vec<(usize, Instant)>,
    /// Since when the job has too few members, and until when it may.
    short: Option<(Instant, Instant)>,
    /// Since when nobody of the latest generation runs.
    stateless: Option<Instant>,
    /// Who of the latest generation keeps the others waiting, where slow members are replaced.
    stragglers: Option<StragglerWatch>,
    actions: VecDeque<Action>,
}

impl ElasticSupervision {
    /// A job of which nothing runs. Its first actions start agents.
    pub(crate) fn new(settings: ElasticSettings, now: Instant) -> ElasticSupervision {
        let mut supervision = ElasticSupervision {
            hosts: Vec::new(),
            members: Vec::new(),
            losses: Vec::new(),
            admission: Admission::default(),
            phase: Phase::Gathering { until: now + settings.start_timeout },
            ending: Ending::Well,
            generation: None,
            generations: 0,
            lists: BTreeMap::new(),
            witness: Witness::default(),
            blamed: HashMap::new(),
            finishing: false,
            late_losses: Vec::new(),
            short: None,
            stateless: None,
            stragglers: settings.replace_slow.map(StragglerWatch::new),
            actions: VecDeque::new(),
            settings,
        };
        let hosts = std::mem::take(&mut supervision.settings.hosts);
        supervision.hosts_found(hosts, now);
        supervision
    }

    /// Whatever has become possible or necessary. Called after every change.
    fn settle(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Gathering { .. } | Phase::Running) {
            self.call_agents(now);
            self.admit_hosts(now);
            self.leave_gathering(now);
        }
        self.seek_adrift(now);
        if self.phase == Phase::Running {
            self.fill_slots(now);
            self.found(now);
            self.judge(now);
        }
        self.look_whether_over(now);
    }

    /// The first members are started when there is room for all of them, or when time is up.
    fn leave_gathering(&mut self, now: Instant) {
        let Phase::Gathering { until } = self.phase else { return };
        let here = self.hosts.iter().filter(|host| host.presence == Presence::Here);
        let room: usize = here.map(|host| host.slots).sum();
        let more_may_come = self.hosts.iter().any(|host| host.presence.is_on_its_way());
        if (room >= self.settings.np && !more_may_come) || now >= until {
            self.phase = Phase::Running;
        }
    }

    /// Whether the job has failed.
    fn judge(&mut self, now: Instant) {
        let live = self.live().count();
        let last = self.losses.len().saturating_sub(1);
        let resets = self.resets();
        if self.settings.reset_limit.is_some_and(|limit| resets > limit) {
            return self.fail(Cause::ResetLimit(resets), now);
        }
        if self.finishing {
            return self.judge_late_losses(now);
        }
        self.give_up_adrift(now);
        let state_is_adrift = self.state_is_adrift();
        if live == 0 && !self.losses.is_empty() && !state_is_adrift {
            return self.fail(Cause::NobodyLeft(last), now);
        }
        match (self.has_state() || state_is_adrift, self.stateless) {
            (true, _) => self.stateless = None,
            (false, None) => self.stateless = Some(now),
            (false, Some(since)) if now >= since + NEWS_ARE_ON_THE_WAY => {
                return self.fail(Cause::NobodyLeft(last), now);
            }
            (false, Some(_)) => {}
        }
        self.watch_size(live, now);
    }

    /// Below `min_np` the job waits, and says so.
    fn watch_size(&mut self, live: usize, now: Instant) {
        let (least, timeout) = (self.settings.min_np, self.settings.timeout);
        match self.short {
            Some(_) if live >= least => {
                self.short = None;
                self.say(format!("the job has {} again", members_in_words(live)));
            }
            Some((_, until)) if now >= until => self.fail(Cause::TooFew(live), now),
            Some(_) => {}
            None if live < least => {
                self.short = Some((now, now + timeout));
                let why = self.why_no_more(now);
                self.say(format!(
                    "the job has {}, fewer than --min-np {least}; waiting {} s for more (--elastic-timeout): {why}",
                    members_in_words(live),
                    timeout.as_secs_f64()
                ));
            }
            None => {}
        }
    }

    /// How often the membership of the job has changed: generations after the first, and processes that ended before
    /// they were in any.
    fn resets(&self) -> u64 {
        let outside = self.losses.iter().filter(|loss| !self.members[loss.member as usize].in_generation).count();
        self.generations.saturating_sub(1) + outside as u64
    }

    fn fail(&mut self, cause: Cause, now: Instant) {
        if matches!(self.phase, Phase::Gathering { .. } | Phase::Running) {
            self.ending = Ending::Badly(cause);
            let why = self.last_line();
            self.tell_members_the_end(&why, now);
            self.end_within(self.settings.grace, now);
        }
    }

    /// Asks all members to end, and has those killed that have not after the grace period.
    fn end_within(&mut self, grace: Duration, now: Instant) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.phase = Phase::Ending { until: now + grace + CLEAR_UP };
        self.tell_all(&Directive::End { grace_ms }, now);
        self.look_whether_over(now);
    }

    fn look_whether_over(&mut self, now: Instant) {
        let ending = matches!(self.phase, Phase::Ending { .. });
        if ending && self.hosts.iter().all(|host| host.presence != Presence::Here || host.is_empty) {
            self.phase = Phase::Finished;
            return self.actions.push_back(Action::Finish);
        }
        let nobody_runs = self.live().next().is_none() && !self.members.is_empty();
        let over = match self.phase {
            Phase::Running => self.finishing && self.late_losses.is_empty() && (nobody_runs || self.latest_has_ended()),
            Phase::Asked { .. } => nobody_runs,
            _ => false,
        };
        if over {
            self.end_within(self.settings.grace, now);
        }
    }

    fn say(&mut self, text: String) {
        self.actions.push_back(Action::Say(text));
    }

    fn tell(&mut self, host: usize, directive: Directive, now: Instant) {
        self.hosts[host].last_told = now;
        self.actions.push_back(Action::Send(host, directive));
    }

    fn tell_all(&mut self, directive: &Directive, now: Instant) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].presence.has_agent() {
                self.tell(host, directive.clone(), now);
            }
        }
    }
}

impl Overseer for ElasticSupervision {
    fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn report(&mut self, host: usize, report: AgentReport, now: Instant) {
        if !self.hosts[host].presence.has_agent() {
            return;
        }
        self.hosts[host].heard(now);
        match report {
            AgentReport::Ready { pid, probe_addresses, .. } => self.agent_came(host, pid, probe_addresses),
            AgentReport::Probed(attempts) => self.probed(host, attempts),
            AgentReport::Started { rank, process } => {
                self.member_mut(rank, |member| (member.pid, member.process) = (Some(process.pid), Some(process)));
            }
            AgentReport::Reaped { member, votes } => return self.member_reaped(member, votes),
            AgentReport::WitnessAsked { member, question } => {
                if let Some(answer) = answer_as_witness(&mut self.witness, &question) {
                    self.tell(host, Directive::WitnessAnswer { member, answer }, now);
                }
                return;
            }
            AgentReport::NotStarted { rank, why } => self.not_started(host, rank, &why, now),
            // What comes often and changes nothing.
            AgentReport::Output { rank, stream, bytes } => return self.keep_tail(rank, stream, &bytes),
            AgentReport::Ended { rank, how, .. } => self.member_ended(rank, how, now),
            AgentReport::Stopped { rank, signal } => self.member_stopped(rank, signal, now),
            AgentReport::Continued { rank } => self.member_mut(rank, |member| member.stopped = None),
            AgentReport::Silent { rank } => self.replace(rank, What::Silent(self.settings.silence), now),
            AgentReport::Entered { member, blob } => {
                self.member_mut(member, |member| member.entered = Some((now, blob)));
            }
            AgentReport::EntryWithdrawn { member } => self.member_mut(member, |member| member.entered = None),
            AgentReport::Entering(generation) => self.learn(host, generation, now),
            AgentReport::Blamed { by, peer, cause } => return drop(self.blamed.insert(by, (peer, cause))),
            AgentReport::NotThere(members) => self.not_there(host, &members),
            AgentReport::Empty => self.host_is_empty(host),
            AgentReport::Note(text) => self.say(format!("{}: {text}", self.hosts[host].name)),
            AgentReport::MpsEnded { pid, how, .. } => {
                let name = self.hosts[host].name.clone();
                self.fail(Cause::Host(format!("the job's MPS daemon on {name} (pid {pid}) {how}")), now);
            }
            // They come often; the driver publishes them.
            AgentReport::Samples(samples) => return self.watch_pace(&samples, now),
            // These are of jobs with a fixed size, or say only that an agent lives.
            AgentReport::Alive
            | AgentReport::Result { .. }
            | AgentReport::Gathered { .. }
            | AgentReport::Withdrawn { .. }
            | AgentReport::Overdue { .. }
            | AgentReport::Missing { .. }
            | AgentReport::StorePort(_) => return,
        }
        self.settle(now);
    }

    fn agent_gone(&mut self, host: usize, how: String, now: Instant) {
        self.lose_agent(host, how, now);
        self.settle(now);
    }

    fn result_lost(&mut self, _host: usize, _member: u32, why: String, now: Instant) {
        self.fail(Cause::Host(why), now);
    }

    fn task_lost(&mut self, _host: usize, why: String, now: Instant) {
        self.fail(Cause::Host(why), now);
    }

    fn hosts_changed(&mut self, found: Result<Vec<HostSlots>, String>, now: Instant) {
        match found {
            Ok(hosts) => self.hosts_found(hosts, now),
            Err(why) => self.say(format!("{why}; the hosts stay as they are")),
        }
    }

    fn signal(&mut self, signal: i32, now: Instant) {
        match self.phase {
            Phase::Finished => {}
            Phase::Asked { .. } | Phase::Ending { .. } => self.end_within(Duration::ZERO, now),
            Phase::Gathering { .. } => {
                self.ending = Ending::Interrupted(signal);
                self.end_within(Duration::ZERO, now);
            }
            Phase::Running => {
                self.ending = Ending::Interrupted(signal);
                self.tell_all(&Directive::Signal(signal), now);
                self.phase = Phase::Asked { until: now + self.settings.grace };
                self.look_whether_over(now);
            }
        }
    }

    fn excuse_silence(&mut self, now: Instant) {
        self.hosts.iter_mut().for_each(|host| host.last_heard = now);
    }

    fn output_closed(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Gathering { .. } | Phase::Running) {
            self.ending = Ending::Unheard;
            self.end_within(self.settings.grace, now);
        }
    }

    fn tick(&mut self, now: Instant) -> Instant {
        self.watch_agents(now);
        self.watch_stopped(now);
        match self.phase {
            Phase::Asked { until } if now >= until => self.end_within(Duration::ZERO, now),
            Phase::Ending { until } if now >= until => {
                self.phase = Phase::Finished;
                self.actions.push_back(Action::Finish);
            }
            _ => {}
        }
        self.settle(now);
        self.next_deadline(now)
    }

    fn quiet_agents(&self, now: Instant) -> Vec<(usize, u32)> {
        let silence = self.settings.silence;
        let quiet = |host: &Host| now.saturating_duration_since(host.last_heard) > silence / 2;
        let here = self.hosts.iter().enumerate().filter(|(_, host)| host.presence == Presence::Here && quiet(host));
        if silence.is_zero() { Vec::new() } else { here.filter_map(|(at, host)| Some((at, host.pid?))).collect() }
    }

    fn agent_stopped(&mut self, host: usize, now: Instant) {
        self.excuse_stopped_agent(host, now);
    }

    fn exit_code(&self) -> u8 {
        self.code()
    }

    fn failed_rank(&self) -> Option<u32> {
        self.root().map(|loss| loss.member)
    }

    fn may_restart(&self) -> bool {
        matches!(self.ending, Ending::Badly(_))
    }

    fn last_words(&self) -> Vec<String> {
        self.words()
    }
}

impl ElasticSupervision {
    fn next_deadline(&self, now: Instant) -> Instant {
        let phase = match self.phase {
            Phase::Gathering { until } | Phase::Asked { until } | Phase::Ending { until } => Some(until),
            Phase::Running | Phase::Finished => None,
        };
        let short = self.short.map(|(_, until)| until);
        let stateless = self.stateless.map(|since| since + NEWS_ARE_ON_THE_WAY);
        let late = self.late_losses.first().map(|(_, since)| *since + NEWS_ARE_ON_THE_WAY);
        let barred = self.hosts.iter().filter_map(|host| host.barred_until).filter(|until| *until > now).min();
        let idle = now + Duration::from_secs(1);
        let beat = if self.settings.silence.is_zero() { idle } else { now + self.settings.silence / BEATS };
        let due =
            phase.into_iter().chain(short).chain(stateless).chain(late).chain(barred).chain(self.admission.until());
        due.chain([idle, beat]).min().unwrap_or(idle)
    }
}

/// `3 members`.
fn members_in_words(count: usize) -> String {
    match count {
        0 => "no member".to_owned(),
        1 => "1 member".to_owned(),
        count => format!("{count} members"),
    }
}
