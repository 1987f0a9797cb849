//! Elastic jobs of `farandole run` with real processes: killed, stopped, failing again and again; hosts that come and
//! go; a launcher that is killed.
//!
//! Members are shell scripts, or the example `elastic_member`, which meets the others. Other hosts are this one under
//! other names: an `ssh` of the test's own runs there what it is told, or fails as long as a file says so.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farandole_testing::{Deadline, Folder, at_least, finish, lapse, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a member does until the file `end` is there.
const WAIT: &str = "while test -d $PLACE && ! test -e $PLACE/end; do sleep 0.05; done";

/// A job, and the folder in which its members leave notes.
struct Job {
    child: Child,
    place: Arc<Folder>,
    stdout: Lines,
    stderr: Lines,
}

/// The lines of a stream, collected by a thread.
#[derive(Clone, Default)]
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    is_at_end: Arc<AtomicBool>,
}

impl Lines {
    fn collect(stream: impl Read + Send + 'static) -> Lines {
        let lines = Lines::default();
        let sink = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                sink.lines.lock().unwrap().push(line);
            }
            sink.is_at_end.store(true, Ordering::Release);
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn is_at_end(&self) -> bool {
        self.is_at_end.load(Ordering::Acquire)
    }

    fn count(&self, text: &str) -> usize {
        self.all().iter().filter(|line| line.contains(text)).count()
    }
}

impl Job {
    /// A job whose members are shell scripts, which find the folder in `$PLACE`.
    fn start(flags: &[&str], script: &str) -> Job {
        Job::start_in(Folder::new(), flags, &["sh", "-c", script])
    }

    fn start_in(place: Folder, flags: &[&str], program: &[&str]) -> Job {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.arg("run").args(flags).args(program).env("PLACE", place.display().to_string());
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", place.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = Lines::collect(child.stdout.take().unwrap());
        let stderr = Lines::collect(child.stderr.take().unwrap());
        Job { child, place: Arc::new(place), stdout, stderr }
    }

    fn wait_for<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Deadline::after(DEADLINE);
        loop {
            if let Some(found) = look() {
                return found;
            }
            deadline.pause(format!("{what}\n{}", self.said()));
        }
    }

    /// Waits until standard output has so many lines with this text.
    fn wait_for_output(&self, count: usize, text: &str) {
        self.wait_for(&format!("{count} lines with '{text}'"), || (self.stdout.count(text) >= count).then_some(()));
    }

    /// Waits until the launcher has said this.
    fn wait_until_said(&self, text: &str) {
        self.wait_for(&format!("the launcher to say '{text}'"), || (self.stderr.count(text) > 0).then_some(()));
    }

    /// The process of a member, by the note that it has left.
    fn pid(&self, member: u32) -> Pid {
        let note = self.place.join(format!("pid.{member}"));
        self.wait_for(&format!("member {member} to run"), || {
            Pid::from_raw(std::fs::read_to_string(&note).ok()?.trim().parse().ok()?)
        })
    }

    fn kill(&self, member: u32, signal: Signal) {
        kill_process(self.pid(member), signal).unwrap();
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.place.join(name), "").unwrap();
    }

    /// Lets all members end well, and waits for the end of the job.
    fn finish(mut self) -> Ended {
        self.touch("end");
        self.end()
    }

    fn end(&mut self) -> Ended {
        let status = self.wait_for_child();
        // The pipes are read to their end by threads. A member that is left behind holds them open.
        let is_read = || self.stdout.is_at_end() && self.stderr.is_at_end();
        wait_until("the end of what the job says", DEADLINE, is_read);
        Ended { code: status, stdout: self.stdout.all(), stderr: self.stderr.all() }
    }

    fn wait_for_child(&mut self) -> Option<i32> {
        let deadline = Deadline::after(DEADLINE);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            deadline.pause(format!("the end of the job\n{}", self.said()));
        }
    }

    fn said(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.stdout.all().join("\n"), self.stderr.all().join("\n"))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Members of an elastic job outlive their launcher.
        self.touch("end");
    }
}

struct Ended {
    code: Option<i32>,
    stdout: Vec<String>,
    stderr: Vec<String>,
}

impl Ended {
    fn last_line(&self) -> &str {
        self.stderr.last().map_or("", String::as_str)
    }

    fn has_said(&self, text: &str) -> bool {
        self.stderr.iter().any(|line| line.contains(text))
    }

    fn said(&self) -> String {
        format!("{:?}\n{}\n---\n{}", self.code, self.stdout.join("\n"), self.stderr.join("\n"))
    }
}

/// A script that leaves its process id, says who it is, and waits for the end.
fn waiting() -> String {
    format!("echo $$ > $PLACE/pid.$FARANDOLE_ELASTIC_MEMBER; echo here $FARANDOLE_ELASTIC_MEMBER; {WAIT}")
}

/// A folder with an `ssh` that starts agents here, under any name, unless a file `down.NAME` is there.
fn with_ssh() -> Folder {
    let place = Folder::new();
    let ssh = r#"#!/bin/sh
[ "$1" = -G ] && { echo hostname 127.0.0.1; echo port 22; exit 0; }
host= last=
for word; do host=$last; last=$word; done
[ -e "$PLACE/down.$host" ] && { echo "connect to host $host: no route" >&2; exit 255; }
exec sh -c "$last"
"#;
    std::fs::write(place.join("ssh"), ssh).unwrap();
    std::fs::set_permissions(place.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

fn member() -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples/elastic_member");
    program.display().to_string()
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !stat.contains(") Z ")
}

#[test]
fn members_know_who_they_are_and_a_good_end_is_silent() {
    let script = "echo $FARANDOLE_ELASTIC $HOROVOD_ELASTIC $FARANDOLE_ELASTIC_MEMBER $FARANDOLE_ELASTIC_MIN_NP \
                  $FARANDOLE_ELASTIC_MAX_NP $FARANDOLE_ELASTIC_TIMEOUT $FARANDOLE_RANK $FARANDOLE_SIZE $FARANDOLE_LOCAL_RANK";
    let flags = ["-np", "2", "--min-np", "1", "--max-np", "3", "--elastic-timeout", "9", "-H", "localhost:2"];
    let mut job = Job::start(&flags, script);
    let ended = job.end();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    let mut lines = ended.stdout;
    lines.sort();
    assert_eq!(lines, ["[0]<stdout>:1 1 0 1 3 9 0 2 0", "[1]<stdout>:1 1 1 1 3 9 1 2 1"]);
    assert_eq!(ended.stderr, Vec::<String>::new());
}

#[test]
fn a_killed_member_is_replaced_and_the_others_are_left_alone() {
    let job = Job::start(&["-np", "3", "--min-np", "2"], &waiting());
    job.wait_for_output(3, "here ");
    let others = [job.pid(0), job.pid(2)];
    job.kill(1, Signal::KILL);
    job.wait_for_output(1, "[3]<stdout>:here 3");
    assert!(others.iter().all(|pid| is_alive(*pid)));
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(ended.has_said("member 1 on localhost (pid ") && ended.has_said("was killed by signal 9 (SIGKILL)"));
    assert!(ended.last_line().ends_with("; member 3 was started in its place"), "{}", ended.said());
}

#[test]
fn what_a_dead_member_has_left_is_cleared_away() {
    let script = format!("sleep 1000 & echo $! > $PLACE/child.$FARANDOLE_ELASTIC_MEMBER; {}", waiting());
    let job = Job::start(&["-np", "2", "--min-np", "1"], &script);
    job.wait_for_output(2, "here ");
    let child: i32 = std::fs::read_to_string(job.place.join("child.0")).unwrap().trim().parse().unwrap();
    let child = Pid::from_raw(child).unwrap();
    assert!(is_alive(child));
    job.kill(0, Signal::KILL);
    job.wait_for("the child to end", || (!is_alive(child)).then_some(()));
    assert_eq!(job.finish().code, Some(0));
}

#[test]
fn a_stopped_member_is_replaced() {
    let job = Job::start(&["-np", "2", "--min-np", "1", "--heartbeat-timeout", "0.6"], &waiting());
    job.wait_for_output(2, "here ");
    job.kill(1, Signal::STOP);
    job.wait_for_output(1, "here 2");
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(ended.has_said("member 1 on localhost (pid ") && ended.has_said("was stopped by signal 19 (SIGSTOP)"));
}

#[test]
fn a_member_that_always_fails_is_tried_less_and_less_often_until_the_limit() {
    let script = format!("[ $FARANDOLE_ELASTIC_MEMBER = 0 ] || {{ echo no luck >&2; exit 7; }}; {}", waiting());
    // 1 and 2 seconds are waited.
    let ended = at_least(Duration::from_secs(3), || {
        Job::start(&["-np", "2", "--min-np", "1", "--reset-limit", "3"], &script).end()
    });
    assert_eq!(ended.code, Some(7), "{}", ended.said());
    assert!(ended.has_said("localhost failed again, and it is left alone for 1 s"), "{}", ended.said());
    assert!(ended.has_said("localhost failed again, and it is left alone for 2 s"), "{}", ended.said());
    let last = ended.last_line();
    assert!(last.contains("the job was reset 4 times, more often than --reset-limit 3"), "{last}");
    assert!(last.ends_with(": no luck"), "{last}");
}

#[test]
fn a_program_that_fails_everywhere_ends_the_job_with_its_code() {
    let mut job = Job::start(&["-np", "2", "--min-np", "1"], "echo broken >&2; exit 3");
    let ended = job.end();
    assert_eq!(ended.code, Some(3), "{}", ended.said());
    assert!(ended.last_line().contains("no member is left that has the job's state"), "{}", ended.said());
    assert!(ended.last_line().ends_with(": broken"), "{}", ended.said());
}

#[test]
fn below_the_least_number_the_job_waits_and_ends_at_the_timeout() {
    let flags = ["-np", "2", "--min-np", "2", "--elastic-timeout", "0.7", "--blacklist-cooldown-range", "50", "60"];
    let mut job = Job::start(&flags, &waiting());
    job.wait_for_output(2, "here ");
    job.kill(0, Signal::KILL);
    let ended = job.end();
    assert_eq!(ended.code, Some(137), "{}", ended.said());
    assert!(ended.has_said("the job has 1 member, fewer than --min-np 2; waiting 0.7 s"), "{}", ended.said());
    assert!(ended.last_line().contains("the job had 1 member for 0.7 s (--elastic-timeout)"), "{}", ended.said());
}

#[test]
fn the_whole_job_is_started_again_so_many_times() {
    let script = "echo try ${FARANDOLE_RESTART:-0}; [ \"$FARANDOLE_RESTART\" = 2 ] || exit 5";
    let mut job = Job::start(&["-np", "2", "--restarts", "3"], script);
    let ended = job.end();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(["try 0", "try 1", "try 2"].iter().all(|text| ended.stdout.iter().any(|line| line.contains(text))));
    assert!(ended.has_said("the job is started again: restart 2 of 3"), "{}", ended.said());
    let mut job = Job::start(&["-np", "1", "--restarts", "1"], "echo tried; exit 5");
    let ended = job.end();
    assert_eq!((ended.code, ended.stdout.len()), (Some(5), 2), "{}", ended.said());
}

#[test]
fn members_of_an_elastic_job_outlive_a_launcher_that_is_killed() {
    let job = Job::start(&["-np", "2", "--min-np", "1"], &format!("{}; touch $PLACE/done.$FARANDOLE_RANK", waiting()));
    job.wait_for_output(2, "here ");
    let pids = [job.pid(0), job.pid(1)];
    kill_process(Pid::from_child(&job.child), Signal::KILL).unwrap();
    lapse("the members, which might end with the launcher", Duration::from_millis(1500));
    assert!(pids.iter().all(|pid| is_alive(*pid)), "they were ended with the launcher");
    let agent = parent(pids[0]);
    job.touch("end");
    job.wait_for("both to end in their own way", || {
        (job.place.join("done.0").exists() && job.place.join("done.1").exists()).then_some(())
    });
    job.wait_for("the agent to end with them", || (!is_alive(agent)).then_some(()));
}

fn parent(pid: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let rest = &stat[stat.rfind(')').unwrap() + 1..];
    Pid::from_raw(rest.split_whitespace().nth(1).unwrap().parse().unwrap()).unwrap()
}

#[test]
fn a_signal_ends_an_elastic_job() {
    let mut job = Job::start(&["-np", "2", "--min-np", "1"], &waiting());
    job.wait_for_output(2, "here ");
    kill_process(Pid::from_child(&job.child), Signal::INT).unwrap();
    let ended = job.end();
    assert_eq!(ended.code, Some(130), "{}", ended.said());
    assert!(ended.last_line().contains("SIGINT"), "{}", ended.said());
}

#[test]
fn processes_meet_hear_of_ends_and_newcomers_are_told_whom_to_call() {
    let place = Folder::new();
    let program = format!("echo $$ > $PLACE/pid.$FARANDOLE_ELASTIC_MEMBER; exec {} $PLACE/end", member());
    let job = Job::start_in(place, &["-np", "3", "--min-np", "2"], &["sh", "-c", &program]);
    job.wait_for_output(3, "founds 0 1 2");
    job.kill(1, Signal::KILL);
    job.wait_for_output(1, "0 has lost 1: member 1 on ");
    job.wait_for_output(1, "2 has lost 1: member 1 on ");
    job.wait_for_output(1, "3 joins 0 1 2");
    job.wait_until_said("generation 103 has the members 3");
    job.kill(0, Signal::KILL);
    job.wait_for_output(1, "4 joins 3");
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
}

#[test]
fn a_spare_waits_until_it_is_needed() {
    let place = Folder::new();
    let program = format!("echo $$ > $PLACE/pid.$FARANDOLE_ELASTIC_MEMBER; exec {} $PLACE/end", member());
    let job = Job::start_in(place, &["-np", "2", "--spares", "1"], &["sh", "-c", &program]);
    job.wait_for_output(1, " joins ");
    assert_eq!(job.stdout.count(" founds "), 2);
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert_eq!(ended.stdout.iter().filter(|line| line.contains("]<stdout>:")).count(), 3);
}

#[test]
fn hosts_come_and_go_as_a_script_says() {
    let place = with_ssh();
    std::fs::write(place.join("hosts"), "localhost:1\n").unwrap();
    let script = format!("cat {}", place.join("hosts").display());
    let flags = ["-np", "1", "--min-np", "1", "--max-np", "3", "--grace", "1", "--host-discovery-script", &script];
    let job = Job::start_in(place, &flags, &["sh", "-c", &waiting()]);
    job.wait_for_output(1, "here 0");
    std::fs::write(job.place.join("hosts"), "localhost:1\nother:2\n").unwrap();
    job.wait_for_output(3, "here ");
    // The script fails: nothing changes but that it is said.
    std::fs::write(job.place.join("hosts"), "").unwrap();
    job.wait_until_said("it names no host");
    assert!((0..3).all(|member| is_alive(job.pid(member))));
    std::fs::write(job.place.join("hosts"), "other:2\n").unwrap();
    job.wait_until_said("member 0 on localhost");
    job.wait_for("member 0 to end", || (!is_alive(job.pid(0))).then_some(()));
    assert!((1..3).all(|member| is_alive(job.pid(member))));
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
}

#[test]
fn a_watched_file_names_hosts_and_a_host_that_fails_is_tried_again() {
    let place = with_ssh();
    let file = place.join("hosts");
    std::fs::write(&file, "localhost slots=1\nother slots=1\n").unwrap();
    std::fs::write(place.join("down.other"), "").unwrap();
    let file = file.display().to_string();
    let flags = ["--min-np", "1", "--start-timeout", "3", "--hostfile", &file];
    let job = Job::start_in(place, &flags, &["sh", "-c", &waiting()]);
    job.wait_until_said("other cannot be used: connect to host other: no route");
    job.wait_for_output(1, "here 0");
    std::fs::remove_file(job.place.join("down.other")).unwrap();
    job.wait_for_output(1, "here 1");
    // Its agent is killed, and its member with it; both come again.
    kill_process(parent(job.pid(1)), Signal::KILL).unwrap();
    job.wait_for_output(1, "here 2");
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(ended.has_said("was lost with the agent of its host"), "{}", ended.said());
}

#[test]
fn ranks_of_a_requeued_batch_job_know_how_often_it_was_started_before() {
    let program = "echo restart $FARANDOLE_RESTART; exit 3";
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.args(["run", "-np", "1", "--no-prefix", "--restarts", "1", "sh", "-c", program]);
    let output = finish(command.env("SLURM_RESTART_COUNT", "2"), Duration::from_secs(60));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for words in ["restart 2\n", "restart 3\n", "has requeued this job, 2 time(s)", "restart 1 of 1"] {
        assert!(said.contains(words), "{words:?}: {said}");
    }
}

#[test]
fn nodes_of_a_slurm_allocation_are_used_while_they_are_up() {
    let place = with_ssh();
    let scontrol = r#"#!/bin/sh
case "$*" in
  "show hostnames localhost,gpu1") echo localhost; echo gpu1;;
  "--oneliner show node localhost,gpu1") echo NodeName=localhost State=ALLOCATED
     echo NodeName=gpu1 Arch=x State=$(cat $PLACE/state) X=1;;
  *) echo "what is $*?" >&2; exit 1;;
esac
"#;
    std::fs::write(place.join("state"), "DOWN*").unwrap();
    std::fs::write(place.join("scontrol"), scontrol).unwrap();
    std::fs::set_permissions(place.join("scontrol"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = waiting();
    let words = ["env", "SLURM_JOB_NODELIST=localhost,gpu1", "SLURM_TASKS_PER_NODE=1(x2)"];
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_farandole")).args(["run", "--min-np", "1", "sh", "-c", &program]);
    let path = std::env::var("PATH").unwrap();
    command.env("PLACE", place.display().to_string()).env("PATH", format!("{}:{path}", place.display()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = Lines::collect(child.stdout.take().unwrap());
    let stderr = Lines::collect(child.stderr.take().unwrap());
    let job = Job { child, place: Arc::new(place), stdout, stderr };
    job.wait_for_output(1, "here 0");
    std::fs::write(job.place.join("state"), "ALLOCATED").unwrap();
    job.wait_for_output(1, "here 1");
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.said());
}
