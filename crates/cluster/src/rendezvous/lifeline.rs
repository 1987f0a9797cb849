//! What a rank keeps of the rendezvous: a connection over which both sides know that the other is alive.
//!
//! A small thread of its own sends a heartbeat every quarter of the allowed silence and hears the answers. It shares no
//! lock with the engine and does nothing else but look, once in a second, at what the rank has recorded, for live
//! views; so a rank that computes, or waits in a collective, is heard all the same; only a process that is stopped, or
//! a machine that is, falls silent. When the server pronounces a [`FailureNotice`], or is itself gone or silent,
//! whoever asked to be called is told, on the lifeline's thread, once.
//!
//! **Invariant:** whoever slept judges nobody. Silence is measured in awake time (`farandole_transport::awake`), which
//! stands still while this process is stopped or the machine is suspended.
//!
//! **A server that is stopped is not lost** if its process is no rank: an agent that somebody has suspended together
//! with its launcher goes on when it is continued, and until then the collectives do without it. Only a process of the
//! same host can be seen to be stopped.
//!
//! **In an elastic job** nobody's end is the end of the job. The end of another member is told by its number, every
//! time, to whoever asked ([`Lifeline::on_loss`]); that the server is gone is told to nobody, because the members go on
//! without it. Only what the launcher says of the job as a whole is a failure.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{AwakeClock, ProcessState};
use rustix::event::{PollFd, PollFlags, poll};

use super::address::Stream;
use super::generation::Generation;
use super::liveness::{host_name, words_for};
use super::message::{Down, ServerProcess, Up};
use crate::channel::{Polled, Received};
use crate::error::{Error, Result};
use crate::failure_notice::{FailureKind, FailureNotice};
use crate::mailbox::Mailbox;

/// The variable that holds the longest silence in seconds; 0 turns heartbeats off.
pub const HEARTBEAT_TIMEOUT: &str = farandole_settings::HEARTBEAT_TIMEOUT.name;

/// Heartbeats in one allowed silence: three may be late before the fourth matters.
const HEARTBEATS: u32 = 4;

/// The thread reads, seals and calls back; the largest thing on its stack is a read buffer of 8 KB.
const STACK_BYTES: usize = 256 << 10;

/// How often samples are sent: as often as somebody reads a figure on a screen.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

/// A server that leaves so much untaken does not listen; a heartbeat that waits for its turn is far less.
const MOST_BEHIND_BYTES: usize = 4096;

/// How long a rank that leaves waits until its goodbye has been taken.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);

/// The longest silence as the environment has it: a number of seconds, 0 for none.
pub fn silence_from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Option<Duration>> {
    let silence: Duration = farandole_settings::HEARTBEAT_TIMEOUT.read(lookup).map_err(|wrong| Error::Environment {
        variable: wrong.variable,
        problem: format!("'{}' is not {} (0 turns heartbeats off)", wrong.text, wrong.kind),
    })?;
    Ok((!silence.is_zero()).then_some(silence))
}

/// A rank's connection to the rendezvous after the exchange. Dropping it says goodbye.
pub struct Lifeline {
    commands: Mailbox<Command>,
    news: Arc<News>,
    /// The process that has the thread: a fork of it has a copy of this handle and nothing to say.
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

/// What the rank wants its lifeline to do.
enum Command {
    Observe(Observer),
    Blame { peer: Option<Rank>, cause: String },
    AskWitness(Vec<u8>),
    Tell(Generation),
    Leave,
}

/// What the end of the server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// The job has failed.
    Job,
    /// Nothing: the job is elastic.
    Elastic,
}

/// Makes a sample of what the rank is doing, as bytes.
type Observer = Box<dyn FnMut() -> Vec<u8> + Send>;

type OnFailure = Box<dyn Fn(&FailureNotice) + Send>;
type OnLoss = Box<dyn Fn(u64, &FailureNotice, Option<&[u8]>) + Send>;
type OnAnswer = Box<dyn Fn(Vec<u8>) + Send>;

/// What was pronounced, and who wants to know.
#[derive(Default)]
struct News {
    /// Locked by the lifeline's thread when a notice comes, and while callbacks run; by the rank when it asks or adds a
    /// callback. A notice that comes before a callback is kept for it.
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    /// What has become of the job.
    notice: Option<FailureNotice>,
    on_failure: Vec<OnFailure>,
    /// Members of an elastic job that have ended, in the order in which that was heard.
    losses: Vec<(u64, FailureNotice, Option<Vec<u8>>)>,
    on_loss: Vec<OnLoss>,
    on_answer: Option<OnAnswer>,
}

impl Lifeline {
    pub(super) fn start(
        channel: Polled<Stream>,
        server_process: ServerProcess,
        own_host: String,
        silence: Option<Duration>,
        bond: Bond,
    ) -> Result<Lifeline> {
        let starting = |error| Error::local("starting a lifeline", error);
        let commands = Mailbox::new().map_err(starting)?;
        let news = Arc::<News>::default();
        let heard = Instant::now();
        let (commands_too, news_too) = (commands.clone(), news.clone());
        let (observer, next_sample) = (None, heard);
        let watch = Watch {
            channel,
            server_process,
            own_host,
            silence,
            bond,
            commands: commands_too,
            news: news_too,
            heard,
            observer,
            next_sample,
        };
        let thread = std::thread::Builder::new()
            .name("lifeline".into())
            .stack_size(STACK_BYTES)
            .spawn(move || watch.run())
            .map_err(starting)?;
        Ok(Lifeline { commands, news, pid: std::process::id(), thread: Some(thread) })
    }

    /// Calls back, once, when the job has failed: on the lifeline's thread, or here and now if it already has. There
    /// may be several who want to know.
    pub fn on_failure(&self, callback: impl Fn(&FailureNotice) + Send + 'static) {
        let mut heard = self.news.heard();
        match &heard.notice {
            Some(notice) => callback(notice),
            None => heard.on_failure.push(Box::new(callback)),
        }
    }

    /// Calls back for every member of an elastic job that has ended, with its number: on the lifeline's thread, and
    /// here and now for those that have ended before. Kinds say how certain that is: a process that exited, was
    /// signalled or is gone has ended; the processes of a host or an agent that is lost may run. With the end comes the
    /// record of the member's votes, if its agent has read it.
    pub fn on_loss(&self, callback: impl Fn(u64, &FailureNotice, Option<&[u8]>) + Send + 'static) {
        let mut heard = self.news.heard();
        heard.losses.iter().for_each(|(member, notice, votes)| callback(*member, notice, votes.as_deref()));
        heard.on_loss.push(Box::new(callback));
    }

    /// Calls back, on the lifeline's thread, with each answer of the witness.
    pub fn on_witness_answer(&self, callback: impl Fn(Vec<u8>) + Send + 'static) {
        self.news.heard().on_answer = Some(Box::new(callback));
    }

    /// A way to ask the witness, which is the launcher. Questions and answers may be lost.
    pub fn witness_line(&self) -> impl Fn(Vec<u8>) + Send + 'static {
        let commands = self.commands.clone();
        move |question| commands.post(Command::AskWitness(question))
    }

    /// Tells the server, and through it the launcher, that this member of an elastic job has entered a generation: its
    /// number, and its members in rank order with what each is reached by. Processes that are started later call those
    /// of the latest. It is enough if one member tells, and no harm if all do.
    pub fn tell_generation(&self, number: u64, members: Vec<(u64, Vec<u8>)>) {
        self.commands.post(Command::Tell(Generation { number, members }));
    }

    /// Has the server told, once in a second, what this rank is doing: whatever `observer` says, which is called on the
    /// lifeline's thread and must be quick.
    pub fn observe(&self, observer: impl FnMut() -> Vec<u8> + Send + 'static) {
        self.commands.post(Command::Observe(Box::new(observer)));
    }

    /// What was pronounced, if anything was.
    pub fn notice(&self) -> Option<FailureNotice> {
        self.news.heard().notice.clone()
    }

    /// Reports that a collective of this rank has failed, and which peer it saw fail, so that the root cause can be
    /// named.
    pub fn blame(&self, peer: Option<Rank>, cause: impl Into<String>) {
        self.commands.post(Command::Blame { peer, cause: cause.into() });
    }
}

impl fmt::Debug for Lifeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifeline").field("failure_notice", &self.notice()).finish_non_exhaustive()
    }
}

impl Drop for Lifeline {
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

impl News {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first notice counts.
    fn tell(&self, notice: FailureNotice) {
        let mut heard = self.heard();
        if heard.notice.is_some() {
            return;
        }
        heard.on_failure.drain(..).for_each(|callback| callback(&notice));
        heard.notice = Some(notice);
    }

    /// Of each member the first notice counts, and the first with a record of its votes.
    fn tell_of(&self, member: u64, notice: FailureNotice, votes: Option<Vec<u8>>) {
        let mut heard = self.heard();
        let is_known = |(lost, _, known): &(u64, _, Option<_>)| *lost == member && (known.is_some() || votes.is_none());
        if !heard.losses.iter().any(is_known) {
            heard.on_loss.iter().for_each(|callback| callback(member, &notice, votes.as_deref()));
            heard.losses.push((member, notice, votes));
        }
    }
}

/// The state of the lifeline's thread.
struct Watch {
    channel: Polled<Stream>,
    server_process: ServerProcess,
    own_host: String,
    silence: Option<Duration>,
    bond: Bond,
    commands: Mailbox<Command>,
    news: Arc<News>,
    /// When the server was last heard.
    heard: Instant,
    observer: Option<Observer>,
    /// When it is asked next.
    next_sample: Instant,
}

/// Whether the thread goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    More,
    Nothing,
}

impl Watch {
    fn run(mut self) {
        let beat = self.silence.map(|silence| silence / HEARTBEATS);
        let mut clock = AwakeClock::new(Instant::now()).judging_by(self.silence.unwrap_or_default());
        let mut turned = clock.last();
        self.heard = turned;
        let mut next_beat = beat.map(|beat| turned + beat);
        // What came together with the answer of the exchange has been read already, and no poll will tell of it.
        if self.listen(turned) == After::Nothing {
            return;
        }
        loop {
            let next_sample = self.observer.as_ref().map(|_| self.next_sample);
            let next = next_beat.into_iter().chain(next_sample).min();
            let at_most = next.map(|next| next.saturating_duration_since(turned));
            self.wait(at_most);
            let now = clock.look(Instant::now(), at_most.unwrap_or(Duration::MAX));
            turned = now;
            if self.obey() == After::Nothing || self.listen(now) == After::Nothing {
                return;
            }
            self.excuse_stopped_server(now);
            if self.silence.is_some_and(|silence| now.saturating_duration_since(self.heard) > silence) {
                if self.bond == Bond::Job {
                    return self.news.tell(self.silent_server(now));
                }
                self.heard = now;
            }
            if next_beat.is_some_and(|next| next <= now) {
                // A server that is stopped for hours needs no more of them than it can take.
                if self.channel.queued_bytes() < MOST_BEHIND_BYTES {
                    let _ = self.channel.queue(&Up::Heartbeat.encode());
                }
                next_beat = beat.map(|beat| now + beat);
            }
            self.tell_onlookers(now);
            // A connection that takes nothing more will be heard closing.
            let _ = self.channel.flush();
        }
    }

    /// A server that is seen to be stopped is not held to its silence. It is looked at well before the limit: when it
    /// goes on it has time to answer.
    fn excuse_stopped_server(&mut self, now: Instant) {
        let Some(silence) = self.silence else { return };
        if self.server_process.rank.is_none()
            && now.saturating_duration_since(self.heard) > silence / 2
            && self.state_of_server() == Some(ProcessState::Stopped)
        {
            self.heard = now;
        }
    }

    /// What the server's process is seen to be, if it is on this host.
    fn state_of_server(&self) -> Option<ProcessState> {
        if self.server_process.host == self.own_host { self.server_process.process.state() } else { None }
    }

    /// Sends a sample, if it is time. While the server does not take what it was sent there is no use in sending more.
    fn tell_onlookers(&mut self, now: Instant) {
        let Some(observer) = self.observer.as_mut().filter(|_| self.next_sample <= now) else { return };
        self.next_sample = now + SAMPLE_PERIOD;
        if self.channel.queued_bytes() < MOST_BEHIND_BYTES {
            let _ = self.channel.queue(&Up::Sample(observer()).encode());
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        let writing = if self.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(&self.commands, PollFlags::IN),
            PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN | writing),
        ];
        let _ = poll(&mut fds, timeout.and_then(|timeout| timeout.try_into().ok()).as_ref());
    }

    fn obey(&mut self) -> After {
        for wish in self.commands.take() {
            match wish {
                Command::Observe(observer) => self.observer = Some(observer),
                Command::Blame { peer, cause } => {
                    let _ = self.channel.queue(&Up::Blame { peer, cause }.encode());
                }
                Command::AskWitness(question) => {
                    let _ = self.channel.queue(&Up::AskWitness(question).encode());
                }
                Command::Tell(generation) => {
                    let _ = self.channel.queue(&Up::Generation(generation).encode());
                }
                Command::Leave => {
                    self.say_goodbye();
                    return After::Nothing;
                }
            }
        }
        After::More
    }

    fn listen(&mut self, now: Instant) -> After {
        loop {
            match self.channel.receive() {
                Ok(Received::Message(message)) => {
                    self.heard = now;
                    match Down::decode(&message) {
                        Some(Down::FailureNotice(notice)) => self.news.tell(notice),
                        Some(Down::MemberLost { member, notice, votes }) => self.news.tell_of(member, notice, votes),
                        Some(Down::WitnessAnswer(answer)) => {
                            self.news.heard().on_answer.iter().for_each(|callback| callback(answer.clone()));
                        }
                        Some(Down::Look { rank, process }) => {
                            let seen = Up::Seen { rank, state: process.state() };
                            let _ = self.channel.queue(&seen.encode());
                        }
                        // The server closes in order: nobody watches any more, and nothing is wrong.
                        Some(Down::Goodbye) => return After::Nothing,
                        _ => {}
                    }
                }
                Ok(Received::NothingYet) => return After::More,
                Ok(Received::Closed) => {
                    self.lose_server("its connection was closed without a goodbye");
                    return After::Nothing;
                }
                Err(error) => {
                    self.lose_server(&format!("its connection broke: {error}"));
                    return After::Nothing;
                }
            }
        }
    }

    /// The server's process has closed the connection: it is gone, or it broke.
    fn lose_server(&self, how: &str) {
        let kind = if self.server_process.rank.is_some() { FailureKind::Gone } else { FailureKind::LauncherLost };
        if self.bond == Bond::Job {
            self.news.tell(self.notice_on_server(kind).saying(how));
        }
    }

    /// The server has not answered for too long.
    fn silent_server(&self, now: Instant) -> FailureNotice {
        let quiet = words_for(now.saturating_duration_since(self.heard));
        if self.state_of_server() == Some(ProcessState::Stopped) {
            return self.notice_on_server(FailureKind::Stopped).saying(format!("not heard of for {quiet}"));
        }
        let kind = if self.server_process.rank.is_some() { FailureKind::Silent } else { FailureKind::LauncherLost };
        self.notice_on_server(kind).saying(format!(
            "nothing for {quiet}: it hangs or is stopped, its host is down, or the network between is cut"
        ))
    }

    fn notice_on_server(&self, kind: FailureKind) -> FailureNotice {
        let notice = FailureNotice::new(kind)
            .on_host(host_name(&self.server_process.host))
            .on_process(self.server_process.process.pid);
        match self.server_process.rank {
            Some(rank) => notice.on_rank(rank),
            None => notice,
        }
    }

    /// Says goodbye and waits, for a moment, until the server hangs up: closing first could take the goodbye back.
    fn say_goodbye(&mut self) {
        let until = Instant::now() + GOODBYE_PATIENCE;
        let _ = self.channel.queue(&Up::Goodbye.encode());
        loop {
            if self.channel.flush().is_err() {
                return;
            }
            match self.channel.receive() {
                Ok(Received::Message(_)) => continue,
                Ok(Received::NothingYet) => {}
                Ok(Received::Closed) | Err(_) => return,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let writing = if self.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds = [PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN | writing)];
            let _ = poll(&mut fds, left.try_into().ok().as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silence_is_a_number_of_seconds() {
        let read = |text: Option<&str>| silence_from_lookup(|_| text.map(str::to_string));
        for unset in [None, Some(""), Some(" ")] {
            assert_eq!(read(unset).unwrap(), Some(farandole_settings::HEARTBEAT_TIMEOUT.default_value()), "{unset:?}");
        }
        assert_eq!(read(Some("0.25")).unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(read(Some(" 0 ")).unwrap(), None);
        for text in ["soon", "-1", "nan", "1e300"] {
            let error = read(Some(text)).unwrap_err();
            assert!(error.to_string().starts_with(HEARTBEAT_TIMEOUT), "{error}");
        }
    }
}
