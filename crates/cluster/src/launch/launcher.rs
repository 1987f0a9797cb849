//! Drives a job: agents, their channels, the user's signals and the screen, in one loop.
//!
//! [`super::supervision`] decides; this module acts. The loop waits for everything at once, and it gives the
//! supervision awake time. Writing to a slow terminal happens on the screen's own thread; while that lags, agents are
//! not read.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farandole_transport::{AwakeClock, Countdown, Key, ProcessState};
use rustix::event::{PollFd, PollFlags, poll};

use super::agent::timespec;
use super::agent_listener::{AgentListener, Caller};
use super::bootstrap::Bootstrap;
use super::job_spec::{Alias, Colour, JobSpec, Mps, Verbose};
use super::live_publisher::LivePublisher;
use super::message::{AgentReport, Directive, HowEnded, OutputStream, RankSlot, StartRanks, decode, encode};
use super::output::{Lines, Painted, Screen, Tail, Writer};
use super::results::{Results, Tasks};
use super::signal::{ENDING, FOR_RANKS, SIGCHLD, Signals};
use super::socket::Socket;
use super::supervision::{Action, Settings, Supervision};
use super::{process_tree, ssh, variables};
use crate::channel::{ChannelPurpose, Polled, Received};
use crate::error::{Error, Result};

/// Agents that have nothing left to do, and ssh behind them, get this long to end by themselves.
const FAREWELL: Duration = Duration::from_secs(2);

/// So much of a task waits in a channel at most: heartbeats go behind it.
const MOST_TASK_BYTES: usize = 1 << 20;

/// Starts the ranks of an order, looks after them until the last has ended, and returns the code to exit with. What the
/// ranks write, and why the job failed if it did, has been shown by then.
pub fn run(spec: JobSpec) -> Result<u8> {
    let began = Instant::now();
    let mut heard = ENDING.to_vec();
    heard.extend(FOR_RANKS);
    heard.push(SIGCHLD);
    let signals = Signals::hear(&heard)?;
    // Should the agent of this host be killed, its orphans are ours to end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Error::local("becoming the parent of orphans", error))?;
    let task = task_of(&spec)?;
    let key = Key::random().map_err(|error| Error::local("making a job key", std::io::Error::other(error)))?;
    let writer = Writer::start(spec.output.drawer.clone())?;
    let screen = Screen::new(spec.output.clone(), painted(spec.output.colour), spec.placement.size(), writer);
    let settings = Settings {
        hosts: spec.placement.hosts().iter().map(|host| host.name.clone()).collect(),
        starts: starts(&spec, task.as_ref().map(|(task, _)| task.bytes())),
        start_timeout: spec.start_timeout,
        silence: spec.silence,
        grace: spec.grace,
    };
    let live = LivePublisher::open(&spec)?;
    let mut launcher = Launcher {
        live,
        supervision: Supervision::new(settings, began),
        lines: Vec::new(),
        agent_listener: None,
        key,
        signals,
        screen,
        held: VecDeque::new(),
        finished: Finished::No,
        task,
        spec,
    };
    if let Some(address) = launcher.live.metrics() {
        launcher.screen.say(&format!("metrics are at http://{address}/metrics"));
    }
    launcher.start_agents(began)?;
    launcher.run(began);
    Ok(launcher.farewell())
}

struct Launcher {
    spec: JobSpec,
    supervision: Supervision,
    lines: Vec<AgentHandle>,
    agent_listener: Option<AgentListener>,
    key: Key,
    signals: Signals,
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

/// One agent: the process that we started for it, and the channel once there is one.
#[derive(Default)]
struct AgentHandle {
    channel: Option<Polled<Socket>>,
    child: Option<Child>,
    /// What ssh and the agent itself say.
    complaints: Option<(OwnedFd, Lines)>,
    last_complaint: Tail,
    /// How much of the task has been sent, once it is wanted.
    fed_bytes: Option<u64>,
}

impl Launcher {
    fn start_agents(&mut self, now: Instant) -> Result<()> {
        let names: Vec<String> = self.spec.placement.hosts().iter().map(|host| host.name.clone()).collect();
        let hosts = names.iter().enumerate();
        let others: Vec<&str> =
            hosts.filter(|(host, _)| !self.spec.placement.is_local(*host)).map(|(_, name)| name.as_str()).collect();
        if !others.is_empty() {
            self.agent_listener = Some(AgentListener::open(&self.spec, &others)?);
        }
        let program = std::env::current_exe().map_err(|error| Error::local("finding this program's file", error))?;
        for (host, name) in names.iter().enumerate() {
            let line = if self.spec.placement.is_local(host) {
                self.start_here(host, &program)?
            } else {
                self.start_there(host, name, &program)
            };
            self.lines.push(line);
            if self.lines[host].child.is_none() {
                let how = self.lines[host].last_complaint.last().unwrap_or("ssh cannot be started").to_owned();
                self.supervision.agent_gone(host, how, now);
            }
        }
        Ok(())
    }

    /// The agent of this host talks through a pair of sockets that nobody else has.
    fn start_here(&self, host: usize, program: &Path) -> Result<AgentHandle> {
        let starting = |error| Error::local("starting the agent of this host", error);
        let (mut ours, theirs) = UnixStream::pair().map_err(starting)?;
        ours.write_all(&self.bootstrap(host, Vec::new()).to_bytes()).map_err(starting)?;
        let mut command = Command::new(program);
        // In a group of its own: Ctrl-C at the terminal is for the launcher to pass on.
        command.arg("agent").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(starting)?;
        let channel = Polled::accept(Socket::from(ours), &self.key, ChannelPurpose::Agent).map_err(starting)?;
        Ok(AgentHandle { channel: Some(channel), child: Some(child), ..AgentHandle::default() })
    }

    fn start_there(&self, host: usize, name: &str, program: &Path) -> AgentHandle {
        let probe_addresses = self.agent_listener.as_ref().map_or(Vec::new(), AgentListener::addresses);
        let mut line = AgentHandle::default();
        let mut command = ssh::agent_command(&self.spec.ssh, name, program, self.spec.start_timeout);
        let started = command.process_group(0).spawn().and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(&self.bootstrap(host, probe_addresses).to_bytes())?;
                child.stdin = Some(stdin);
            }
            if let Some(stderr) = child.stderr.take() {
                rustix::io::ioctl_fionbio(&stderr, true)?;
                line.complaints = Some((stderr.into(), Lines::default()));
            }
            Ok(child)
        });
        match started {
            Ok(child) => line.child = Some(child),
            Err(error) => line.last_complaint.push(format!("ssh cannot be started: {error}").as_bytes()),
        }
        line
    }

    fn bootstrap(&self, host: usize, launcher: Vec<std::net::SocketAddr>) -> Bootstrap {
        Bootstrap {
            key: self.key.to_hex(),
            host: host as u32,
            hosts: self.spec.placement.hosts().len() as u32,
            launcher,
            silence_ms: millis(self.spec.silence),
            patience_ms: millis(self.spec.start_timeout),
            network: self.spec.network.clone(),
        }
    }

    fn run(&mut self, began: Instant) {
        let mut clock = AwakeClock::new(began).judging_by(self.spec.silence);
        let mut at_most = Duration::ZERO;
        while self.finished == Finished::No {
            let now = clock.look(Instant::now(), at_most);
            self.answer_callers(now);
            self.hear_signals(now);
            self.hear_complaints();
            self.listen(now);
            self.look_after_children(now);
            if self.screen.writer().is_closed() {
                self.supervision.output_closed(now);
            }
            self.excuse_stopped_agents(now);
            let until = self.supervision.tick(now);
            self.act();
            self.flush(now);
            at_most = until.saturating_duration_since(now);
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
            if host < self.lines.len() && self.lines[host].channel.is_none() && !self.spec.placement.is_local(host) {
                self.lines[host].channel = Some(channel);
                if let Some(bytes) = first {
                    self.hear(host, &bytes, now);
                }
            }
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
        for (host, line) in self.lines.iter_mut().enumerate() {
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
            let name = &self.spec.placement.hosts()[host].name;
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
        let name = self.spec.placement.hosts()[host].name.clone();
        match report {
            AgentReport::Ready { pid, host_name, .. } => {
                self.screen.say(&format!("the agent on {name} ({host_name}, pid {pid}) is there"));
            }
            AgentReport::Started { rank, pid } => self.screen.say(&format!("rank {rank} runs on {name} (pid {pid})")),
            AgentReport::Ended { rank, how, after_us } => {
                self.screen.say(&format!("rank {rank} on {name} {how} after {:.3} s", *after_us as f64 / 1e6));
            }
            _ => {}
        }
    }

    /// The channel to an agent is gone. How its process ended says more, where it is our own child.
    fn lose(&mut self, host: usize, how: String, now: Instant) {
        self.lines[host].channel = None;
        let how = if self.spec.placement.is_local(host) {
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
            if self.spec.placement.is_local(host) && ProcessState::of(pid) == ProcessState::Stopped {
                self.supervision.agent_stopped(host, now);
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.supervision.next_action() {
            match action {
                Action::Send(host, directive) => {
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
        let words = self.supervision.last_words();
        for line in &words {
            if line.starts_with("  ") {
                self.screen.say_more(line);
            } else {
                self.screen.say(line);
            }
        }
        self.screen.finish();
        if let (Some((_, results)), Some(last)) = (&self.task, words.last())
            && let Err(error) = results.fail(self.supervision.failed_rank(), last)
        {
            log::warn!("nobody will read why the job failed: {error}");
        }
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

/// What each host is told to start.
fn starts(spec: &JobSpec, task_bytes: Option<u64>) -> Vec<StartRanks> {
    let placement = &spec.placement;
    let slot = |&rank: &farandole_plan::Rank| {
        let place = placement.place(rank);
        RankSlot {
            rank: rank.0,
            local_rank: place.local_rank as u32,
            local_size: place.local_size as u32,
            cross_rank: place.cross_rank as u32,
            cross_size: place.cross_size as u32,
        }
    };
    let start = |host: usize| {
        // Ranks here inherit this environment; elsewhere they get what may travel.
        let mut variables: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        if !placement.is_local(host) {
            let travelling = variables::travelling(&spec.pass, std::env::vars_os());
            variables.extend(travelling.into_iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
        }
        variables.extend(spec.set.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
        StartRanks {
            ranks: placement.ranks_on(host).iter().map(slot).collect(),
            size: placement.size(),
            command: spec.command.iter().map(|word| word.as_bytes().to_vec()).collect(),
            working_dir: spec.working_dir.as_os_str().as_bytes().to_vec(),
            variables,
            addresses: Vec::new(),
            silence_ms: millis(spec.silence),
            task_bytes,
            horovod: spec.alias == Alias::Horovod,
            rendezvous_socket: spec.rendezvous_socket.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
            ranks_per_gpu: spec.gpus.ranks_each,
            mps: spec.gpus.mps == Mps::OfTheJob,
        }
    };
    (0..placement.hosts().len()).map(start).collect()
}

/// What an order with a task needs. Such a job belongs to a process that waits for its results, and ends with it.
fn task_of(spec: &JobSpec) -> Result<Option<(Tasks, Results)>> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let Some(task) = &spec.task else { return Ok(None) };
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Error::local("asking to be told when the caller ends", error))?;
    // A caller that ended before we asked will not be missed by the kernel again. It need not be the parent: a script
    // may stand between.
    let is_parent = getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == task.caller);
    if !is_parent && !Path::new(&format!("/proc/{}", task.caller)).exists() {
        return Err(Error::Refused { why: format!("process {}, which wanted the results, has ended", task.caller) });
    }
    let tasks = Tasks::open(task).map_err(|error| Error::local(format!("reading {}", task.file.display()), error))?;
    Ok(Some((tasks, Results::into(&task.results))))
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
