//! A job that can be frozen: its processes, found by their parents, stopped and continued.
//!
//! **Invariant:** only descendants of the launcher that this test has started get a signal, through a descriptor of the
//! process, so that a number which is given out anew hits nobody else; and whatever was stopped is continued when a
//! [`Frozen`] is dropped.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_testing::{Deadline, lapse};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::chance::Chance;

/// No job takes longer, once it is awake, unless something hangs; other jobs and compilers share the machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// Which processes are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Launcher,
    LauncherAndAgent,
    Agent,
    OneRank,
}

impl Part {
    /// How many processes it has at least in a working job of so many ranks.
    pub(crate) fn least(self, ranks: usize) -> usize {
        match self {
            Part::All => 2 + ranks,
            Part::LauncherAndAgent => 2,
            Part::Launcher | Part::Agent | Part::OneRank => 1,
        }
    }
}

/// A started job. Killed when dropped, so that a failed test leaves nothing.
pub(crate) struct Job {
    launcher: Child,
    said: [Arc<Mutex<Vec<String>>>; 2],
    readers: Vec<JoinHandle<()>>,
}

/// Processes that are stopped.
pub(crate) struct Frozen(BTreeMap<i32, OwnedFd>);

impl Job {
    /// Ranks that do named and direct collectives for so long.
    pub(crate) fn start(ranks: usize, work: Duration, silence: Duration, limit: Option<Duration>) -> Job {
        let farandole = Path::new(env!("CARGO_BIN_EXE_farandole"));
        let program = farandole.with_file_name("examples").join("obedient_rank");
        assert!(program.exists(), "{} is missing: cargo build --package farandole-cli --examples", program.display());
        let mut launcher = Command::new(farandole)
            .args(["run", "-np", &ranks.to_string(), "--heartbeat-timeout", &silence.as_secs_f64().to_string()])
            .arg(program)
            .args(["work", &work.as_millis().to_string()])
            .envs(limit.map(|limit| ("FARANDOLE_TIMEOUT_SECONDS", limit.as_secs_f64().to_string())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = [Arc::default(), Arc::default()];
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(launcher.stdout.take().unwrap()), Box::new(launcher.stderr.take().unwrap())];
        let readers = streams.into_iter().zip(&said).map(|(stream, lines): (_, &Arc<Mutex<Vec<String>>>)| {
            let lines = Arc::clone(lines);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            })
        });
        let readers = readers.collect();
        Job { launcher, said, readers }
    }

    fn stdout_with(&self, words: &str) -> usize {
        self.said[0].lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }

    /// All that was said, for messages.
    fn said(&self) -> String {
        let lines = self.said.iter().flat_map(|lines| lines.lock().unwrap().clone());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until every rank is at work.
    pub(crate) fn wait_until_all_work(&mut self, ranks: usize) {
        let deadline = Deadline::after(DEADLINE);
        while self.stdout_with("working") < ranks {
            assert!(self.launcher.try_wait().unwrap().is_none(), "the job has ended:\n{}", self.said());
            deadline.pause(format!("the ranks, which do not work:\n{}", self.said()));
        }
    }

    /// Stops a part of what is there now, in any order. What is started meanwhile is stopped as well.
    pub(crate) fn freeze(&self, part: Part, chance: &mut Chance) -> Frozen {
        let mut frozen = Frozen(BTreeMap::new());
        loop {
            let mut found = self.processes(part);
            chance.shuffle(&mut found);
            found.retain(|pid| !frozen.0.contains_key(pid));
            if part == Part::OneRank {
                found.truncate(usize::from(frozen.0.is_empty()));
            }
            if found.is_empty() {
                return frozen;
            }
            for pid in found {
                let Some(process) = self.open(pid) else { continue };
                if pidfd_send_signal(&process, Signal::STOP).is_ok() {
                    frozen.0.insert(pid, process);
                }
            }
        }
    }

    /// A descriptor of a process, if it is still one of ours.
    fn open(&self, pid: i32) -> Option<OwnedFd> {
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        self.family().iter().any(|(member, _)| *member == pid).then_some(process)
    }

    fn processes(&self, part: Part) -> Vec<i32> {
        let family = self.family();
        let of = |generations: &[usize]| {
            let members = family.iter().filter(|(_, generation)| generations.contains(generation));
            members.map(|(pid, _)| *pid).collect()
        };
        match part {
            Part::All => family.iter().map(|(pid, _)| *pid).collect(),
            Part::Launcher => of(&[0]),
            Part::LauncherAndAgent => of(&[0, 1]),
            Part::Agent => of(&[1]),
            Part::OneRank => of(&[2]),
        }
    }

    /// The launcher (generation 0), its agent (1), the ranks (2) and what they have started.
    fn family(&self) -> Vec<(i32, usize)> {
        let mut parents = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            // The name in parentheses may hold anything; state and parent follow the last one.
            let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
            if let (Some(state), Some(parent)) = (fields.next(), fields.next())
                && !matches!(state, "Z" | "X")
            {
                parents.insert(pid, parent.parse::<i32>().unwrap_or_default());
            }
        }
        let launcher = self.launcher.id() as i32;
        let mut family = if parents.contains_key(&launcher) { vec![(launcher, 0)] } else { Vec::new() };
        let mut looked_at = 0;
        while let Some(&(parent, generation)) = family.get(looked_at) {
            let children = parents.iter().filter(|(_, theirs)| **theirs == parent);
            family.extend(children.map(|(pid, _)| (*pid, generation + 1)));
            looked_at += 1;
        }
        family
    }

    /// Waits for the end, which must be a good one, with right results on all ranks.
    pub(crate) fn end_well(mut self, ranks: usize) -> Result<(), String> {
        let deadline = Deadline::after(DEADLINE);
        let status = loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                break status;
            }
            if deadline.is_over() {
                return Err(format!("the job does not end; it said:\n{}", self.said()));
            }
            deadline.rest();
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let right = self.stdout_with("worked, and all was right");
        if status.success() && right == ranks {
            return Ok(());
        }
        Err(format!("{status}, {right} of {ranks} ranks were right; it said:\n{}", self.said()))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Frozen {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Lets all go on, in any order.
    pub(crate) fn thaw(self, chance: &mut Chance) {
        let mut order: Vec<&OwnedFd> = self.0.values().collect();
        chance.shuffle(&mut order);
        for process in order {
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}

impl Frozen {
    /// Lets all go on, the oldest first: the launcher has time to look around before anybody else can be heard.
    pub(crate) fn thaw_one_by_one(self) {
        for process in self.0.values() {
            let _ = pidfd_send_signal(process, Signal::CONT);
            lapse("those that go on later", Duration::from_millis(300));
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in self.0.values() {
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}
