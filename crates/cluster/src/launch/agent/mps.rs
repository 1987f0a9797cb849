//! The job's own daemon of NVIDIA's Multi-Process Service on this host: [`MpsDaemon`].
//!
//! Ranks that share a GPU take turns on it, unless they are clients of MPS: then their kernels run beside each other.
//! Clients find their daemon by a folder with its pipes, which a variable names. Ours has a private one, so that it
//! serves this job and no other.
//!
//! **Life.** The daemon is started before the first rank, as a child in the foreground (`-f`): a daemon in the
//! background (`-d`) would be nobody's child, and neither would its end be noticed nor could it end with the agent. It
//! is there when it answers its own front end, which is the same program without a word. When all other processes of
//! the job are gone, the front end is told to `quit`; a daemon that does not follow in [`QUIT_PATIENCE`] is killed. If
//! the agent is killed, the kernel kills the daemon (`exec_shim`).
//!
//! **Invariant:** the daemon gets no signal while ranks live, so that they can end in their own way. Its folder goes
//! away with it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farandole_trace::TemporaryFolder;
use farandole_transport::Countdown;
use rustix::process::{Pid, Signal};

use crate::error::{Error, Result};
use crate::launch::ask::LOOK_EVERY;
use crate::launch::exec_shim;
use crate::launch::message::StartRanks;
use crate::launch::mps_control::{LOGS, MpsControl, PIPES, PROGRAM};

/// How long a daemon may take to answer. It opens no device before its first client comes.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// How long the daemon may take to quit, without clients. The launcher waits for 3 s longer than ranks may take.
const QUIT_PATIENCE: Duration = Duration::from_secs(2);

/// Longest path of a folder in which sockets can be made: the kernel's limit of 108 bytes, less their names.
const MOST_FOLDER_BYTES: usize = 80;

/// Bytes of the folder's name, with the slash before it.
const MOST_NAME_BYTES: usize = 24;

/// See the module's text.
#[derive(Debug)]
pub(super) struct MpsDaemon {
    pub(super) pid: Pid,
    control: MpsControl,
    folder: MpsFolder,
    quitting: Option<Quitting>,
}

/// The daemon was told to quit.
#[derive(Clone, Copy, Debug)]
struct Quitting {
    front_end: Option<Pid>,
    kill_at: Instant,
}

impl MpsDaemon {
    /// Starts a daemon and waits until it answers. `meanwhile` is called again and again.
    pub(super) fn start(start: &StartRanks, shim: &Path, meanwhile: &mut dyn FnMut()) -> Result<MpsDaemon> {
        let refused = |why: String| Error::job_spec("--mps", why);
        let control = start.variable("PATH").and_then(|path| MpsControl::find(&path)).ok_or_else(|| {
            refused(format!("there is no {PROGRAM} on the PATH; it comes with NVIDIA's driver (nvidia-compute-utils)"))
        })?;
        let shown = control.program().display().to_string();
        let folder = MpsFolder::new().map_err(|error| Error::local("making a folder for the MPS daemon", error))?;
        let output = File::create(folder.output()).and_then(|output| Ok((output.try_clone()?, output)));
        let (out, err) = output.map_err(|error| Error::local("making a file for the MPS daemon's output", error))?;
        let mut command = Command::new(shim);
        command
            .arg("rank")
            .arg("--")
            .arg(control.program())
            .arg("-f")
            .envs(start.environment())
            .envs(folder.variables());
        command.env(exec_shim::AGENT, std::process::id().to_string());
        command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
        let mut child = command.spawn().map_err(|error| refused(format!("{shown} cannot be run: {error}")))?;
        let pid = Pid::from_child(&child);
        let daemon = MpsDaemon { pid, control, folder, quitting: None };
        let deadline = Countdown::new(START_PATIENCE);
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                let words = daemon.words().map_or(String::new(), |words| format!(": {words}"));
                return Err(refused(format!("{shown} does not start ({status}){words}")));
            }
            if daemon.control.answers(&daemon.folder.pipes(), meanwhile) {
                return Ok(daemon);
            }
            if deadline.is_over() {
                let _ = child.kill();
                let _ = child.wait();
                let words = daemon.words().map_or(String::new(), |words| format!("; its last words: {words}"));
                return Err(refused(format!("the MPS daemon does not answer within {START_PATIENCE:?}{words}")));
            }
            meanwhile();
            std::thread::sleep(10 * LOOK_EVERY);
        }
    }

    /// What its clients find in their environment.
    pub(super) fn variables(&self) -> [(&'static str, PathBuf); 2] {
        self.folder.variables()
    }

    /// Whether it was told to quit.
    pub(super) fn is_quitting(&self) -> bool {
        self.quitting.is_some()
    }

    /// Whether this process is the daemon, or the front end that tells it to quit.
    pub(super) fn has(&self, pid: Pid) -> bool {
        self.pid == pid || self.quitting.is_some_and(|quitting| quitting.front_end == Some(pid))
    }

    /// Tells it to quit, and kills it when it has had its time. Returns when to come back.
    pub(super) fn quit(&mut self, now: Instant) -> Instant {
        let Some(quitting) = self.quitting else {
            let kill_at = now + QUIT_PATIENCE;
            // Without a front end it is killed at once.
            let front_end = self.tell_to_quit().ok();
            let kill_at = if front_end.is_some() { kill_at } else { now };
            self.quitting = Some(Quitting { front_end, kill_at });
            return kill_at;
        };
        if now >= quitting.kill_at {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            return now + QUIT_PATIENCE;
        }
        quitting.kill_at
    }

    /// The last that it wrote: to its log, or to where its output goes.
    pub(super) fn words(&self) -> Option<String> {
        let last = |file: PathBuf| {
            let text = fs::read(file).ok()?;
            let text = String::from_utf8_lossy(&text);
            text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
        };
        last(self.folder.output()).or_else(|| last(self.folder.logs().join("control.log")))
    }

    /// Starts the front end with its order. The agent reaps it as it reaps orphans.
    fn tell_to_quit(&self) -> io::Result<Pid> {
        let mut command = Command::new(self.control.program());
        command.envs(self.folder.variables()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut front_end = command.process_group(0).spawn()?;
        if let Some(mut stdin) = front_end.stdin.take() {
            // A front end that has ended already has not told it; then its time runs out.
            let _ = stdin.write_all(b"quit\n");
        }
        Ok(Pid::from_child(&front_end))
    }
}

/// A private folder, with one for pipes and one for logs. It is removed when this is dropped.
#[derive(Debug)]
struct MpsFolder(TemporaryFolder);

impl MpsFolder {
    fn new() -> io::Result<MpsFolder> {
        let temporary = std::env::temp_dir();
        let too_long = temporary.as_os_str().len() + MOST_NAME_BYTES > MOST_FOLDER_BYTES;
        let place = if too_long { Path::new("/tmp") } else { temporary.as_path() };
        let folder = MpsFolder(TemporaryFolder::new_in(place, "farandole-mps")?);
        fs::create_dir(folder.pipes())?;
        fs::create_dir(folder.logs())?;
        Ok(folder)
    }

    fn pipes(&self) -> PathBuf {
        self.0.path().join("pipes")
    }

    fn logs(&self) -> PathBuf {
        self.0.path().join("logs")
    }

    fn output(&self) -> PathBuf {
        self.0.path().join("output")
    }

    fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [(PIPES, self.pipes()), (LOGS, self.logs())]
    }
}

/// Says what becomes of a daemon that the user has started.
pub(super) fn note_about(pipes: &Path) -> String {
    format!(
        "an MPS daemon that is not the job's answers at {}; --mps starts another beside it, which the ranks use. On a GPU \
         in exclusive mode only one of them works: without --mps the ranks use the one that is there",
        pipes.display()
    )
}
