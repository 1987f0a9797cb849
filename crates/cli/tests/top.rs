//! Real jobs that are watched while they run: by `farandole top`, printed and at a terminal, and through HTTP.
//!
//! The ranks are `crates/cli/examples/rehearsal.rs`. Every job here is one that only its test ends, or the test's own
//! end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::{Deadline, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that goes with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The launcher ends its ranks in order; SIGKILL would have the kernel do it.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let deadline = Deadline::after(Duration::from_secs(20));
        while self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            if deadline.is_over() {
                let _ = self.0.kill();
            }
            deadline.rest();
        }
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("FARANDOLE_METRICS");
    command
}

/// The program of the ranks. It is an example of this package, which cargo builds beside the tests.
fn rehearsal() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples").join("rehearsal");
    assert!(path.exists(), "{} is missing: cargo build --package farandole-cli --examples", path.display());
    path
}

/// A job that takes longer than any test, and what it says about its metrics.
fn job(words: &[&str]) -> (Running, String) {
    let mut command = command();
    command.args(["run", "-np", "2", "--metrics", "0"]).arg(rehearsal()).args(["iterations=1000000", "work-ms=5"]);
    let mut running = Running(command.args(words).spawn().unwrap());
    let mut stderr = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    let url = line.trim().strip_prefix("farandole: metrics are at http://").unwrap_or_else(|| panic!("{line}"));
    let address = url.strip_suffix("/metrics").unwrap().to_owned();
    // What it says in the end is for nobody, but must find somebody who takes it.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (running, address)
}

fn top(words: &[&str]) -> Output {
    let mut child = Running(command().arg("top").args(words).spawn().unwrap());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status: child.0.wait().unwrap(), stdout, stderr }
}

/// What `top --json` says of the job of this process.
fn seen(pid: u32) -> Option<Value> {
    let output = top(&["--json", &pid.to_string()]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.success(), value["jobs"].get(0).is_some(), "{output:?}");
    value["jobs"].get(0).cloned()
}

/// Looks at a job until something holds.
fn until(pid: u32, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Deadline::after(PATIENCE);
    let mut last = None;
    loop {
        deadline.check(format!("never {what}: {last:?}"));
        last = seen(pid);
        if let Some(job) = last.take_if(|job| holds(job)) {
            return job;
        }
        deadline.rest();
    }
}

fn all(job: &Value, holds: impl Fn(&Value) -> bool) -> bool {
    job["ranks"].as_array().is_some_and(|ranks| ranks.iter().all(holds))
}

fn ask(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The value of a series with these labels.
fn figure(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {page}"));
    line.trim().parse().unwrap()
}

#[test]
fn two_ranks_are_seen_at_work() {
    let (job, address) = job(&["late-rank=1", "late-ms=15", "input-ms=3", "bytes=4096"]);
    let pid = job.0.id();
    let paced = |rank: &Value| rank["iterations_per_second"].as_f64().is_some_and(|pace| pace > 0.0);
    let first = until(pid, "paced", |job| all(job, paced));
    assert_eq!((&first["job"]["size"], &first["job"]["launcher"]), (&2.into(), &"farandole run".into()));
    for rank in first["ranks"].as_array().unwrap() {
        assert_eq!(rank["state"], "running");
        assert!(rank["bytes_per_second"].as_f64().unwrap() > 0.0 && rank["rss_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(rank["input_share"].as_f64().unwrap() > 0.0, "{rank}");
        assert!(Path::new(&format!("/proc/{}", rank["pid"])).exists());
    }
    // Rank 0 waits for the late one, and not the other way round.
    let share = |rank: usize| first["ranks"][rank]["waiting_share"].as_f64().unwrap();
    assert!(share(0) > share(1), "{first}");
    let began = first["ranks"][0]["totals"]["iterations"].as_u64().unwrap();
    until(pid, "further", |job| all(job, |rank| rank["totals"]["iterations"].as_u64() > Some(began + 10)));

    let page = ask(&address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert_eq!(figure(&page, "farandole_ranks "), 2.0);
    assert!(figure(&page, "farandole_iterations_total{rank=\"1\",host=\"localhost\"} ") > began as f64);
    assert!(figure(&page, "farandole_waiting_seconds_total{rank=\"0\",host=\"localhost\"} ") > 0.0);

    let output = top(&[&pid.to_string(), "--sort", "waiting"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(&format!("job {pid} of farandole run on ")), "{text}");
    assert!(lines[5].trim_start().starts_with("1 localhost"), "who waits least comes first: {text}");
}

#[test]
fn garbage_at_the_endpoint_harms_nobody() {
    let (job, address) = job(&[]);
    until(job.0.id(), "running", |job| all(job, |rank| rank["state"] == "running"));
    assert!(ask(&address, b"\x16\x03\x01\x00\xff\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(&address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask(&address, b"GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let endless = ask(&address, &[b'x'; 1 << 20]);
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 431 "), "{endless}");
    let _silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    until(job.0.id(), "running", |job| all(job, |rank| rank["state"] == "running"));
    wait_until("the end of silent visitors", PATIENCE, || {
        ask(&address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ")
    });
}

#[test]
fn a_rank_that_is_stopped_and_goes_on_is_seen_so() {
    let (job, _) = job(&[]);
    let pid = job.0.id();
    let running = until(pid, "running", |job| all(job, |rank| rank["state"] == "running"));
    let rank = Pid::from_raw(running["ranks"][1]["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(rank, Signal::STOP).unwrap();
    until(pid, "stopped", |job| job["ranks"][1]["state"] == "stopped");
    kill_process(rank, Signal::CONT).unwrap();
    until(pid, "running again", |job| job["ranks"][1]["state"] == "running");
    // By the process of a rank, the same job is found.
    assert_eq!(seen(rank.as_raw_nonzero().get() as u32).unwrap()["job"]["pid"], pid);
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_is_started() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let run = |from: &str, what: &str| {
        let mut command = command();
        command.arg("run");
        if from == "flag" {
            command.args(["--metrics", what]);
        } else {
            command.env("FARANDOLE_METRICS", what);
        }
        let output = command.args(["-np", "2", "echo", "started"]).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for from in ["flag", "variable"] {
        let words = run(from, &address.port().to_string());
        assert!(words.contains(&address.to_string()) && words.contains("choose another port"), "{words}");
        let words = run(from, ":9400");
        assert!(words.contains("0.0.0.0:9400"), "{words}");
    }
}

#[test]
fn where_there_is_no_job_the_words_say_so() {
    let output = top(&["1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("process 1 is neither the launcher nor a rank"));
    assert_eq!(seen(1), None);
}

/// Ranks that something else has started: rank 0 is asked.
#[test]
fn a_job_without_our_launcher_is_seen_through_rank_zero() {
    let place = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let start = |rank: u32| {
        let mut command = Command::new(rehearsal());
        command.args(["iterations=1000000", "work-ms=5"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("FARANDOLE_RANK", rank.to_string()).env("FARANDOLE_SIZE", "2");
        command.env("FARANDOLE_RENDEZVOUS", format!("tcp:{place}")).env("FARANDOLE_KEY", "7".repeat(64));
        Running(command.env("FARANDOLE_METRICS", metrics.port().to_string()).spawn().unwrap())
    };
    let (zero, one) = (start(0), start(1));
    let job = until(zero.0.id(), "paced", |job| all(job, |rank| rank["iterations_per_second"].as_f64() > Some(0.0)));
    assert_eq!(job["ranks"][1]["pid"], one.0.id());
    let page = ask(&metrics.to_string(), b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(page.contains("farandole_rank_up{rank=\"1\""), "{page}");
}

/// A terminal, and a command that has it.
struct AtTerminal {
    running: Running,
    ours: File,
    theirs: OwnedFd,
    seen: Vec<u8>,
}

impl AtTerminal {
    fn top(pid: u32) -> AtTerminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.args(["top", &pid.to_string()]).env("TERM", "xterm").env("NO_COLOR", "1");
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(Stdio::null());
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let running = Running(command.spawn().unwrap());
        AtTerminal { running, ours: File::from(ours), theirs: theirs.into(), seen: Vec::new() }
    }

    fn until(&mut self, what: &str, holds: impl Fn(&mut AtTerminal) -> bool) {
        let deadline = Deadline::after(PATIENCE);
        while !holds(self) {
            deadline.check(format!("never {what}: {:?}", String::from_utf8_lossy(&self.seen)));
            let mut bytes = [0; 4096];
            match self.ours.read(&mut bytes) {
                Ok(count) if count > 0 => self.seen.extend(&bytes[..count]),
                _ => deadline.rest(),
            }
        }
    }

    fn sent(&self, bytes: &str) -> bool {
        self.seen.windows(bytes.len()).any(|part| part == bytes.as_bytes())
    }

    /// Whether these words were painted one after the other. Between words the cursor may be moved instead of writing a
    /// space.
    fn shows(&self, text: &str) -> bool {
        let mut plain = String::new();
        for (index, part) in String::from_utf8_lossy(&self.seen).split('\x1b').enumerate() {
            let start = if index == 0 { 0 } else { part.find(char::is_alphabetic).map_or(part.len(), |end| end + 1) };
            plain.push(' ');
            plain.push_str(&part[start..]);
        }
        plain.split_whitespace().collect::<Vec<_>>().join(" ").contains(text)
    }
}

#[test]
fn the_terminal_is_given_back_whatever_ends_the_watch() {
    let (job, _) = job(&[]);
    until(job.0.id(), "running", |job| all(job, |rank| rank["state"] == "running"));
    let ways: [fn(&mut AtTerminal); 5] = [
        |at| at.ours.write_all(b"q").unwrap(),
        |at| at.ours.write_all(b"\x03").unwrap(),
        |at| kill_process(Pid::from_child(&at.running.0), Signal::TERM).unwrap(),
        |at| kill_process(Pid::from_child(&at.running.0), Signal::HUP).unwrap(),
        |at| kill_process(Pid::from_child(&at.running.0), Signal::INT).unwrap(),
    ];
    for end in ways {
        let mut at = AtTerminal::top(job.0.id());
        let before = tcgetattr(&at.theirs).unwrap();
        at.until("shown", |at| at.shows("2 running") && at.shows("q quit"));
        assert_ne!(tcgetattr(&at.theirs).unwrap().local_modes, before.local_modes, "keys are read one by one");
        end(&mut at);
        at.until("ended", |at| at.running.0.try_wait().unwrap().is_some());
        at.until("given back", |at| at.sent("\x1b[?1049l"));
        assert!(at.running.0.wait().unwrap().success());
        assert_eq!(tcgetattr(&at.theirs).unwrap().local_modes, before.local_modes);
        assert!(!at.sent("\x1b[33m") && !at.sent("\x1b[38;5;"), "NO_COLOR");
    }
}

#[test]
fn a_job_that_ends_while_it_is_watched_leaves_its_last_picture() {
    let (job, _) = job(&[]);
    let pid = job.0.id();
    until(pid, "running", |job| all(job, |rank| rank["state"] == "running"));
    let mut at = AtTerminal::top(pid);
    at.until("shown", |at| at.shows("2 running"));
    drop(job);
    at.until("told", |at| at.shows("the job has ended"));
    at.ours.write_all(b"q").unwrap();
    at.until("ended", |at| at.running.0.try_wait().unwrap().is_some());
}

#[test]
fn a_terminal_that_is_closed_ends_the_watch() {
    let (job, _) = job(&[]);
    until(job.0.id(), "running", |job| all(job, |rank| rank["state"] == "running"));
    let mut at = AtTerminal::top(job.0.id());
    at.until("shown", |at| at.shows("2 running") && at.shows("q quit"));
    // The command is not in the terminal's session, so the kernel sends no SIGHUP.
    let AtTerminal { mut running, ours, theirs, .. } = at;
    drop((ours, theirs));
    wait_until("its end without a terminal", PATIENCE, || running.0.try_wait().unwrap().is_some());
    assert!(running.0.wait().unwrap().success());
}
