//! The farandole command: one binary, one module for each subcommand.

#![deny(unsafe_code)]

mod bench;
mod calibrate;
mod data;
mod doctor;
mod internal;
mod peer;
mod report;
mod run;
mod study;
mod timeline;
mod top;
#[cfg(feature = "train")]
mod train;
#[cfg(not(feature = "train"))]
mod untrained;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use farandole_transport::Key;

use bench::args::BenchArgs;
use bench::contestant::{Contestant, serve};
use bench::ours::RankArgs;
use calibrate::CalibrateArgs;
use data::DataArgs;
use doctor::DoctorArgs;
use peer::mpi::Mpi;
use peer::start::Pin;
use report::ReportArgs;
use report::profile::ProfileArgs;
use run::RunArgs;
use study::StudyArgs;
use timeline::TimelineArgs;
use top::TopArgs;
#[cfg(feature = "train")]
use train::TrainArgs;
#[cfg(not(feature = "train"))]
use untrained::TrainArgs;

/// Distributed training: collectives over many processes, launched, measured and explained.
#[derive(Parser)]
#[command(name = "farandole", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<RunArgs>),

    Bench(Box<BenchArgs>),

    Calibrate(CalibrateArgs),

    Data(DataArgs),

    /// Print a fresh key, for jobs that other launchers start on several hosts (docs/launchers.md).
    Key,

    Doctor(Box<DoctorArgs>),

    Report(ReportArgs),

    Profile(ProfileArgs),

    Timeline(TimelineArgs),

    Study(Box<StudyArgs>),

    Top(TopArgs),

    Train(Box<TrainArgs>),

    /// One rank of a training. Started by `train`.
    #[cfg(feature = "train")]
    #[command(hide = true)]
    TrainRank {
        /// The job, as JSON.
        job: String,
    },

    /// One rank of farandole that is being measured. Started by `bench`.
    #[command(hide = true)]
    BenchRank(RankArgs),

    /// One rank of another library that is being measured. Started by `bench`.
    #[command(subcommand, hide = true)]
    BenchPeer(PeerCommand),

    /// Opens a vendor library and says what it is. Started by `doctor`.
    #[command(hide = true)]
    DoctorProbe {
        /// Name or path of the library.
        library: String,
    },
}

#[derive(Subcommand)]
enum PeerCommand {
    /// A rank of an MPI job.
    Mpi {
        /// The MPI library to open.
        #[arg(long)]
        lib: String,
        /// Where the driver listens.
        #[arg(long)]
        socket: PathBuf,
        /// Bind to a core.
        #[arg(long)]
        pin: bool,
    },

    /// A rank of an MPI job that makes one allreduce and leaves. Started by `cargo xtask startup`.
    MpiOnce {
        /// The MPI library to open.
        #[arg(long)]
        lib: String,
    },
}

fn main() -> ExitCode {
    farandole_settings::log_to_stderr();
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = internal::serve(&words) {
        return code;
    }
    let outcome = prepared(words).and_then(|words| run(Cli::parse_from(words).command));
    outcome.unwrap_or_else(|error| {
        eprintln!("farandole: {}", shown(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes. Some errors have the words of their cause in their own; these are not said twice.
fn shown(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The words of the command line as clap is to read them. Launchers have always spelled the number of ranks `-np`,
/// which is no regular flag; `run` has more of these, and a command behind its own flags that nobody may touch.
fn prepared(words: Vec<OsString>) -> Result<Vec<OsString>> {
    let mut words = words.into_iter();
    let mut prepared: Vec<OsString> = words.by_ref().take(2).collect();
    let command = prepared.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    if command == "run" {
        prepared.extend(run::prepare(words)?);
        return Ok(prepared);
    }
    #[cfg(feature = "train")]
    if command == "train" {
        prepared.extend(train::prepare(words)?);
        return Ok(prepared);
    }
    if !["train", "train-rank"].contains(&command) {
        prepared.extend(words.map(|word| if word == "-np" { "--np".into() } else { word }));
    } else {
        prepared.extend(words);
    }
    Ok(prepared)
}

/// `farandole key`: prints a fresh key and keeps it nowhere. Whoever reads a key checks who else may read it
/// (`farandole_cluster::environment`).
#[allow(clippy::print_stdout, reason = "the key is what the user asked for")]
fn print_key() -> Result<()> {
    println!("{}", Key::random()?.to_hex());
    Ok(())
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(args) => return run::run(&args),
        #[cfg(feature = "train")]
        Command::Train(args) => return train::run(&args),
        #[cfg(feature = "train")]
        Command::TrainRank { job } => return train::serve(&job),
        #[cfg(not(feature = "train"))]
        Command::Train(args) => return untrained::run(&args),
        Command::Key => print_key()?,
        Command::Report(args) => return report::run(&args),
        Command::Profile(args) => report::profile::run(&args)?,
        Command::Doctor(args) => return doctor::run(&args),
        Command::DoctorProbe { library } => doctor::serve_probe(&library)?,
        Command::Bench(args) => return bench::run(&args),
        Command::Timeline(args) => timeline::run(&args)?,
        Command::Study(args) => return study::run(&args),
        Command::Top(args) => return top::run(&args),
        Command::Data(args) => return data::run(&args),
        Command::Calibrate(args) => return calibrate::run(&args),
        Command::BenchRank(args) => bench::ours::serve_rank(&args)?,
        Command::BenchPeer(PeerCommand::MpiOnce { lib }) => peer::once::reduce_once(&lib)?,
        Command::BenchPeer(PeerCommand::Mpi { lib, socket, pin }) => {
            let mut mpi = Mpi::init(&lib)?;
            let pin = if pin { Pin::Cores } else { Pin::Free };
            pin.bind_this_thread(mpi.rank())?;
            serve(&mut mpi, &socket)?;
            mpi.finalize()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
