//! The driver's side: a contestant that has been started and can be asked to run a round.
//!
//! Ranks are long-lived processes, started once for a whole run; between rounds they block. Whatever goes wrong with
//! one of them ends in an error that names the contestant and, where one can be named, the rank.

use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::args::BenchArgs;
use super::line::{Line, RankAnswer, RankCommand};
use super::statistics::slowest_rank;
use super::task::{Recording, Task};

/// Importing PyTorch on a cold disk takes the longest; a start that takes longer than this has failed.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// The longest a round may take. Rounds are sized to take well under a second unless an iteration itself takes longer.
const ROUND_PATIENCE: Duration = Duration::from_secs(300);

/// How long ranks get to leave by themselves after the driver has hung up.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// The word for farandole as it is in a job.
pub(crate) const FIRST: &str = "farandole";

/// What a round has brought.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RoundOutcome {
    /// Times of the iterations, each that of the slowest rank.
    Measured {
        /// In nanoseconds.
        times_ns: Vec<u64>,
        /// Wrong elements, over all ranks.
        wrong: u64,
    },
    /// The contestant cannot run the task.
    Unsupported {
        /// What it lacks.
        why: String,
    },
}

/// Somebody whose rounds can be timed.
pub(crate) trait Entrant {
    /// The word in the table.
    fn word(&self) -> &str;
    /// Product and version, for the header.
    fn product(&self) -> &str;
    /// Whether it is the first contestant's processes once more.
    fn is_twin(&self) -> bool {
        false
    }
    /// Runs one round.
    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome>;
}

/// A contestant whose ranks are processes at the other end of lines.
pub(crate) struct Processes {
    word: String,
    product: String,
    lines: Vec<Line>,
    /// Its ranks, or their launcher.
    children: Vec<Child>,
}

/// The processes of a contestant under a name of their own: as they are, once more, or with their recorder switched
/// off. They are the same ones, because two sets of processes differ by more than what is to be measured: in the cores
/// that they are given.
pub(crate) struct Twin {
    pub(crate) word: &'static str,
    pub(crate) product: String,
    pub(crate) recording: Recording,
    pub(crate) processes: Rc<RefCell<Processes>>,
}

/// The contestants that are farandole itself: once, and as often more as the flags ask for. `enter` makes one.
pub(crate) fn twins(
    args: &BenchArgs,
    product: &str,
    enter: impl Fn(&'static str, String, Recording) -> Box<dyn Entrant>,
) -> Vec<Box<dyn Entrant>> {
    let (on, off) = (Recording::On, Recording::Off);
    let mut entrants = vec![enter(FIRST, product.to_owned(), on)];
    if args.recorder_off {
        entrants.push(enter("unrecorded", "the same with its recorder off".to_owned(), off));
    }
    match (args.again, args.recorder_off) {
        (false, _) => {}
        (true, true) => entrants.push(enter("off again", "the same with its recorder off once more".to_owned(), off)),
        (true, false) => entrants.push(enter("again", "the same once more".to_owned(), on)),
    }
    entrants
}

impl Entrant for Twin {
    fn word(&self) -> &str {
        self.word
    }

    fn product(&self) -> &str {
        &self.product
    }

    fn is_twin(&self) -> bool {
        self.word != FIRST
    }

    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome> {
        let task = Task { recording: self.recording, ..task.clone() };
        self.processes.borrow_mut().round(&task, warmup, iterations)
    }
}

/// Starts the commands of a contestant: its ranks, or a launcher of them.
fn spawn(word: &str, commands: Vec<Command>) -> Result<Vec<Child>> {
    let start =
        |mut command: Command| command.spawn().with_context(|| format!("starting {word}: {:?}", command.get_program()));
    commands.into_iter().map(start).collect()
}

impl Processes {
    /// Starts the commands, and waits until all ranks have said hello at `socket`.
    pub(crate) fn start(word: &str, ranks: usize, socket: &Path, commands: Vec<Command>) -> Result<Processes> {
        let listener = UnixListener::bind(socket).with_context(|| format!("listening at {}", socket.display()))?;
        let children = spawn(word, commands)?;
        let mut started = Processes { word: word.to_string(), product: String::new(), lines: Vec::new(), children };
        started.welcome(&listener, ranks)?;
        Ok(started)
    }

    fn welcome(&mut self, listener: &UnixListener, ranks: usize) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        listener.set_nonblocking(true).context("making a socket non-blocking")?;
        let mut seats: Vec<Option<Line>> = (0..ranks).map(|_| None).collect();
        while let Some(missing) = seats.iter().position(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).context("making a socket blocking")?;
                    let mut line = Line::new(stream);
                    line.set_patience(Some(ROUND_PATIENCE))?;
                    let (rank, product) = hello(&mut line).with_context(|| format!("{}: greeting", self.word))?;
                    ensure!(rank < ranks && seats[rank].is_none(), "{}: rank {rank} came unexpectedly", self.word);
                    seats[rank] = Some(line);
                    self.product = product;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.ensure_alive()?;
                    ensure!(Instant::now() < deadline, "{}: rank {missing} has not started", self.word);
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("accepting a rank"),
            }
        }
        self.lines = seats.into_iter().flatten().collect();
        Ok(())
    }

    fn ensure_alive(&mut self) -> Result<()> {
        let hint = format!("{} did not start; its own words, if any, are above", self.word);
        let alive = self.alive().with_context(|| hint.clone())?;
        ensure!(alive > 0, "{hint}");
        Ok(())
    }

    /// How many of its processes live. Fails if one has failed.
    fn alive(&mut self) -> Result<usize> {
        let mut alive = 0;
        for child in &mut self.children {
            match child.try_wait().context("waiting for a process")? {
                Some(status) if !status.success() => bail!("a process ended with {status}"),
                Some(_) => {}
                None => alive += 1,
            }
        }
        Ok(alive)
    }
}

fn hello(line: &mut Line) -> Result<(usize, String)> {
    match line.receive()? {
        Some(RankAnswer::Hello { rank, product }) => Ok((rank, product)),
        other => bail!("expected a greeting, got {other:?}"),
    }
}

impl Entrant for Processes {
    fn word(&self) -> &str {
        &self.word
    }

    fn product(&self) -> &str {
        &self.product
    }

    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome> {
        let order = RankCommand::Measure { task: task.clone(), warmup, iterations };
        for line in &mut self.lines {
            line.send(&order).with_context(|| format!("{} has gone", self.word))?;
        }
        let mut per_rank = Vec::with_capacity(self.lines.len());
        let mut wrong_in_all = 0;
        let mut lacking = None;
        for (rank, line) in self.lines.iter_mut().enumerate() {
            let answer = line.receive().with_context(|| format!("{}, rank {rank}", self.word))?;
            match answer {
                Some(RankAnswer::Measured { times_ns, wrong }) => {
                    per_rank.push(times_ns);
                    wrong_in_all += wrong;
                }
                Some(RankAnswer::Unsupported { why }) => lacking = Some(why),
                Some(RankAnswer::Failed { why }) => bail!("{}, rank {rank}: {why}", self.word),
                Some(RankAnswer::Hello { .. }) => bail!("{}, rank {rank} greets twice", self.word),
                None => bail!("{}, rank {rank} died in {} of {} bytes", self.word, task.kind, task.bytes),
            }
        }
        Ok(match lacking {
            Some(why) => RoundOutcome::Unsupported { why },
            None => RoundOutcome::Measured { times_ns: slowest_rank(&per_rank), wrong: wrong_in_all },
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Ranks leave when their line closes; whoever has not left in time is made to.
        self.lines.clear();
        let deadline = Instant::now() + LEAVE_PATIENCE;
        while self.alive().is_ok_and(|alive| alive > 0) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
