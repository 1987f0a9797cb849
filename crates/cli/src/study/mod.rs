//! `farandole study`: how throughput depends on something, measured with real jobs, kept, and explained.
//!
//! `args` and `input_args` say what was asked, [`farandole_study::sweep`] makes points of it, `runner` runs one of them
//! as a job of its own and reads how fast it was, `ledger` keeps every run as it ends; `here` looks for GPUs and MPS.
//! The crate `farandole-study` interprets runs and renders them. Runs of different points take turns: what disturbs the
//! machine for a while disturbs all of them.
//!
//! *Not here:* training. A study starts `farandole train` or any command; it knows no tensor.

mod args;
mod here;
mod input_args;
mod ledger;
mod numbers;
mod progress;
mod runner;
mod stop;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use farandole_study::findings::{Findings, label};
use farandole_study::point::StudyPoint;
use farandole_study::run::{Run, RunOutcome};
use farandole_study::sweep::{self, Axes, StudyKind};
use farandole_study::{page, table};

pub(crate) use args::StudyArgs;
use ledger::Ledger;
use progress::Progress;
#[cfg(feature = "train")]
pub(crate) use progress::short;
use runner::Runner;
use stop::Stop;

/// Measures what has not been measured yet, and says what it means. Exit code 1 if a point has no figure.
pub(crate) fn run(args: &StudyArgs) -> Result<ExitCode> {
    let workload = args.workload();
    if let Some(command) = &workload.command {
        ensure!(!command.trim().is_empty(), "--command is empty");
    } else if args.kind == StudyKind::Planes {
        bail!("a study of planes runs a script that has its tensors on GPUs: give it with --command");
    } else if workload.input.as_ref().is_none_or(|input| input.in_training) {
        ensure!(
            cfg!(feature = "train"),
            "this farandole was built without the trainer: build it with `--features train`, or give --command"
        );
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut axes = args.axes(cores)?;
    let mut points = sweep::points(&axes)?;
    (0..points.len()).try_for_each(|position| sweep::baseline(&axes, &points, position).map(drop))?;
    let folder = args.folder();
    let ledger = Ledger::open(&folder, &workload, args.fresh)?;
    let stop = Stop::on_signals()?;
    if args.kind == StudyKind::Format {
        let Some(sources) = copy(args, &folder, &stop)? else {
            eprintln!("farandole: stopped; the same command goes on from there");
            return Ok(ExitCode::from(128 + stop.asked().unwrap_or(0)));
        };
        let input = axes.input.as_mut().expect("invariant: a study of formats is one of the input pipeline");
        input.sources.iter_mut().zip(sources).for_each(|((_, source), copy)| *source = copy);
        points = sweep::points(&axes)?;
    }
    let runner = Runner {
        executable: std::env::current_exe().context("finding this executable")?,
        workload: workload.clone(),
        timeout: args.timeout(),
        scratch: std::env::current_dir().context("the current directory has gone")?.join(&folder).join("running"),
        stop,
        here: (args.kind == StudyKind::Planes).then(here::look),
    };
    let runs = measure_all(&axes, &points, args.repeats, &ledger, &runner)?;
    if let Some(signal) = runner.stop.asked() {
        let (kept, all) = (runs.len(), points.len() * args.repeats);
        eprintln!("farandole: stopped; {kept} of {all} runs are kept, and the same command goes on from there");
        return Ok(ExitCode::from(128 + signal));
    }
    let findings = Findings::of(&axes, &points, &runs)?;
    keep(&folder, &findings, &workload.subject(&axes, args.repeats))?;
    let said = if args.json {
        serde_json::to_string_pretty(&findings).context("the findings as JSON")? + "\n"
    } else {
        format!("{}\nCharts: {}\n", table::text(&findings), folder.join("study.html").display())
    };
    std::io::stdout().write_all(said.as_bytes()).context("writing the findings")?;
    Ok(if findings.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the copies that a study of formats compares, or finds them; nothing if it is asked to stop.
fn copy(args: &StudyArgs, folder: &Path, stop: &Stop) -> Result<Option<Vec<String>>> {
    let wanted = args.input.copies(folder)?;
    if args.fresh && wanted.folder.exists() {
        let named = || format!("removing {}", wanted.folder.display());
        std::fs::remove_dir_all(&wanted.folder).with_context(named)?;
    }
    let copies = crate::data::copies(&wanted, &|| stop.asked().is_some())?;
    Ok(copies.map(|paths| paths.into_iter().map(|path| path.display().to_string()).collect()))
}

/// Every run that there is to be, in turns: those that were kept, and those that are made now. There are fewer if the
/// study is asked to stop.
fn measure_all(
    axes: &Axes,
    points: &[StudyPoint],
    repeats: usize,
    ledger: &Ledger,
    runner: &Runner,
) -> Result<Vec<Run>> {
    let (mut runs, mut refusals) = (Vec::new(), Vec::new());
    let mut left: Vec<(usize, &StudyPoint)> = Vec::new();
    for repeat in 0..repeats {
        for point in points {
            match (ledger.measured(point, repeat)?, runner.refuses(point)) {
                (Some(run), _) => runs.push(run),
                (None, None) => left.push((repeat, point)),
                // Not kept: the machine may be another one next time.
                (None, Some(why)) => {
                    refusals.push(Run {
                        point: point.clone(),
                        repeat,
                        seconds: 0.0,
                        outcome: RunOutcome::Refused(why),
                    });
                }
            }
        }
    }
    let taken = runs.iter().map(|run| (run.point.clone(), run.seconds)).collect();
    if !runs.is_empty() {
        eprintln!("farandole: {} of {} runs were measured before", runs.len(), runs.len() + left.len());
    }
    let mut progress = Progress::new(runs.len() + left.len(), runs.len(), taken);
    for (position, &(repeat, point)) in left.iter().enumerate() {
        let name = label(axes.kind, point);
        let ahead: Vec<&StudyPoint> = left[position..].iter().map(|(_, point)| *point).collect();
        progress.begin(&name, &ahead);
        let started = Instant::now();
        let outcome = match runner.measure(point, &ledger.log_file(point, repeat)) {
            Ok(measured) => RunOutcome::Measured(measured),
            Err(error) => RunOutcome::Failed(crate::shown(&error)),
        };
        if runner.stop.asked().is_some() {
            break;
        }
        let run = Run { point: point.clone(), repeat, seconds: started.elapsed().as_secs_f64(), outcome };
        ledger.keep(&run)?;
        let said = match &run.outcome {
            RunOutcome::Measured(measured) => format!("{name}: {:.1} {}/s", measured.per_s, measured.unit),
            RunOutcome::Failed(why) | RunOutcome::Refused(why) => format!("{name}: failed: {why}"),
        };
        progress.end(point, run.seconds, &said);
        runs.push(run);
    }
    progress.finish();
    runs.append(&mut refusals);
    Ok(runs)
}

/// Writes everything that outlives the terminal.
fn keep(folder: &Path, findings: &Findings, subject: &str) -> Result<()> {
    ledger::write(&folder.join("results.json"), findings)?;
    ledger::write_text(&folder.join("study.csv"), &table::csv(findings))?;
    ledger::write_text(&folder.join("study.html"), &page::page(findings, subject))
}
