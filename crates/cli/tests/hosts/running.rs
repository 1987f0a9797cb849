//! A command that runs on a host: what it says, as it says it, and how it ends.
//!
//! Its output is collected by threads of its own, so that it never waits for us. Dropping it kills it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_testing::{Deadline, lapse};
use rustix::process::{Pid, Signal};

use crate::lab::{until, until_within};

/// Longer than anything here takes that is not stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command on its way.
pub(crate) struct Running {
    /// The process that has entered the host; the command itself is its only child.
    outside: Child,
    line: String,
    stdout: Lines,
    stderr: Lines,
}

/// How a command has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
}

impl Running {
    /// Starts a command made by [`crate::host::Host::command`].
    pub(crate) fn start(command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut outside = command.spawn().expect("nsenter (util-linux) enters hosts");
        let stdout = Lines::collect(outside.stdout.take().unwrap());
        let stderr = Lines::collect(outside.stderr.take().unwrap());
        Running { outside, line: format!("{command:?}"), stdout, stderr }
    }

    /// The process of the command, as the test sees it.
    pub(crate) fn pid(&self) -> Pid {
        let mut found = None;
        until("the command has started", || {
            found = self.inside();
            found.is_some()
        });
        found.unwrap()
    }

    /// The only child of the process that has entered the host; none before it is there, and none after its end.
    fn inside(&self) -> Option<Pid> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.outside.id())).ok()?;
        children.trim().parse().ok().and_then(Pid::from_raw)
    }

    /// Kills the process of the command as soon as there is one; whether or not it has ended by itself before.
    pub(crate) fn kill_if_running(&mut self) {
        while self.outside.try_wait().unwrap().is_none() {
            if let Some(pid) = self.inside() {
                // It may be gone by now; it cannot be somebody else, since its parent has not been waited for.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                return;
            }
            lapse("the command", Duration::from_millis(1));
        }
    }

    /// Sends a signal to the process of the command, and to no other.
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Lets the process that has entered the host go on: nsenter stops itself when the command is stopped.
    pub(crate) fn go_on(&self) {
        rustix::process::kill_process(Pid::from_child(&self.outside), Signal::CONT).unwrap();
    }

    /// What it has said on standard output by now.
    pub(crate) fn output_so_far(&self) -> Vec<String> {
        self.stdout.so_far()
    }

    /// Waits until this many lines of standard output have this text in them.
    pub(crate) fn wait_for_output(&mut self, count: usize, text: &str) {
        self.wait_for(|running| &running.stdout, count, text);
    }

    /// The same of standard error.
    #[cfg(feature = "train")]
    pub(crate) fn wait_for_errors(&mut self, count: usize, text: &str) {
        self.wait_for(|running| &running.stderr, count, text);
    }

    fn wait_for(&mut self, stream: fn(&Running) -> &Lines, count: usize, text: &str) {
        self.wait_until(&format!("`{text}` was not said {count} times"), |running| {
            stream(running).so_far().iter().filter(|line| line.contains(text)).count() >= count
        });
    }

    /// Waits until something holds while the command runs. Fails with `otherwise` and all output.
    pub(crate) fn wait_until(&mut self, otherwise: &str, mut holds: impl FnMut(&Running) -> bool) {
        let deadline = Deadline::after(PATIENCE);
        while !holds(self) {
            if deadline.is_over() || self.outside.try_wait().unwrap().is_some() {
                let (out, err) = (self.stdout.so_far(), self.stderr.so_far());
                panic!("{}: {otherwise}\n{out:#?}\n{err:#?}", self.line);
            }
            deadline.rest();
        }
    }

    /// Waits for the end.
    pub(crate) fn wait(self) -> Ended {
        self.wait_within(PATIENCE)
    }

    /// Waits for the end, which must come within this time.
    pub(crate) fn wait_within(mut self, patience: Duration) -> Ended {
        let mut status = None;
        let deadline = Deadline::after(patience);
        while status.is_none() {
            status = self.outside.try_wait().unwrap();
            if deadline.is_over() {
                let (out, err) = (self.stdout.so_far(), self.stderr.so_far());
                panic!("{} has not ended within {patience:?}\n{out:#?}\n{err:#?}", self.line);
            }
            deadline.rest();
        }
        // Whoever holds its output open after its end is a process that it has left behind.
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        until_within(Duration::from_secs(5), &format!("{} has left nobody behind", self.line), || {
            stdout.is_finished() && stderr.is_finished()
        });
        Ended { status: status.unwrap(), stdout: self.stdout.so_far(), stderr: self.stderr.so_far() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.outside.kill();
        let _ = self.outside.wait();
    }
}

impl Ended {
    /// The exit code, or 128 and the number of the signal, as a shell says it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap())
    }

    /// The last line of standard error.
    pub(crate) fn last_line(&self) -> &str {
        self.stderr.last().map_or("", String::as_str)
    }

    /// All that it said, for messages.
    pub(crate) fn said(&self) -> String {
        format!("{}\n--- stdout\n{}\n--- stderr\n{}\n", self.status, self.stdout.join("\n"), self.stderr.join("\n"))
    }
}

/// The lines of a stream, collected by a thread.
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
}

impl Lines {
    fn collect(stream: impl Read + Send + 'static) -> Lines {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let thread = std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while let Ok(1..) = stream.read_until(b'\n', &mut line) {
                sink.lock().unwrap().push(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        });
        Lines { lines, thread }
    }

    fn so_far(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}
