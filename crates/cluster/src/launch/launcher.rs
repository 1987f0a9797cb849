//! Drives a job: agents, their channels, the user's signals and the screen, in one loop.
//!
//! [`super::supervision`] decides, or [`super::elastic`]; this module acts. `agents` starts them, `starts` says what
//! each is told to start. The loop waits for everything at once, and it gives the supervision awake time. Writing to a
//! slow terminal happens on the screen's own thread; while that lags, agents are not read.

mod agents;
mod starts;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::Child;
use std::time::{Duration, Instant};

use farandole_transport::{AwakeClock, Countdown, Key, ProcessId, ProcessState};
use rustix::event::{PollFd, PollFlags, poll};

use super::agent::timespec;
use super::agent_listener::{AgentListener, Caller};
use super::elastic::discovery::Discovery;
use super::job_spec::{Colour, JobSpec, Verbose};
use super::live_publisher::LivePublisher;
use super::message::{AgentReport, Directive, HowEnded, OutputStream, decode, encode};
use super::output::{Painted, Screen, Tail, Writer};
use super::overseer::Overseer;
use super::process_tree;
use super::results::{Results, Tasks};
use super::signal::{ENDING, FOR_RANKS, SIGCHLD, Signals};
use super::supervision::Action;
use crate::channel::Received;
use crate::error::{Error, Result};
use agents::AgentHandle;
use starts::TargetHost;

/// Agents that have nothing left to do, and ssh behind them, get this long to end by themselves.
const FAREWELL: Duration = Duration::from_secs(2);

/// So much of a task waits in a channel at most: heartbeats go behind it.
const MOST_TASK_BYTES: usize = 1 << 20;

/// Starts the ranks of an order, looks after them until the last has ended, and returns the code to exit with. What the
/// ranks write, and why the job failed if it did, has been shown by then. A job that failed is started again if the
/// order says so.
pub fn run(spec: JobSpec) -> Result<u8> {
    let mut heard = ENDING.to_vec();
    heard.extend(FOR_RANKS);
    heard.push(SIGCHLD);
    let mut signals = Signals::hear(&heard)?;
    // Should the agent of this host be killed, its orphans are ours to end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Error::local("becoming the parent of orphans", error))?;
    let mut restart = 0;
    loop {
        let ended = Launcher::start(spec.clone(), &mut signals, restart)?.serve();
        if !ended.may_restart || restart >= spec.restarts {
            return Ok(ended.code);
        }
        restart += 1;
    }
}

/// How a job ended.
struct Ended {
    code: u8,
    /// Whether it failed by itself.
    may_restart: bool,
}

struct Launcher<'a> {
    spec: JobSpec,
    /// How often the job has been started before.
    restart: u32,
    supervision: Box<dyn Overseer>,
    lines: Vec<AgentHandle>,
    /// Looks for other hosts, for an elastic job.
    discovery: Option<Discovery>,
    agent_listener: Option<AgentListener>,
    key: Key,
    signals: &'a mut Signals,
    screen: Screen,
    /// OutputOptions that the screen had no room for.
    held: VecDeque<(u32, OutputStream, Vec<u8>)>,
    finished: Finished,
    task: Option<(Tasks, Results)>,
    live: LivePublisher,
}

/// Whether a piece of the task went into a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fed {
    Some,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finished {
    No,
    Yes,
}

impl Launcher<'_> {
    fn start(spec: JobSpec, signals: &mut Signals, restart: u32) -> Result<Launcher<'_>> {
        let began = Instant::now();
        let task = starts::task_of(&spec)?;
        let key = Key::random().map_err(|error| Error::local("making a job key", std::io::Error::other(error)))?;
        let writer = Writer::start(spec.output.drawer.clone())?;
        let screen = Screen::new(spec.output.clone(), painted(spec.output.colour), spec.placement.size(), writer);
        let live = LivePublisher::open(&spec)?;
        let task_bytes = task.as_ref().map(|(task, _)| task.bytes());
        let supervision = starts::overseer(&spec, task_bytes, restart + spec.requeues, began);
        let elastic = spec.elastic.clone();
        let discovery = elastic.map(|elastic| Discovery::start(elastic.source, elastic.hosts)).transpose();
        let discovery = discovery.map_err(|error| Error::local("looking for hosts", error))?.flatten();
        let mut launcher = Launcher {
            live,
            restart,
            supervision,
            lines: Vec::new(),
            discovery,
            agent_listener: None,
            key,
            signals,
            screen,
            held: VecDeque::new(),
            finished: Finished::No,
            task,
            spec,
        };
        if restart == 0 && launcher.spec.requeues > 0 {
            launcher.screen.say(&format!("the scheduler has requeued this job, {} time(s)", launcher.spec.requeues));
        }
        if restart > 0 {
            let again = format!("the job is started again: restart {restart} of {}", launcher.spec.restarts);
            launcher.screen.say(&again);
        }
        if let Some(address) = launcher.live.metrics() {
            launcher.screen.say(&format!("metrics are at http://{address}/metrics"));
        }
        if launcher.spec.elastic.is_none() {
            launcher.start_agents(began)?;
        }
        Ok(launcher)
    }

    /// Drives the job until it is over.
    fn serve(mut self) -> Ended {
        self.run(Instant::now());
        let may_restart = self.supervision.may_restart();
        Ended { code: self.farewell(), may_restart }
    }

    fn run(&mut self, began: Instant) {
        let mut clock = AwakeClock::new(began).judging_by(self.spec.silence);
        let mut at_most = Duration::ZERO;
        while self.finished == Finished::No {
            let now = clock.look(Instant::now(), at_most);
            self.answer_callers(now);
            self.hear_of_hosts(now);
            self.hear_signals(now);
            self.hear_complaints();
            self.listen(now);
            self.look_after_children(now);
            if self.screen.writer().is_closed() {
                self.supervision.output_closed(now);
            }
            self.excuse_stopped_agents(now);
            let until = self.supervision.tick(now);
            let shown = self.screen.tick();
            self.act(now);
            self.flush(now);
            at_most = shown.map_or(until, |shown| until.min(shown)).saturating_duration_since(now);
            if self.finished == Finished::No {
                self.wait(at_most);
            }
        }
    }

    fn answer_callers(&mut self, now: Instant) {
        let Some(agent_listener) = &mut self.agent_listener else { return };
        for Caller { host, channel, first } in agent_listener.answer(&self.key, now) {
            let host = host as usize;
            // Only an agent that is expected; an authenticated peer with a wrong host is dropped.
            let expected = |line: &AgentHandle| line.channel.is_none() && line.child.is_some() && !line.is_local;
            if self.lines.get(host).is_some_and(expected) {
                self.lines[host].channel = Some(channel);
                if let Some(bytes) = first {
                    self.hear(host, &bytes, now);
                }
            }
        }
    }

    fn hear_of_hosts(&mut self, now: Instant) {
        for found in self.discovery.iter().flat_map(|discovery| discovery.news.take()).collect::<Vec<_>>() {
            self.supervision.hosts_changed(found, now);
        }
    }

    fn hear_signals(&mut self, now: Instant) {
        for signal in self.signals.take() {
            match signal {
                SIGCHLD => {}
                signal if FOR_RANKS.contains(&signal) => self.pass_on(signal),
                signal => self.supervision.signal(signal, now),
            }
        }
    }

    fn pass_on(&mut self, signal: i32) {
        let directive = encode(&super::message::Directive::Signal(signal));
        for channel in self.lines.iter_mut().filter_map(|line| line.channel.as_mut()) {
            // A channel that is broken is noticed when it is read.
            let _ = channel.queue(&directive);
        }
    }

    /// Shows what ssh and agents on other hosts say on their standard error.
    fn hear_complaints(&mut self) {
        let mut buffer = [0; 4096];
        for line in &mut self.lines {
            let Some((pipe, lines)) = &mut line.complaints else { continue };
            let mut heard = Vec::new();
            let closed = loop {
                match rustix::io::read(&*pipe, &mut buffer) {
                    Ok(0) => break true,
                    Ok(count) => heard.extend(lines.push(&buffer[..count])),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break false,
                    Err(_) => break true,
                }
            };
            if closed {
                heard.extend(lines.finish());
                line.complaints = None;
            }
            let name = line.name.clone();
            for bytes in heard {
                line.last_complaint.push(&bytes);
                for text in String::from_utf8_lossy(&bytes).lines().filter(|text| !text.trim().is_empty()) {
                    self.screen.say(&format!("{name} says: {text}"));
                }
            }
        }
    }

    /// Takes in what agents say, as far as it can be shown.
    fn listen(&mut self, now: Instant) {
        while let Some((rank, stream, bytes)) = self.held.pop_front() {
            if self.screen.show(rank, stream, &bytes).is_err() {
                self.held.push_front((rank, stream, bytes));
                return self.supervision.excuse_silence(now);
            }
        }
        for host in 0..self.lines.len() {
            while let Some(channel) = &mut self.lines[host].channel {
                match channel.receive() {
                    Ok(Received::Message(bytes)) => self.hear(host, &bytes, now),
                    Ok(Received::NothingYet) => break,
                    Ok(Received::Closed) => self.lose(host, "its connection was closed".to_owned(), now),
                    Err(error) => self.lose(host, error.to_string(), now),
                }
                if !self.held.is_empty() {
                    return;
                }
            }
        }
    }

    fn hear(&mut self, host: usize, bytes: &[u8], now: Instant) {
        match decode::<AgentReport>(bytes) {
            Some(report) => self.take(host, report, now),
            None => self.lose(host, "it does not speak our language".to_owned(), now),
        }
    }

    fn take(&mut self, host: usize, report: AgentReport, now: Instant) {
        if let AgentReport::Output { rank, stream, bytes } = &report
            && self.screen.show(*rank, *stream, bytes).is_err()
        {
            self.held.push_back((*rank, *stream, bytes.clone()));
        }
        if let AgentReport::Ended { rank, .. } = &report {
            self.screen.rank_ended(*rank);
        }
        self.keep_result(host, &report, now);
        self.live.hear(&report, now);
        if self.spec.verbose == Verbose::Yes {
            self.tell_of(host, &report);
        }
        self.supervision.report(host, report, now);
    }

    /// Writes what comes of a rank's result.
    fn keep_result(&mut self, host: usize, report: &AgentReport, now: Instant) {
        let Some((_, results)) = &mut self.task else { return };
        let (rank, kept) = match report {
            AgentReport::Result { rank, bytes } => (*rank, results.add(*rank, bytes)),
            AgentReport::Ended { rank, .. } => (*rank, results.complete(*rank)),
            _ => return,
        };
        if let Err(error) = kept {
            self.supervision.result_lost(host, rank, error.to_string(), now);
        }
    }

    fn tell_of(&mut self, host: usize, report: &AgentReport) {
        let name = self.lines[host].name.clone();
        let who = if self.spec.elastic.is_some() { "member" } else { "rank" };
        match report {
            AgentReport::Ready { pid, host_name, .. } => {
                self.screen.say(&format!("the agent on {name} ({host_name}, pid {pid}) is there"));
            }
            AgentReport::Started { rank, process: ProcessId { pid, .. } } => {
                self.screen.say(&format!("{who} {rank} runs on {name} (pid {pid})"));
            }
            AgentReport::Ended { rank, how, after_us } => {
                self.screen.say(&format!("{who} {rank} on {name} {how} after {:.3} s", *after_us as f64 / 1e6));
            }
            _ => {}
        }
    }

    /// The channel to an agent is gone. How its process ended says more, where it is our own child.
    fn lose(&mut self, host: usize, how: String, now: Instant) {
        self.lines[host].channel = None;
        let how = if self.lines[host].is_local {
            let ended = self.lines[host].child.as_mut().and_then(|child| wait_a_moment(child, FAREWELL / 4));
            ended.map_or(how, |ended| format!("it {ended}"))
        } else {
            how
        };
        self.supervision.agent_gone(host, how, now);
    }

    /// An ssh that has ended before its agent called is a host that cannot be used.
    fn look_after_children(&mut self, now: Instant) {
        for host in 0..self.lines.len() {
            let line = &mut self.lines[host];
            if line.channel.is_some() || line.complaints.is_some() {
                continue;
            }
            let Some(child) = &mut line.child else { continue };
            let Ok(Some(status)) = child.try_wait() else { continue };
            line.child = None;
            let ended = HowEnded::from_status(status);
            let how = match line.last_complaint.last() {
                Some(words) => format!("{words} (ssh {ended})"),
                None => format!("ssh {ended}"),
            };
            self.supervision.agent_gone(host, how, now);
        }
    }

    /// Agents of this host that are stopped are not held to their silence.
    fn excuse_stopped_agents(&mut self, now: Instant) {
        for (host, pid) in self.supervision.quiet_agents(now) {
            if self.lines[host].is_local && ProcessState::of(pid) == ProcessState::Stopped {
                self.supervision.agent_stopped(host, now);
            }
        }
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.supervision.next_action() {
            match action {
                Action::Send(host, directive) => {
                    if let Directive::Found(generation) = &directive {
                        self.live.entered(generation);
                    }
                    if self.task.is_some() && matches!(directive, Directive::Start(_)) {
                        self.lines[host].fed_bytes = Some(0);
                    }
                    if let Some(channel) = &mut self.lines[host].channel {
                        // A channel that is broken is noticed when it is read.
                        let _ = channel.queue(&encode(&directive));
                    }
                }
                Action::Say(text) => self.screen.say(&text),
                Action::Finish => self.finished = Finished::Yes,
                Action::StartAgent(host, name) => self.start_agent(host, name, now),
                Action::DropAgent(host) => self.drop_agent(host),
                Action::StartMembers(host, wanted) => {
                    let line = &mut self.lines[host];
                    wanted.members.iter().for_each(|member| self.live.add(member.rank, &line.name));
                    let host = TargetHost { name: &line.name, is_local: line.is_local };
                    let start = starts::of_members(&self.spec, host, wanted, self.restart + self.spec.requeues);
                    if let Some(channel) = &mut line.channel {
                        // A channel that is broken is noticed when it is read.
                        let _ = channel.queue(&encode(&Directive::Start(Box::new(start))));
                    }
                }
            }
        }
    }

    fn flush(&mut self, now: Instant) {
        for host in 0..self.lines.len() {
            while self.feed(host, now) == Fed::Some {}
            if let Some(channel) = &mut self.lines[host].channel
                && let Err(error) = channel.flush()
            {
                // What it said before it went is still to be read; the next read tells that it is gone.
                if !matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset) {
                    self.lose(host, error.to_string(), now);
                }
            }
        }
    }

    /// Puts the next pieces of the task into an agent's channel, as far as it takes them.
    fn feed(&mut self, host: usize, now: Instant) -> Fed {
        let line = &mut self.lines[host];
        let (Some((task, _)), Some(channel), Some(at)) = (&self.task, &mut line.channel, &mut line.fed_bytes) else {
            return Fed::Nothing;
        };
        let mut fed = Fed::Nothing;
        while channel.queued_bytes() < MOST_TASK_BYTES {
            match task.piece(*at) {
                Ok(Some(piece)) => {
                    *at += piece.len() as u64;
                    // A channel that is broken is noticed when it is read.
                    let _ = channel.queue(&encode(&Directive::Task(piece)));
                    fed = Fed::Some;
                }
                Ok(None) => {
                    line.fed_bytes = None;
                    break;
                }
                Err(error) => {
                    line.fed_bytes = None;
                    self.supervision.task_lost(host, format!("their task cannot be read: {error}"), now);
                    return Fed::Nothing;
                }
            }
        }
        // What the connection takes at once makes room for more.
        let _ = channel.flush();
        fed
    }

    fn wait(&self, at_most: Duration) {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for line in &self.lines {
            if let Some(channel) = &line.channel {
                let reading = if self.held.is_empty() { PollFlags::IN } else { PollFlags::empty() };
                let writing = if channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
                fds.push(PollFd::from_borrowed_fd(channel.fd(), reading | writing));
            }
            if let Some((pipe, _)) = &line.complaints {
                fds.push(PollFd::new(pipe, PollFlags::IN));
            }
        }
        fds.extend(self.discovery.iter().map(|discovery| PollFd::new(&discovery.news, PollFlags::IN)));
        let others = self.agent_listener.iter().flat_map(AgentListener::fds).chain(self.signals.fds());
        fds.extend(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let mut left = at_most;
        if !self.held.is_empty() {
            // The screen has no descriptor to wait for; it has room again after a few milliseconds or much later.
            left = left.min(Duration::from_millis(10));
        }
        // A wait that fails or is interrupted only makes the loop look once more.
        let _ = poll(&mut fds, Some(&timespec(left)));
    }

    /// Says the last words, lets agents go, and clears up after those that were killed.
    fn farewell(mut self) -> u8 {
        self.hear_complaints();
        self.screen.show_held();
        let words = self.supervision.last_words();
        let in_view = self.supervision.failed_rank().is_some_and(|rank| self.screen.has_in_view(rank));
        for line in words.iter().filter(|line| !(in_view && Tail::is_quote(line))) {
            if line.starts_with("  ") {
                self.screen.say_more(line);
            } else {
                self.screen.say(line);
            }
        }
        self.screen.finish();
        let is_last = !self.supervision.may_restart() || self.restart >= self.spec.restarts;
        if let (Some((_, results)), Some(last), true) = (&self.task, words.last(), is_last)
            && let Err(error) = results.fail(self.supervision.failed_rank(), last)
        {
            log::warn!("nobody will read why the job failed: {error}");
        }
        self.discovery = None;
        // A closed channel sends an agent home.
        let children: Vec<Child> = self.lines.drain(..).filter_map(|line| line.child).collect();
        let deadline = Countdown::new(FAREWELL);
        for mut child in children {
            drop(child.stdin.take());
            if wait_a_moment(&mut child, deadline.left()).is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        process_tree::end_orphans(&Countdown::new(FAREWELL));
        self.supervision.exit_code()
    }
}

/// Waits for a child, but not for long.
fn wait_a_moment(child: &mut Child, patience: Duration) -> Option<HowEnded> {
    let deadline = Countdown::new(patience);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(HowEnded::from_status(status));
        }
        if deadline.is_over() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn painted(colour: Colour) -> Painted {
    match colour {
        Colour::Always => Painted { stdout: true, stderr: true },
        Colour::Never => Painted::default(),
        Colour::Auto => {
            let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            Painted {
                stdout: wanted && std::io::stdout().is_terminal(),
                stderr: wanted && std::io::stderr().is_terminal(),
            }
        }
    }
}
