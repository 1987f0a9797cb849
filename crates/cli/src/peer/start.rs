//! The command that starts each contestant, as its users would start it.
//!
//! Nobody is handicapped and nobody is tuned: the settings here are those that a job needs to start at all on a small
//! machine (more ranks than cores, a container's root user). Nobody is bound to cores unless `--pin` asks for it, and
//! then every contestant is bound alike, by itself: rank r to core r modulo the number of cores.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::agent;
use crate::bench::placement::BenchPlacement;

/// The variable that names the Python interpreter which has PyTorch.
const PYTHON_VARIABLE: &str = farandole_settings::PEERS_PYTHON.name;

const GLOO_PROGRAM: &str = include_str!("gloo.py");

/// A program that can be measured beside farandole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Gloo, through PyTorch's torch.distributed.
    Gloo,
    /// Open MPI, under mpirun.openmpi.
    Openmpi,
    /// MPICH, under mpirun.mpich.
    Mpich,
}

impl Peer {
    /// The word on the command line and in the table.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Peer::Gloo => "gloo",
            Peer::Openmpi => "openmpi",
            Peer::Mpich => "mpich",
        }
    }

    /// The commands whose processes are, or start, the ranks of this peer. `directory` is that of the run.
    pub(crate) fn commands(
        self,
        placement: &BenchPlacement,
        socket: &Path,
        directory: &Path,
        pin: Pin,
    ) -> Result<Vec<Command>> {
        match self {
            Peer::Gloo => gloo(placement, socket, directory, pin),
            Peer::Openmpi => {
                let launcher = find_launcher("mpirun.openmpi")?;
                let mut command = match placement.is_spread() {
                    true => agent::launch(&launcher, placement, directory)?,
                    false => Command::new(launcher),
                };
                quietly(&mut command, placement.ranks);
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                mpi_ranks(&mut command, "libmpi.so.40", socket, pin)?;
                Ok(vec![command])
            }
            Peer::Mpich => {
                ensure!(!placement.is_spread(), "MPICH is not measured between hosts: leave it out of --against");
                let mut command = Command::new(find_launcher("mpirun.mpich")?);
                quietly(&mut command, placement.ranks);
                mpi_ranks(&mut command, "libmpich.so.12", socket, pin)?;
                Ok(vec![command])
            }
        }
    }
}

/// Whether ranks are bound to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// The kernel decides.
    Free,
    /// Rank r runs on core r modulo the number of cores.
    Cores,
}

impl Pin {
    /// The core of a rank, if it has one.
    pub(crate) fn core(self, rank: usize) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Pin::Free => None,
            Pin::Cores => Some(rank % cores),
        }
    }

    /// Binds the calling thread, and with it those that it will start.
    pub(crate) fn bind_this_thread(self, rank: usize) -> Result<()> {
        let Some(core) = self.core(rank) else { return Ok(()) };
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("binding rank {rank} to core {core}"))
    }
}

fn find_launcher(program: &str) -> Result<PathBuf> {
    find_in_path(program).with_context(|| not_installed(program))
}

fn quietly(command: &mut Command, ranks: usize) {
    command.arg("-np").arg(ranks.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
}

fn mpi_ranks(command: &mut Command, library: &str, socket: &Path, pin: Pin) -> Result<()> {
    command.arg(this_program()?).args(["bench-peer", "mpi", "--lib", library, "--socket"]).arg(socket);
    if pin == Pin::Cores {
        command.arg("--pin");
    }
    Ok(())
}

fn gloo(placement: &BenchPlacement, socket: &Path, directory: &Path, pin: Pin) -> Result<Vec<Command>> {
    let python = find_python().with_context(|| not_installed("a Python with PyTorch"))?;
    let program = directory.join("gloo.py");
    std::fs::write(&program, GLOO_PROGRAM).with_context(|| format!("writing {}", program.display()))?;
    let rendezvous = directory.join("gloo-rendezvous");
    let command = |rank: usize| {
        let host = placement.host_of(rank);
        let mut command = placement.command(host, &python);
        command.arg(&program).arg(rank.to_string()).arg(placement.ranks.to_string()).arg(&rendezvous).arg(socket);
        command.args(pin.core(rank).map(|core| format!("core={core}")));
        command.args(placement.address_of(host).map(|address| format!("address={address}")));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    Ok((0..placement.ranks).map(command).collect())
}

/// This very program, which also carries the ranks of the MPI peers.
pub(crate) fn this_program() -> Result<PathBuf> {
    env::current_exe().context("finding the path of this program")
}

fn find_in_path(program: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    match found {
        Some(file) => Ok(file),
        None => bail!("there is no {program} in PATH"),
    }
}

/// The interpreter that the variable names; else that of the nearest `.venv`, from here or from this program upwards.
fn find_python() -> Result<PathBuf> {
    if let Some(named) = env::var_os(PYTHON_VARIABLE) {
        return existing(named).with_context(|| format!("following {PYTHON_VARIABLE}"));
    }
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    let folders = starts.iter().flatten().flat_map(|start| start.ancestors());
    for folder in folders {
        let python = folder.join(".venv/bin/python");
        if python.is_file() {
            return Ok(python);
        }
    }
    bail!("there is no .venv here or above, and {PYTHON_VARIABLE} is not set")
}

fn existing(path: OsString) -> Result<PathBuf> {
    let path = PathBuf::from(path);
    if path.is_file() { Ok(path) } else { bail!("there is no file {}", path.display()) }
}

fn not_installed(what: &str) -> String {
    format!("{what} is not installed: run `cargo xtask peers`, or leave it out of --against")
}
