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
use farandole_study::input::{self, Cache, InputFigures, InputPoint, InputWorkload};
use farandole_study::planes::{self, PlaneSupport};
use farandole_study::point::StudyPoint;
use farandole_study::run::{Measured, Workload};
use farandole_study::throughput::{self, Throughput};
use farandole_study::times::RunTimes;

use super::stop::Stop;
use crate::bench::ours::NCCL_SHARES_GPUS;
use crate::data;

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
    pub(crate) here: Option<PlaneSupport>,
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
        let refused = self.here.as_ref().and_then(|here| here.refuses(point));
        refused.or_else(|| input::refuses(point, data::is_remote, data::lies_in_memory))
    }

    /// Whether the input pipeline is measured without a training.
    fn alone(&self) -> bool {
        self.workload.input.as_ref().is_some_and(|input| !input.in_training)
    }

    /// Before a training: its samples lie in memory, or do not. A pipeline alone sees to that itself.
    fn prepare(&self, point: &StudyPoint) -> Result<()> {
        match &point.input {
            Some(input) if !self.alone() && input.cache == Cache::Cold => data::make_cold(&input.source),
            Some(input) if !self.alone() => data::make_warm(&input.source, &|| self.stop.asked().is_none()),
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
            let words = pipeline_words(workload, point, input, &self.scratch.join("figures.json"));
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
                let shares = self.here.as_ref().is_some_and(|here| here.shares_gpus_by_nccl(point));
                let prepared = if shares { format!("{NCCL_SHARES_GPUS}; ") } else { String::new() };
                let filled = format!("{prepared}{}", point.fill(command));
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
                let log = self.scratch.join("log.jsonl");
                let text = fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
                let (throughput, figures) = throughput::of_trainer(&text)?;
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
        let RunTimes { phases, split, messages } = where_time_went(&self.scratch.join("trace"))?;
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

/// Words of the job that measures a point alone.
fn pipeline_words(workload: &InputWorkload, point: &StudyPoint, input: &InputPoint, figures: &Path) -> Vec<String> {
    let mut words: Vec<String> = ["data", "point"].map(str::to_owned).to_vec();
    for (flag, value) in [
        ("--transform", workload.transform.clone()),
        ("--batch", point.batch.to_string()),
        ("--workers", input.workers.to_string()),
        ("--prefetch", input.prefetch.to_string()),
        ("--seconds", workload.seconds.to_string()),
        ("--figures", figures.display().to_string()),
    ] {
        words.extend([flag.to_owned(), value]);
    }
    words.extend((input.cache == Cache::Cold).then(|| "--cold".to_owned()));
    words.extend(["--".to_owned(), input.source.clone()]);
    words
}

/// Where the time of a run went, read from its trace. A program that does not use farandole has none.
fn where_time_went(folder: &Path) -> Result<RunTimes> {
    if !folder.exists() {
        return Ok(RunTimes::default());
    }
    Ok(RunTimes::of(&crate::report::load::history(folder)?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_study::sweep::StudyKind;

    #[test]
    fn ranks_that_share_gpus_by_nccl_have_hosts_of_their_own() {
        let command = Some("./x".to_owned());
        let (kind, words, hosts) = (StudyKind::Planes, Vec::new(), None);
        let runner = Runner {
            executable: PathBuf::new(),
            workload: Workload { kind, command, words, steps: 1, warm_up: 0, hosts, input: None },
            timeout: GRACE,
            scratch: PathBuf::new(),
            stop: Stop::default(),
            here: Some(PlaneSupport { gpus: Ok(2), has_mps: true }),
        };
        let command = |plane: &str, ranks| {
            let (model, precision, plane) = ("command".to_owned(), "f32".to_owned(), plane.to_owned());
            let point = StudyPoint { model, ranks, threads: 1, batch: 32, precision, plane, input: None };
            runner.words(&point).pop().unwrap().into_string().unwrap()
        };
        let shared = command("nccl+mps", 4);
        assert!(shared.starts_with("export NCCL_HOSTID=") && shared.ends_with("; ./x"), "{shared}");
        assert_eq!((command("nccl", 2), command("own", 4)), ("./x".to_owned(), "./x".to_owned()));
    }
}
