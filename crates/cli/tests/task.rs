//! `farandole run` with a task: bytes for every rank, results from each; and with the alias package on the ranks' path.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::Folder;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Copies the task into the result.
const ECHO: &str = "cat /proc/self/fd/$FARANDOLE_TASK_FD > /proc/self/fd/$FARANDOLE_RESULT_FD";

/// A folder of this test's own, removed at the end.
struct Place(Folder);

impl Place {
    fn new() -> Place {
        let folder = Folder::new();
        fs::create_dir_all(folder.join("results")).unwrap();
        Place(folder)
    }

    fn result(&self, rank: usize) -> Option<Vec<u8>> {
        fs::read(self.0.join(format!("results/rank.{rank}"))).ok()
    }

    /// Runs a shell script in every rank, with this task.
    fn run(&self, ranks: &str, task: &[u8], script: &str) -> Output {
        fs::write(self.0.join("task"), task).unwrap();
        let mut command = self.command(std::process::id());
        ended(command.args(["-np", ranks, "sh", "-c", script]))
    }

    fn command(&self, caller: u32) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.arg("run").arg("--task").arg(self.0.join("task")).arg("--results").arg(self.0.join("results"));
        command.arg("--caller").arg(caller.to_string());
        command
    }
}

fn ended(command: &mut Command) -> Output {
    farandole_testing::finish(command, DEADLINE)
}

fn said(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn every_rank_gets_the_task_and_its_result_comes_back_whatever_its_length() {
    for length in [0, 5, 3_000_000] {
        let place = Place::new();
        let task: Vec<u8> = (0..length).map(|index| (index % 253) as u8).collect();
        let output = place.run("3", &task, ECHO);
        assert!(output.status.success(), "{}", said(&output));
        for rank in 0..3 {
            assert!(place.result(rank).unwrap_or_default() == task, "rank {rank}: {length} bytes");
        }
        assert!(!place.0.join("results/failure").exists());
    }
}

#[test]
fn large_results_come_back_whole() {
    let place = Place::new();
    let output = place.run("2", b"", "head -c 40000000 /dev/zero > /proc/self/fd/$FARANDOLE_RESULT_FD");
    assert!(output.status.success(), "{}", said(&output));
    for rank in 0..2 {
        let file = fs::metadata(place.0.join(format!("results/rank.{rank}"))).unwrap();
        assert_eq!(file.len(), 40_000_000);
    }
}

#[test]
fn a_rank_sees_its_own_result_and_nobody_elses() {
    let place = Place::new();
    let script = "for fd in /proc/$$/fd/*; do readlink $fd; done | grep -c farandole-result \
                  > /proc/self/fd/$FARANDOLE_RESULT_FD";
    let output = place.run("3", b"", script);
    assert!(output.status.success(), "{}", said(&output));
    assert!((0..3).all(|rank| place.result(rank).unwrap() == b"1\n"), "{:?}", place.result(2));
}

#[test]
fn the_rank_that_failed_is_named_and_what_it_left_is_there() {
    let place = Place::new();
    let script = "echo oh no > /proc/self/fd/$FARANDOLE_RESULT_FD; \
                  if [ $FARANDOLE_RANK = 1 ]; then echo the reason >&2; exit 3; fi; sleep 30";
    let output = place.run("3", b"", script);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let failure = fs::read_to_string(place.0.join("results/failure")).unwrap();
    let (rank, words) = failure.split_once('\n').unwrap();
    assert_eq!(rank, "1", "{failure}");
    assert!(words.starts_with("rank 1 on") && words.contains("exit code 3") && words.contains("the reason"), "{words}");
    assert_eq!(place.result(1).unwrap(), b"oh no\n");
}

#[test]
fn a_result_that_cannot_be_kept_ends_the_job_with_the_reason() {
    let place = Place::new();
    fs::remove_dir_all(place.0.join("results")).unwrap();
    let output = place.run("2", b"x", &format!("{ECHO}; [ $FARANDOLE_RANK = 0 ] || sleep 30"));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("rank 0 on"), "{}", said(&output));
    assert!(said(&output).contains("has a result that cannot be kept: No such file"), "{}", said(&output));
}

#[test]
fn a_job_ends_with_whoever_waits_for_its_results() {
    let place = Place::new();
    fs::write(place.0.join("task"), b"").unwrap();
    let pids = place.0.join("pids");
    let shown = place.command(0).get_args().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>();
    let words = shown[..shown.len() - 1].join(" ");
    let script = format!("echo $$ >> {}; exec sleep 1000", pids.display());
    // A shell that starts the job as its child and waits for it, with nothing in between.
    let caller = format!("{} {words} $$ -np 2 sh -c '{script}' & wait", env!("CARGO_BIN_EXE_farandole"));
    let mut caller = Command::new("sh").args(["-c", &caller]).stdin(Stdio::null()).spawn().unwrap();
    let ranks = wait_for("two ranks", || {
        let text = fs::read_to_string(&pids).unwrap_or_default();
        let pids: Vec<Pid> = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
        (pids.len() == 2).then_some(pids)
    });
    kill_process(Pid::from_child(&caller), Signal::KILL).unwrap();
    caller.wait().unwrap();
    wait_for("no rank is left", || ranks.iter().all(|&rank| test_kill_process(rank).is_err()).then_some(()));
}

fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    farandole_testing::wait_for(what, DEADLINE, look)
}

/// `farandole run --horovod` with these variables, in which every rank shows its `PYTHONPATH`.
fn with_alias(variables: &[(&str, &Path)], command: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_farandole"));
    run.args(["run", "-np", "2", "--horovod"]).args(command).env_remove("PYTHONPATH");
    ended(run.envs(variables.iter().copied()))
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).canonicalize().unwrap()
}

#[test]
fn ranks_find_the_alias_by_the_python_that_they_use() {
    let package = repository("bindings/python");
    let script = "import importlib.util as u; print('found', u.find_spec('horovod').origin)";
    for python in ["python3", repository(".venv/bin/python").to_str().unwrap()] {
        let output = with_alias(&[("PYTHONPATH", &package)], &[python, "-c", script]);
        let expected = format!("found {}", package.join("farandole/_alias/horovod/__init__.py").display());
        assert!(output.status.success(), "{python}: {}", said(&output));
        assert_eq!(said(&output).matches(&expected).count(), 2, "{python}: {}", said(&output));
    }
    // A command that is no Python, and a user who knows where it is.
    let folder = package.join("farandole/_alias");
    let show = ["sh", "-c", "echo path $PYTHONPATH"];
    let output = with_alias(&[("FARANDOLE_HOROVOD_PATH", &folder), ("PYTHONPATH", &package)], &show);
    let expected = format!("path {}:{}", folder.display(), package.display());
    assert_eq!(said(&output).matches(&expected).count(), 2, "{}", said(&output));
}

#[test]
fn where_there_is_no_alias_the_job_does_not_start_and_says_what_to_do() {
    let output = with_alias(&[], &["/usr/bin/python3", "-c", "print('dance')"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("/usr/bin/python3 has no farandole. pip install farandole there"),
        "{}",
        said(&output)
    );
    assert!(!said(&output).contains("dance"));
    let output = with_alias(&[("FARANDOLE_HOROVOD_PATH", Path::new("/usr"))], &["true"]);
    assert!(said(&output).contains("/usr has no package horovod in it"), "{}", said(&output));
}
