//! The control program of NVIDIA's Multi-Process Service: [`MpsControl`].
//!
//! One program, `nvidia-cuda-mps-control`, is the daemon and its front end. It finds the daemon, as clients do, by the
//! folder of its pipes, which a variable names. Nothing here starts or ends a daemon.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::ask::ask;

/// The program.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";

/// The variables of MPS, for daemon, front end and clients alike.
pub(crate) const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
pub(crate) const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";

/// Where a daemon has its pipes if nobody says otherwise.
const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";

/// How long the front end may take for one question.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module's text.
#[derive(Clone, Debug)]
pub struct MpsControl {
    program: PathBuf,
}

impl MpsControl {
    /// The program on this path, as the variable `PATH` has it.
    pub fn find(path: &OsStr) -> Option<MpsControl> {
        let is_program = |file: &PathBuf| {
            fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        };
        let program = std::env::split_paths(path).map(|folder| folder.join(PROGRAM)).find(is_program)?;
        Some(MpsControl { program })
    }

    /// Its file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Whether a daemon with its pipes in this folder answers. `meanwhile` is called again and again while it is waited
    /// for.
    pub fn answers(&self, pipes: &Path, meanwhile: &mut dyn FnMut()) -> bool {
        let mut front_end = Command::new(&self.program);
        let asked = ask(front_end.env(PIPES, pipes), "get_server_list\n", PATIENCE, meanwhile);
        asked.is_ok_and(|answer| answer.status.success())
    }

    /// The pipes of the daemon that a process with this variable would be a client of, if it answers.
    pub fn running(&self, variable: impl Fn(&str) -> Option<OsString>, meanwhile: &mut dyn FnMut()) -> Option<PathBuf> {
        let pipes = variable(PIPES).filter(|pipes| !pipes.is_empty());
        let pipes = PathBuf::from(pipes.unwrap_or_else(|| DEFAULT_PIPES.into()));
        (pipes.is_dir() && self.answers(&pipes, meanwhile)).then_some(pipes)
    }
}
