//! `farandole run`: from the words of a command line to ranks that run.
//!
//! Words go one way: `spelling` divides them from the user's command, `config` puts the flags of a file before them,
//! clap reads them into `args` (with `tuning` and `horovod`), `order` makes of them an order that leaves nothing open,
//! and `farandole_cluster::launch` carries it out. Everything that is wrong with what was asked is said before anything
//! is started.

mod args;
mod config;
mod horovod;
mod insight;
mod order;
mod show;
mod spelling;
mod tuning;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use farandole_cluster::launch::{self, Order};
use farandole_cluster::settings;

pub(crate) use args::{LaunchArgs, RunArgs};
use horovod::Foreign;
use insight::Insight;
use spelling::Words;
use tuning::Tuning;

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
        let _ = std::fs::write(results.join("failure"), format!("-\n{error:#}\n"));
    }
    outcome
}

fn start(args: &RunArgs) -> Result<ExitCode> {
    if args.check_build {
        crate::doctor::check_build()?;
        return Ok(ExitCode::SUCCESS);
    }
    answer(&args.launch)?;
    let order = order::order(args, |variable| std::env::var_os(variable), &here()?)?;
    Ok(ExitCode::from(carry_out(&args.launch, order)?))
}

/// Makes an order that starts this command in the way that the flags say.
#[cfg(feature = "train")]
pub(crate) fn order_for(args: &LaunchArgs, command: Vec<OsString>) -> Result<Order> {
    answer(args)?;
    order::order_for(args, command, |variable| std::env::var_os(variable), &here()?)
}

/// Carries an order out, or shows it where the flags ask for that. Returns the exit code of the job.
pub(crate) fn carry_out(args: &LaunchArgs, order: Order) -> Result<u8> {
    warn_of_settings(&order);
    if args.dry_run {
        let text = show::show(&order, std::env::vars_os());
        std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")?;
        return Ok(0);
    }
    Ok(launch::run(order)?)
}

/// Says which variables of the ranks have no effect, and why; ranks that this launcher starts say nothing about them.
fn warn_of_settings(order: &Order) {
    let mut variables = settings::of_this_process();
    let set = order.set.iter().map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned()));
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
    Foreign::augment_args(Insight::augment_args(Tuning::augment_args(Command::new("settings"))))
}
