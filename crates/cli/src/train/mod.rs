//! `farandole train`: the built-in trainer, started as a job like any other.
//!
//! The ranks are this very program (`rank`), started by the launcher of `farandole run` with the flags of
//! `farandole run`. What is to be trained (`args`) goes to each of them as JSON. On this side are left: what is wrong
//! is said before anything starts, one bar for the job is drawn where there is a terminal (`bar`), and when all is over
//! the traces of the run are judged (`verdict`).

mod args;
mod bar;
mod rank;
mod verdict;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Command};
use farandole_cluster::launch::{JobSpec, Prefix};
use farandole_trace::TemporaryFolder;
use farandole_train::progress::MAILBOX;

pub(crate) use args::TrainArgs;
pub(crate) use rank::serve;

use crate::doctor::usable_cores;
use crate::run as launcher;
use bar::Bar;

/// How long ranks that are told to end may take unless something else is said: a step of a large network on a slow
/// machine, and a checkpoint.
const GRACE: Duration = Duration::from_secs(60);

/// The name of the hidden command of a rank.
const RANK: &str = "train-rank";

/// The words after `train` as clap is to read them.
pub(crate) fn prepare(words: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>> {
    launcher::prepare_for(words, &TrainArgs::augment_args(Command::new("train")))
}

/// Trains, and says how it went. Returns the exit code of the job.
pub(crate) fn run(args: &TrainArgs) -> Result<ExitCode> {
    let job = args.job(&std::env::current_dir().context("the current directory has gone")?)?;
    job.check().map_err(|error| anyhow!("{error}"))?;
    let mut launch = args.launch.clone();
    if !launch.says_how_many() {
        launch.ranks = Some(usable_cores());
    }
    let program = std::env::current_exe().context("finding this program's file")?;
    let words = serde_json::to_string(&job).context("writing the job down")?;
    let mut spec = launcher::job_spec_for(&launch, vec![program.into(), RANK.into(), words.into()])?;
    let local = (0..spec.placement.hosts().len()).all(|host| spec.placement.is_local(host));
    if local {
        // Elsewhere a folder may be there that is not here; the ranks will know.
        farandole_train::check(&job).map_err(|error| anyhow!("{error}"))?;
    }
    if launch.dry_run {
        return Ok(ExitCode::from(launcher::run_job(&launch, spec)?));
    }
    // Rank 0 speaks for all; what another rank says names it.
    spec.output.prefix = Prefix::None;
    if !launch.grace_is_given() {
        spec.grace = GRACE;
    }
    let folder = TemporaryFolder::new("farandole-train").context("making a folder for this run")?;
    let traces = traces(&mut spec, launch.trace(), folder.path(), local);
    // Rank 0 is on the first host, and a mailbox is for those who are on the same.
    let bar = spec.placement.is_local(0).then(|| Bar::open(&folder.path().join("news"))).flatten();
    if let Some(bar) = &bar {
        spec.set.push((MAILBOX.to_owned(), bar.mailbox().into()));
        spec.output.drawer = Some(bar.drawer());
    }
    let code = launcher::run_job(&launch, spec)?;
    drop(bar);
    if code == 0 {
        verdict::say(traces.as_deref(), launch.trace());
    }
    Ok(ExitCode::from(code))
}

/// Where the traces of this run will be: where the user wants them, or in a folder that goes away. Traces of other
/// hosts cannot be had without the user's folder.
fn traces(spec: &mut JobSpec, wanted: Option<&Path>, folder: &Path, local: bool) -> Option<PathBuf> {
    let from_environment = farandole_settings::TRACE.in_environment().map(PathBuf::from);
    match (wanted, from_environment) {
        (Some(wanted), _) => Some(wanted.to_owned()),
        (None, Some(set)) => Some(set),
        (None, None) if local => {
            let traces = folder.join("traces");
            spec.set.push((farandole_settings::TRACE.name.to_owned(), traces.clone().into()));
            Some(traces)
        }
        (None, None) => None,
    }
}
