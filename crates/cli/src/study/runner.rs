//! Runs one point as a real job and finds out how fast it was.
//!
//! The job is this very command again, `farandole train` or `farandole run` with the user's command, so that a point is
//! measured as anybody would run it. It goes down with us: the step before it asks the kernel to end it when we end,
//! and a launcher's ranks end with their launcher. What it prints goes to the point's log, and the last lines of it
//! into the message when it fails.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farandole_cluster::launch::exec_shim;
use farandole_insight::history::History;
use farandole_insight::loss::TimeSplit;

use super::input::{self, Cache, InputFigures};
use super::ledger::{Measured, Workload};
use super::planes::{self, Here, Messages};
use super::point::StudyPoint;
use super::stop::Stop;
use super::throughput::{self, Throughput};

/// How often a running job is looked at: a job takes seconds.
const LOOK_MS: u64 = 20;

/// How long a job that is told to end may take: the launcher's own grace, and a little.
const GRACE: Duration = Duration::from_secs(10);

/// How many of the last lines of a log say why a job failed.
const LAST_LINES: usize = 12;

/// Everything about runs that does not depend on the point.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) executable: PathBuf,
    pub(crate) workload: Workload,
    /// The longest that a run may take.
    pub(crate) timeout: Duration,
    /// Where a run may leave its files; each has a folder of its own there, for as long as it runs.
    pub(crate) scratch: PathBuf,
    /// Whether anybody still wants to know.
    pub(crate) stop: Stop,
    /// What the machine has for planes, in a study of these.
    pub(crate) here: Option<Here>,
}

/// How a job has ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// By itself.
    Own(ExitStatus),
    /// It took too long.
    Late,
    /// The study was asked to stop.
    Stopped,
}

impl Runner {
    /// Measures a point once.
    pub(crate) fn measure(&self, point: &StudyPoint, log: &Path) -> Result<Measured> {
        // A study that was killed has left what its last run wrote, which is nothing of this one's.
        let _ = fs::remove_dir_all(&self.scratch);
        fs::create_dir_all(&self.scratch).with_context(|| format!("making {}", self.scratch.display()))?;
        let outcome = self.run(point, log).and_then(|()| self.read(point));
        let cleared = fs::remove_dir_all(&self.scratch);
        let measured =
            outcome.with_context(|| format!("{}; all of its output is in {}", point.name(), log.display()))?;
        cleared.with_context(|| format!("removing {}", self.scratch.display()))?;
        Ok(measured)
    }

    /// Why this machine cannot measure a point, if it cannot.
    pub(crate) fn refuses(&self, point: &StudyPoint) -> Option<String> {
        self.here.as_ref().and_then(|here| here.refuses(point)).or_else(|| input::refuses(point))
    }

    /// Whether the input pipeline is measured without a training.
    fn alone(&self) -> bool {
        self.workload.input.as_ref().is_some_and(|input| !input.in_training)
    }

    /// Before a training: its samples lie in memory, or do not. A pipeline alone sees to that itself.
    fn prepare(&self, point: &StudyPoint) -> Result<()> {
        match &point.input {
            Some(input) if !self.alone() && input.cache == Cache::Cold => crate::data::make_cold(&input.source),
            Some(input) if !self.alone() => crate::data::make_warm(&input.source, &|| self.stop.asked().is_none()),
            _ => Ok(()),
        }
    }

    /// Runs it to its end.
    fn run(&self, point: &StudyPoint, log: &Path) -> Result<()> {
        self.prepare(point)?;
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        let mut child = Command::new(&self.executable)
            .args(["rank", "--"])
            .arg(&self.executable)
            .args(self.words(point))
            .env(exec_shim::AGENT, std::process::id().to_string())
            .envs(self.cache_folder(point).map(|folder| (farandole_settings::DATA_CACHE.name, folder)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("the log twice")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {}", self.executable.display()))?;
        match self.wait(&mut child)? {
            End::Own(status) if status.success() => Ok(()),
            End::Own(status) => bail!("it ended with {status}; its last lines:\n{}", last_lines(log)),
            End::Stopped => bail!("it was ended with the study"),
            End::Late => bail!(
                "it took longer than {} s (--timeout) and was ended; its last lines:\n{}",
                self.timeout.as_secs(),
                last_lines(log)
            ),
        }
    }

    /// Where blocks of remote objects are kept: nowhere, unless the point says so.
    fn cache_folder(&self, point: &StudyPoint) -> Option<OsString> {
        let input = point.input.as_ref()?;
        let folder = self.scratch.with_file_name("cache").into_os_string();
        Some(if input.cache == Cache::Disk { folder } else { OsString::new() })
    }

    /// Waits for the end; a job that takes too long, or that nobody wants any more, is told to end, and in the end made
    /// to.
    fn wait(&self, child: &mut Child) -> Result<End> {
        let started = Instant::now();
        let mut told: Option<(End, Instant)> = None;
        loop {
            if let Some(status) = child.try_wait().context("waiting for the job")? {
                return Ok(told.map_or(End::Own(status), |(why, _)| why));
            }
            let why = match (self.stop.asked(), started.elapsed() > self.timeout) {
                (Some(_), _) => Some(End::Stopped),
                (None, true) => Some(End::Late),
                (None, false) => None,
            };
            match (told, why) {
                (None, Some(why)) => {
                    let pid = rustix::process::Pid::from_child(child);
                    // It may have ended just now.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                    told = Some((why, Instant::now()));
                }
                (Some((_, since)), _) if since.elapsed() > GRACE => child.kill().context("ending the job")?,
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    /// The words of the job.
    fn words(&self, point: &StudyPoint) -> Vec<OsString> {
        if let (Some(workload), Some(input), true) = (&self.workload.input, &point.input, self.alone()) {
            let words = input::words(workload, point, input, &self.scratch.join("figures.json"));
            return words.into_iter().map(OsString::from).collect();
        }
        let text = |text: &str| OsString::from(text);
        let number = |number: usize| OsString::from(number.to_string());
        let file = |name: &str| self.scratch.join(name).into_os_string();
        let mut flags = vec![(text("--np"), number(point.ranks)), (text("--trace"), file("trace"))];
        flags.extend(self.workload.hosts.iter().map(|hosts| (text("--hosts"), text(hosts))));
        let (command, rest) = match &self.workload.command {
            None => {
                let steps = self.workload.warm_up + self.workload.steps;
                flags.extend([
                    (text("--threads"), number(point.threads)),
                    (text("--model"), text(&point.model)),
                    (text("--batch"), number(point.batch)),
                    (text("--precision"), text(&point.precision)),
                    (text("--epochs"), number(1)),
                    (text("--steps"), number(steps)),
                    (text("--eval-every"), number(0)),
                    (text("--log"), file("log.jsonl")),
                ]);
                let given = |flag: &str| self.workload.words.iter().any(|word| word.starts_with(flag));
                // An epoch that is long enough for all steps. A folder has the images that it has.
                if !given("--samples") && !given("--data") && point.input.is_none() {
                    flags.push((text("--samples"), number(steps * point.total_batch())));
                }
                if let Some(input) = &point.input {
                    flags.extend([
                        (text("--data"), text(&input.source)),
                        (text("--workers"), number(input.workers)),
                        (text("--prefetch"), number(input.prefetch)),
                        (text("--warm-up-steps"), number(self.workload.warm_up)),
                    ]);
                }
                (text("train"), self.workload.words.iter().map(OsString::from).collect())
            }
            Some(command) => {
                flags.push((text("--output-filename"), file("output")));
                flags.extend(point.variables().into_iter().map(|variable| (text("--env"), variable.into())));
                let prepared = self.here.as_ref().and_then(|here| here.prepares(point));
                let filled = format!("{}{}", prepared.unwrap_or_default(), point.fill(command));
                (text("run"), vec![text("sh"), text("-c"), filled.into()])
            }
        };
        let (plane, with_mps) = planes::parts(&point.plane);
        if !plane.is_empty() {
            flags.push((text("--env"), format!("{}={plane}", farandole_settings::PLANE.name).into()));
        }
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag, value]);
        let alone = with_mps.then(|| text("--mps"));
        [command].into_iter().chain(flags).chain(alone).chain(rest).collect()
    }

    /// What it has left behind.
    fn read(&self, point: &StudyPoint) -> Result<Measured> {
        if self.alone() {
            return self.read_alone();
        }
        let mut input = None;
        let Throughput { per_s, unit } = match &self.workload.command {
            None => {
                let (throughput, figures) = summary(&self.scratch.join("log.jsonl"))?;
                input = point.input.as_ref().and(figures);
                throughput
            }
            Some(_) => {
                let digits = point.ranks.saturating_sub(1).to_string().len();
                let output = |rank: usize| {
                    let file = self.scratch.join("output").join(format!("rank.{rank:0digits$}")).join("stdout");
                    // A file appears with its first line.
                    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
                };
                let outputs: Vec<String> = (0..point.ranks).map(output).collect();
                throughput::read(&outputs, self.workload.warm_up)?
            }
        };
        let Times { phases, split, messages } = where_time_went(&self.scratch.join("trace"))?;
        Ok(Measured { per_s, unit, phases, split, messages, input })
    }

    /// What the pipeline by itself has left behind.
    fn read_alone(&self) -> Result<Measured> {
        let file = self.scratch.join("figures.json");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let (figures, phases) = InputFigures::alone(&serde_json::from_str(&text).context("the figures")?);
        let (split, messages) = (Vec::new(), Vec::new());
        let (per_s, unit) = (figures.mean_per_s, "samples".to_owned());
        Ok(Measured { per_s, unit, phases, split, messages, input: Some(figures) })
    }
}

/// What the trainer says at its end, in the last line of its log. The median over steps counts, which does not mind the
/// first ones.
fn summary(log: &Path) -> Result<(Throughput, Option<InputFigures>)> {
    let text = fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
    let last = text.lines().rev().find(|line| line.contains("\"summary\""));
    let last = last.context("the trainer's log has no summary")?;
    let value: serde_json::Value = serde_json::from_str(last).context("the trainer's summary")?;
    let per_s = value["median_samples_per_s"].as_f64().filter(|per_s| *per_s > 0.0);
    let per_s = per_s.context("the trainer's summary has no throughput")?;
    let ranks = value["samples_per_s_by_rank"].as_array();
    let peak = ranks.map(|ranks| ranks.iter().filter_map(|rank| rank["upper"].as_f64()).sum::<f64>());
    let figures = value["samples_per_s"].as_f64().zip(peak).map(|(mean_per_s, peak_per_s)| InputFigures {
        mean_per_s,
        peak_per_s,
        bytes_per_s: None,
        broken: 0,
    });
    Ok((Throughput { per_s, unit: "samples".to_owned() }, figures))
}

/// Seconds of an iteration by phase, percent of all time by cause, and operations by size.
#[derive(Default)]
struct Times {
    phases: Vec<(String, f64)>,
    split: Vec<(String, f64)>,
    messages: Vec<Messages>,
}

/// Read from the trace. A program that does not use farandole has none, which is no fault.
fn where_time_went(folder: &Path) -> Result<Times> {
    if !folder.exists() {
        return Ok(Times::default());
    }
    let history = crate::report::load::history(folder)?;
    let split = TimeSplit::of(&history).rows();
    let split = split.into_iter().map(|row| (row.key.to_owned(), row.tenths as f64 / 10.0)).collect();
    Ok(Times { phases: phases(&history), split, messages: planes::by_size(&history) })
}

/// Seconds of each phase for one iteration of one rank, in the order in which phases first begin.
fn phases(history: &History) -> Vec<(String, f64)> {
    let iterations: usize = history.ranks.iter().map(|rank| rank.iterations.len()).sum();
    let mut phases: Vec<(String, f64)> = Vec::new();
    if iterations == 0 {
        return phases;
    }
    for phase in history.ranks.iter().flat_map(|rank| &rank.phases) {
        let seconds = (phase.to_ns - phase.from_ns) as f64 / 1e9 / iterations as f64;
        match phases.iter_mut().find(|(name, _)| *name == phase.name) {
            Some((_, sum)) => *sum += seconds,
            None => phases.push((phase.name.clone(), seconds)),
        }
    }
    phases
}

fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}
