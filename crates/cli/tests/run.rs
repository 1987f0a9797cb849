//! `farandole run` on one host, as a user sees it: output, exit codes, signals, and nothing left behind.

#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use farandole_testing::Folder;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A started job. Killed when dropped, so that a failed test leaves nothing.
struct Run {
    child: Child,
}

/// How a job ended, and what it said.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Run {
    /// `farandole run` with these flags and a shell script as every rank's program.
    fn start(flags: &[&str], script: &str) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.arg("run").args(flags).args(["sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { child: command.spawn().unwrap() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end; a job that takes too long is a failure.
    fn end(mut self) -> Ended {
        let output = farandole_testing::finish_child(&mut self.child, DEADLINE);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    fn code(&self) -> Option<i32> {
        self.status.code()
    }

    fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    fn stdout_lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// A directory in which ranks leave notes.
struct Place(Folder);

impl Place {
    fn new() -> Place {
        Place(Folder::new())
    }

    fn file(&self, name: &str) -> String {
        self.0.file(name)
    }

    /// The numbers in a file that ranks write their processes to, once there are so many.
    fn pids(&self, name: &str, count: usize) -> Vec<Pid> {
        wait_for("ranks to say who they are", || {
            let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
            let pids: Vec<Pid> = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
            (pids.len() >= count).then_some(pids)
        })
    }
}

fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    farandole_testing::wait_for(what, DEADLINE, look)
}

/// A process that has ended but was not waited for yet counts as ended.
fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
    test_kill_process(pid).is_ok() && state.is_some_and(|state| state != 'Z')
}

fn wait_until_gone(pids: &[Pid]) {
    wait_for("processes to end", || (!pids.iter().any(|&pid| is_alive(pid))).then_some(()));
}

#[test]
fn settings_and_flags_without_effect_get_one_line_each_whatever_the_ranks_are() {
    let rank = std::path::Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples").join("obedient_rank");
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.args(["run", "-np", "4", "--disable-cache", "--gloo", "-x", "HOROVOD_AUTOTUNE=1"]).arg(rank).arg("once");
    command.envs([("HOROVOD_CYCLE_TIME", "5"), ("FARANDOLE_REPLAI", "0"), ("HOROVOD_CACHE_CAPACITY", "1024")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = Run { child: command.spawn().unwrap() }.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    lines.sort_unstable();
    let expected = [
        "farandole: note: --disable-cache has no effect: ",
        "farandole: note: --gloo has no effect: ",
        "farandole: note: FARANDOLE_REPLAI is set, but there is no such setting; did you mean FARANDOLE_REPLAY?",
        "farandole: note: HOROVOD_AUTOTUNE has no effect: ",
        "farandole: note: HOROVOD_CYCLE_TIME has no effect: ",
    ];
    assert_eq!(lines.len(), expected.len(), "{}", ended.stderr);
    assert!(lines.iter().zip(expected).all(|(line, begin)| line.starts_with(begin)), "{}", ended.stderr);
}

#[test]
fn every_rank_has_its_number_and_its_prefix() {
    let ended = Run::start(&["-np", "3"], "echo I am $FARANDOLE_RANK of $HOROVOD_SIZE; echo oh >&2").end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout_lines(), ["[0]<stdout>:I am 0 of 3", "[1]<stdout>:I am 1 of 3", "[2]<stdout>:I am 2 of 3"]);
    assert_eq!(ended.stderr.matches("<stderr>:oh\n").count(), 3);
}

#[test]
fn an_agent_opens_what_it_needs_and_its_ranks_keep_the_users_limit() {
    farandole_transport::descriptors::set_soft_limit(40).unwrap();
    let ended = Run::start(&["-np", "24"], "ulimit -Sn; test -z \"$FARANDOLE_OPEN_FILES\"").end();
    let kept = ended.stdout.lines().filter(|line| line.ends_with("<stdout>:40")).count();
    assert_eq!((kept, ended.code()), (24, Some(0)), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn the_last_line_names_rank_process_and_exit_code_and_repeats_its_words() {
    let script = "if [ $FARANDOLE_RANK = 1 ]; then echo ValueError: no such shape >&2; exit 7; fi; sleep 3600";
    // SIGTERM ends a sleeping shell; the grace period would be the end of this test.
    let ended = Run::start(&["-np", "3", "--grace", "3600"], script).end();
    assert_eq!(ended.code(), Some(7));
    let last = ended.last_line();
    assert!(last.starts_with("farandole: rank 1 on localhost (pid "), "{last}");
    assert!(last.contains(" ended with exit code 7 after ") && last.ends_with(": ValueError: no such shape"), "{last}");
    // Its own line is in view, and not shown again.
    assert_eq!(ended.stderr.matches("ValueError: no such shape").count(), 2, "{}", ended.stderr);
}

#[test]
fn a_rank_that_is_killed_is_named_with_its_signal() {
    let ended = Run::start(&["-np", "2"], "[ $FARANDOLE_RANK = 0 ] && kill -SEGV $$; sleep 100").end();
    assert_eq!(ended.code(), Some(128 + 11));
    assert!(ended.last_line().contains("was killed by signal 11 (SIGSEGV)"), "{}", ended.last_line());
}

#[test]
fn ranks_that_ignore_sigterm_are_killed_after_the_grace_period() {
    let script = "[ $FARANDOLE_RANK = 0 ] && exit 1; trap '' TERM; while :; do sleep 0.1; done";
    let ended = Run::start(&["-np", "2", "--grace", "0.3"], script).end();
    assert_eq!(ended.code(), Some(1));
}

#[test]
fn what_does_not_exist_is_said_once_for_each_rank_and_costs_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.args(["run", "-np", "2", "no-such-program", "-np", "7"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().last().unwrap().contains("cannot run no-such-program"), "{stderr}");
}

#[test]
fn the_output_of_dead_ranks_is_not_lost() {
    let script =
        "i=0; while [ $i -lt 2000 ]; do echo line $i of $FARANDOLE_RANK; i=$((i+1)); done; printf 'no end'; kill -9 $$";
    let ended = Run::start(&["-np", "2", "--grace", "20"], script).end();
    assert_eq!(ended.code(), Some(137));
    let whole = ended.stdout.lines().filter(|line| line.starts_with("[0]<stdout>:line ")).count();
    assert_eq!(whole, 2000, "half lines, or lost ones");
    assert!(ended.stdout.contains("[1]<stdout>:no end\n"));
}

#[test]
fn files_hold_what_each_rank_wrote() {
    let place = Place::new();
    let directory = place.file("logs");
    let flags = ["-np", "2", "--output-filename", &directory];
    let ended = Run::start(&flags, "echo out $FARANDOLE_RANK; printf 'err' >&2").end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(place.file("logs/rank.1/stdout")).unwrap(), "out 1\n");
    assert_eq!(std::fs::read_to_string(place.file("logs/rank.0/stderr")).unwrap(), "err");
}

#[test]
fn an_interrupt_goes_to_the_ranks_which_end_in_their_own_way() {
    let place = Place::new();
    let script =
        format!("trap 'echo bye; exit 0' INT; echo $$ >> {}; while :; do sleep 0.05; done", place.file("pids"));
    let run = Run::start(&["-np", "2"], &script);
    let pids = place.pids("pids", 2);
    kill_process(run.pid(), Signal::INT).unwrap();
    let ended = run.end();
    assert_eq!(ended.code(), Some(130));
    assert_eq!(ended.stdout_lines(), ["[0]<stdout>:bye", "[1]<stdout>:bye"]);
    assert!(ended.last_line().contains("SIGINT"), "{}", ended.last_line());
    wait_until_gone(&pids);
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let place = Place::new();
    // One grandchild in the rank's group and one that has left it.
    let script = format!(
        "sleep 1000 & echo $! >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & echo $$ >> {0}; wait",
        place.file("pids")
    );
    let run = Run::start(&["-np", "2"], &script);
    let pids = place.pids("pids", 6);
    kill_process(run.pid(), Signal::KILL).unwrap();
    wait_until_gone(&pids);
}

#[test]
fn a_killed_agent_is_named_and_takes_everything_with_it() {
    let place = Place::new();
    let script = format!("setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & echo $$ >> {0}; wait", place.file("pids"));
    let run = Run::start(&["-np", "2"], &script);
    let pids = place.pids("pids", 4);
    let rank = pids.iter().map(|pid| parent(*pid)).find(|&parent| parent_is_ours(parent, run.pid())).unwrap();
    kill_process(rank, Signal::KILL).unwrap();
    let ended = run.end();
    assert_ne!(ended.code(), Some(0));
    assert!(ended.last_line().contains("the agent on localhost (pid "), "{}", ended.last_line());
    assert!(ended.last_line().contains("SIGKILL"), "{}", ended.last_line());
    wait_until_gone(&pids);
}

fn parent(pid: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let rest = &stat[stat.rfind(')').unwrap() + 1..];
    Pid::from_raw(rest.split_whitespace().nth(1).unwrap().parse().unwrap()).unwrap()
}

fn parent_is_ours(pid: Pid, launcher: Pid) -> bool {
    parent(pid) == launcher
}

#[test]
fn a_stopped_rank_is_reported_as_stopped() {
    let place = Place::new();
    let script = format!("echo $$ >> {}; exec sleep 1000", place.file("pids"));
    let run = Run::start(&["-np", "2", "--heartbeat-timeout", "1"], &script);
    let pids = place.pids("pids", 2);
    kill_process(pids[0], Signal::STOP).unwrap();
    let ended = run.end();
    assert_ne!(ended.code(), Some(0));
    assert!(ended.last_line().contains("was stopped by signal 19 (SIGSTOP)"), "{}", ended.last_line());
    wait_until_gone(&pids);
}

#[test]
fn the_job_ends_when_nobody_reads_its_output() {
    let place = Place::new();
    let script = format!("echo $$ >> {}; while :; do echo more; sleep 0.01; done", place.file("pids"));
    let mut run = Run::start(&["-np", "2"], &script);
    let pids = place.pids("pids", 2);
    drop(run.child.stdout.take());
    run.child.stdout = None;
    let status = wait_for("the launcher to end", || run.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(128 + 13));
    wait_until_gone(&pids);
}

#[test]
fn ranks_meet_again_and_again_and_nothing_piles_up() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples/obedient_rank");
    for (ranks, count) in [("1", 1), ("3", 3)] {
        let ended = Run::start(&["-np", ranks], &format!("{} again 50", program.display())).end();
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(ended.stdout.matches("met 50 times").count(), count, "{}", ended.stdout);
    }
    let ended = Run::start(&["-np", "3"], &format!("{} without 1", program.display())).end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.matches("rank 1 did not come to the rendezvous within").count(), 2, "{}", ended.stdout);
}

#[test]
fn no_secret_is_on_a_command_line_or_in_the_environment_of_a_rank() {
    let script = "cat /proc/$PPID/cmdline /proc/$$/cmdline /proc/$$/environ | tr '\\0' '\\n'; cat /proc/self/fd/$FARANDOLE_KEY_FD >&2";
    let ended = Run::start(&["-np", "1"], script).end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let key = ended.stderr.trim().strip_prefix("[0]<stderr>:").unwrap();
    assert_eq!(key.len(), 64, "{key}");
    assert!(!ended.stdout.contains(key));
}

#[cfg(not(feature = "train"))]
#[test]
fn without_the_trainer_the_command_says_how_to_get_it() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_farandole")).args(["train", "-np", "2", "--epochs", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--features train -- train -np 2 --epochs 3"), "{text}");
}
