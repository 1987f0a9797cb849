//! `farandole run`: from the words of a command line to ranks that run.
//!
//! Words go one way: `spelling` divides them from the user's command, `config` puts the flags of a file before them,
//! clap reads them into `args` (with `flags` and `horovod`), `job_spec` makes of them a complete job spec,
//! and `farandole_cluster::launch` carries it out. Everything that is wrong with what was asked is said before anything
//! is started.

mod args;
mod config;
mod elastic;
mod flags;
mod horovod;
mod job_spec;
mod show;
mod spelling;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use farandole_cluster::launch::{self, JobSpec};
use farandole_settings as settings;

pub(crate) use args::{LaunchArgs, RemoteArgs, RunArgs};
use elastic::ElasticArgs;
use flags::SettingFlags;
use horovod::Foreign;
use spelling::Words;

/// The words after `run` as clap is to read them: long flags with two dashes, and those of the configuration file in
/// front.
pub(crate) fn prepare(words: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>> {
    prepare_for(words, &flags())
}

/// The same for another command that has these flags and the launcher's among them.
pub(crate) fn prepare_for(words: impl IntoIterator<Item = OsString>, flags: &Command) -> Result<Vec<OsString>> {
    let words = Words::divide(words, flags);
    let from_file = match words.value_of("config-file") {
        Some(path) => config::read(Path::new(&path), &flags_of_files())?,
        None => Vec::new(),
    };
    Ok(words.join(from_file))
}

/// Starts a job and returns its exit code. Whoever waits for results finds there why it could not be started.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let outcome = start(args);
    if let (Err(error), Some(results)) = (&outcome, &args.results) {
        // Where that cannot be written, standard error says it all the same.
        let _ = std::fs::write(results.join("failure"), format!("-\n{}\n", crate::shown(error)));
    }
    outcome
}

fn start(args: &RunArgs) -> Result<ExitCode> {
    if args.check_build {
        crate::doctor::check_build()?;
        return Ok(ExitCode::SUCCESS);
    }
    answer(&args.launch)?;
    let spec = job_spec::job_spec(args, |variable| std::env::var_os(variable), &here()?)?;
    Ok(ExitCode::from(run_job(&args.launch, spec)?))
}

/// Makes the job spec that starts this command as the flags say.
#[cfg(feature = "train")]
pub(crate) fn job_spec_for(args: &LaunchArgs, command: Vec<OsString>) -> Result<JobSpec> {
    answer(args)?;
    let lookup = |variable: &str| std::env::var_os(variable);
    let places = job_spec::asked_places(args, &lookup, &here()?)?.context("how many ranks? Give -np 4")?;
    job_spec::job_spec_for(args, places, command, lookup, &here()?)
}

/// Runs the job, or shows its spec where the flags ask for that. Returns the exit code of the job.
pub(crate) fn run_job(args: &LaunchArgs, spec: JobSpec) -> Result<u8> {
    warn_of_settings(&spec);
    if args.dry_run {
        let text = show::show(&spec, std::env::vars_os());
        std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")?;
        return Ok(0);
    }
    Ok(launch::run(spec)?)
}

/// Says which variables of the ranks have no effect, and why; ranks that this launcher starts say nothing about them.
fn warn_of_settings(spec: &JobSpec) {
    let mut variables = settings::of_this_process();
    let set = spec.set.iter().map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned()));
    variables.extend(set);
    for line in settings::notices(variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
        eprintln!("farandole: note: {line}");
    }
}

/// Says what there is to say to flags that do nothing here; an error if one of them is refused.
fn answer(args: &LaunchArgs) -> Result<()> {
    for note in args.foreign.answers()? {
        eprintln!("farandole: note: {note}");
    }
    Ok(())
}

fn here() -> Result<PathBuf> {
    std::env::current_dir().context("the current directory has gone")
}

/// All flags of `farandole run`.
fn flags() -> Command {
    RunArgs::augment_args(Command::new("run"))
}

/// The flags that a configuration file may hold.
fn flags_of_files() -> Command {
    let command = SettingFlags::augment_args(Command::new("settings"));
    Foreign::augment_args(ElasticArgs::augment_args(command))
}
