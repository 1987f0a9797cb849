//! Starts launchers with copies of this program, hears what they say, and is the program that they start.
//!
//! Nothing outlives its deadline: a launcher that takes longer is asked to end, then killed with its group.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farandole::{ReduceOp, Setup, World};
use farandole_cluster::Environment;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::stalls;

/// What a copy of this program is to do; unset in the test run itself.
const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that any job may take. Launchers that are written in Python take seconds to start on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// How long a job that is over its time has to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// Beginnings of variables that launchers set. This test may itself run under one of them.
const OF_LAUNCHERS: [&str; 14] = [
    "FARANDOLE_",
    "HOROVOD_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "MPI_",
    "HYDI_",
    "SLURM_",
    "TORCHELASTIC_",
    "RANK",
    "LOCAL_",
    "WORLD_",
    "GROUP_",
    "MASTER_",
];

/// A command without anything that another launcher has left in the environment.
pub(crate) fn start(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if OF_LAUNCHERS.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
}

/// The words that start a copy of this program in its role.
pub(crate) fn copy_of_this_program() -> Vec<OsString> {
    let program = std::env::current_exe().expect("this program has a path");
    let words = ["--ignored", "--exact", "a_rank_plays_its_role", "--nocapture"];
    std::iter::once(program.into_os_string()).chain(words.map(OsString::from)).collect()
}

/// A copy of this program without a launcher.
pub(crate) fn this_program() -> Command {
    let words = copy_of_this_program();
    let mut command = start(&words[0]);
    command.args(&words[1..]);
    command
}

/// How a job has ended, and all that it has said.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: ExitStatus,
    pub(crate) said: String,
}

impl Run {
    /// Runs a launcher to its end.
    pub(crate) fn of(launcher: &mut Command, role: &str) -> Run {
        Job::start(launcher, role).finish(Instant::now() + DEADLINE)
    }
}

/// Runs processes at the same time; the status is that of the first which failed.
pub(crate) fn run_all<const COUNT: usize>(ranks: [Command; COUNT], role: &str) -> Run {
    let deadline = Instant::now() + DEADLINE;
    let jobs = ranks.map(|mut rank| Job::start(&mut rank, role));
    let mut all = Run { status: ExitStatus::from_raw(0), said: String::new() };
    for run in jobs.map(|job| job.finish(deadline)) {
        if all.status.success() {
            all.status = run.status;
        }
        all.said += &run.said;
    }
    all
}

/// A process that has been started.
pub(crate) struct Job {
    child: Child,
    ears: [thread::JoinHandle<String>; 2],
}

impl Job {
    pub(crate) fn start(command: &mut Command, role: &str) -> Job {
        let command = command.env(ROLE, role).process_group(0);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| {
            panic!("{} cannot be started ({error}): cargo xtask ci installs it", command.get_program().display())
        });
        let stdout = child.stdout.take().expect("it was piped");
        let stderr = child.stderr.take().expect("it was piped");
        Job { child, ears: [thread::spawn(|| hear(stdout)), thread::spawn(|| hear(stderr))] }
    }

    pub(crate) fn finish(mut self, deadline: Instant) -> Run {
        let status = match wait_until(&mut self.child, deadline) {
            Some(status) => status,
            None => {
                let pid = Pid::from_child(&self.child);
                let _ = kill_process(pid, Signal::TERM);
                let _ = wait_until(&mut self.child, Instant::now() + GRACE);
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = self.child.wait();
                panic!("the job did not end in {DEADLINE:?}; it said: {}", said(self.ears));
            }
        };
        Run { status, said: said(self.ears) }
    }
}

/// Waits for a child, not longer than until the deadline.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        farandole_testing::lapse("the child", Duration::from_millis(5));
    }
}

fn hear(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn said(ears: [thread::JoinHandle<String>; 2]) -> String {
    ears.map(|ear| ear.join().expect("a listening thread does not panic")).concat()
}

/// What a copy of this program does.
pub(crate) fn play_role() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    match role.as_str() {
        "reduce" => reduce().shutdown(),
        "reduce-again" => reduce_again(),
        "without-0" => without(0),
        "without-1" => without(1),
        "crash" => crash(),
        "be-late" => stalls::be_late(),
        "come-late" => stalls::come_late(),
        "stop-0" => stalls::stop(0),
        "stop-1" => stalls::stop(1),
        other => panic!("there is no role {other}"),
    }
}

fn reduce() -> World {
    let launcher = Environment::from_process().unwrap_or_else(|error| panic!("{error}")).launcher;
    let mut world = farandole::init().unwrap_or_else(|error| panic!("{error}"));
    let (rank, size) = (world.rank(), world.size());
    let mut data = vec![rank as f64 + 1.0; 10_000];
    world.allreduce(&mut data, ReduceOp::Sum).expect("ranks reduce");
    let sum = (size * (size + 1)) as f64 / 2.0;
    assert!(data.iter().all(|&element| element == sum), "the sum of 1 to {size} is not {}", data[0]);
    println!("rank {rank} of {size} via {launcher}: ok");
    world
}

/// How many descriptors and threads this process has.
fn held() -> [usize; 2] {
    [entries("/proc/self/fd"), entries("/proc/self/task")]
}

/// The same fifty times. Ranks take turns in being late, and nothing may pile up.
fn reduce_again() {
    let mut first = None;
    for time in 0..50 {
        let world = reduce();
        if time % world.size() == world.rank() {
            farandole_testing::lapse("a rank that is late", Duration::from_millis(5));
        }
        world.shutdown();
        let before = *first.get_or_insert_with(held);
        // A thread that has been joined may be listed for a moment longer.
        let deadline = farandole_testing::Deadline::after(Duration::from_secs(30));
        let mut now = held();
        while now[0] > before[0] || now[1] > before[1] {
            deadline.pause(format!("descriptors and threads: {before:?} at first, {now:?} at last"));
            now = held();
        }
    }
    println!("met 50 times");
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// All meet once; then all but one rank, which leaves in order and ends, want to meet again.
fn without(absent: usize) {
    let world = reduce();
    let rank = world.rank();
    world.shutdown();
    if rank != absent {
        let again = Setup::new().patience(Duration::from_secs(1));
        println!("rank {rank} was told: {}", again.init().expect_err("one rank does not come again"));
    }
}

/// Rank 1 is killed in the middle of things; the others go on until they are told.
fn crash() {
    let mut world = farandole::init().unwrap_or_else(|error| panic!("{error}"));
    for round in 0.. {
        if world.rank() == 1 && round == 20 {
            kill_process(rustix::process::getpid(), Signal::KILL).expect("a process can kill itself");
        }
        if let Err(error) = world.allreduce(&mut vec![1.0f32; 1 << 16], ReduceOp::Sum) {
            println!("rank {} was told: {error}", world.rank());
            return;
        }
    }
}
