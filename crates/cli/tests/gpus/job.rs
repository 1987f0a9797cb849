//! A job on a pretended host, and the notes that its processes leave.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farandole_testing::Folder;
use rustix::process::{Pid, Signal, kill_process};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A host with GPUs and with the stand-in on its path.
pub(crate) struct Host {
    pub(crate) folder: Folder,
    gpus: &'static str,
}

/// A job on its way. Killed when dropped, so that a failed test leaves nothing.
pub(crate) struct Job(Child);

/// How a job ended, and what it said.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: String,
}

impl Host {
    pub(crate) fn with_gpus(gpus: &'static str) -> Host {
        let folder = Folder::new();
        fs::create_dir(folder.join("bin")).unwrap();
        let program = folder.join("bin/nvidia-cuda-mps-control");
        fs::write(&program, include_str!("control.sh")).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Host { folder, gpus }
    }

    /// A command with the host's environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap());
        command.env("FARANDOLE_TEST_GPUS", self.gpus).env("PATH", path).env("TMPDIR", &*self.folder);
        command.env("NOTES", self.folder.join("notes"));
        for variable in ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "STAND_IN"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `farandole run` with these flags, a shell script as every rank's program, and variables of its environment.
    pub(crate) fn start(&self, flags: &[&str], variables: &[(&str, &str)], script: &str) -> Job {
        let mut command = self.command(env!("CARGO_BIN_EXE_farandole"));
        command.arg("run").args(flags).args(["/bin/sh", "-c", script]).envs(variables.iter().copied());
        Job(command.spawn().unwrap())
    }

    /// The same to its end.
    pub(crate) fn run(&self, flags: &[&str], variables: &[(&str, &str)], script: &str) -> Ended {
        self.start(flags, variables, script).end()
    }

    /// What processes have noted under this word, once it is there.
    pub(crate) fn noted(&self, word: &str) -> String {
        farandole_testing::wait_for(format!("a note about {word}"), DEADLINE, || self.note(word))
    }

    /// The same if it is there.
    pub(crate) fn note(&self, word: &str) -> Option<String> {
        let notes = fs::read_to_string(self.folder.join("notes")).unwrap_or_default();
        notes.lines().find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()))
    }

    /// The process that was noted under this word, once it is there.
    pub(crate) fn process(&self, word: &str) -> Pid {
        Pid::from_raw(self.noted(word).parse().unwrap()).unwrap()
    }

    /// Folders of MPS daemons that are there.
    pub(crate) fn mps_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&*self.folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("farandole-mps-")).collect()
    }

    /// Waits until daemon, server and their folder are gone.
    pub(crate) fn wait_until_mps_is_gone(&self) {
        let processes = [self.process("daemon"), self.process("server")];
        farandole_testing::wait_for("the end of the MPS daemon and its server", DEADLINE, || {
            (!processes.iter().any(|pid| is_alive(*pid)) && self.mps_folders().is_empty()).then_some(())
        });
    }
}

impl Job {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The agent, which is the launcher's only child.
    pub(crate) fn agent(&self) -> Pid {
        farandole_testing::wait_for("the agent", DEADLINE, || {
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0.id())).ok()?;
            Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
        })
    }

    /// Waits for the end; a job that takes too long is a failure.
    pub(crate) fn end(mut self) -> Ended {
        let output = farandole_testing::finish_child(&mut self.0, DEADLINE);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut stdout: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        stdout.sort_unstable();
        Ended { code: output.status.code(), stdout, stderr: text(&output.stderr) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    pub(crate) fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

/// A process that has ended but was not waited for yet counts as ended.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z')
}
