//! The folder of a study: what it is, and what has been measured so far.
//!
//! ```text
//! DIR/study.json            what is measured and how
//! DIR/runs/NAME.REPEAT.json one run each
//! DIR/logs/NAME.REPEAT.log  what it printed
//! ```
//!
//! A run is written when it has ended, under another name first, so that a study that is cut off has whole runs or
//! none. Whoever calls the same study again goes on where it ended; runs that had failed are tried again. A folder with
//! another study in it is refused: figures that were not measured alike do not belong into one table.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use farandole_study::point::StudyPoint;
use farandole_study::run::{Run, RunOutcome, Workload};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The folder.
#[derive(Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
}

impl Ledger {
    /// Opens the folder for this workload, or makes it. `fresh` throws away what was measured before.
    pub(crate) fn open(folder: &Path, workload: &Workload, fresh: bool) -> Result<Ledger> {
        let ledger = Ledger { folder: folder.to_owned() };
        let description = folder.join("study.json");
        if fresh && description.exists() {
            for part in ["runs", "logs"] {
                ignore_missing(fs::remove_dir_all(folder.join(part)))?;
            }
            ignore_missing(fs::remove_file(&description))?;
        }
        for part in ["runs", "logs"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("making {}", part.display()))?;
        }
        match read::<Workload>(&description)? {
            None => write(&description, workload)?,
            Some(there) if there == *workload => {}
            Some(there) => bail!(
                "{} holds another study ({}). Give another folder with --out, or --fresh to begin anew there",
                folder.display(),
                there.difference(workload)
            ),
        }
        Ok(ledger)
    }

    /// The run, if it has been measured.
    pub(crate) fn measured(&self, point: &StudyPoint, repeat: usize) -> Result<Option<Run>> {
        let run: Option<Run> = read(&self.run_file(point, repeat))?;
        Ok(run.filter(|run| matches!(run.outcome, RunOutcome::Measured(_)) && run.point == *point))
    }

    /// Keeps a run.
    pub(crate) fn keep(&self, run: &Run) -> Result<()> {
        write(&self.run_file(&run.point, run.repeat), run)
    }

    /// Where the output of a run goes.
    pub(crate) fn log_file(&self, point: &StudyPoint, repeat: usize) -> PathBuf {
        self.folder.join("logs").join(format!("{}.{repeat}.log", point.name()))
    }

    fn run_file(&self, point: &StudyPoint, repeat: usize) -> PathBuf {
        self.folder.join("runs").join(format!("{}.{repeat}.json", point.name()))
    }
}

fn ignore_missing(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context("removing earlier results"),
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let value = serde_json::from_str(&text);
    value.map(Some).with_context(|| format!("{} was not written by a study; remove it to go on", path.display()))
}

/// Writes a whole file or leaves the old one: under another name first.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("a result as JSON")?;
    write_text(path, &text)
}

/// The same for text.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let outcome = (|| {
        let mut file = fs::File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    })();
    if outcome.is_err() {
        // Whatever is wrong with the disk, half a file is no use to anybody.
        let _ = fs::remove_file(&unfinished);
    }
    outcome.with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_study::run::Measured;
    use farandole_study::sweep::StudyKind;

    fn workload() -> Workload {
        Workload {
            kind: StudyKind::Weak,
            command: None,
            words: Vec::new(),
            steps: 20,
            warm_up: 3,
            hosts: None,
            input: None,
        }
    }

    fn run(repeat: usize, outcome: RunOutcome) -> Run {
        let (model, precision, plane) = ("m".into(), "f32".into(), String::new());
        let point = StudyPoint { model, ranks: 1, threads: 1, batch: 8, precision, plane, input: None };
        Run { point, repeat, seconds: 1.5, outcome }
    }

    #[test]
    fn measured_runs_are_found_again_and_failed_ones_are_not() {
        let folder = farandole_testing::Folder::new();
        let (phases, split, messages) = (Vec::new(), Vec::new(), Vec::new());
        let measured = Measured { per_s: 5.0, unit: "samples".into(), phases, split, messages, input: None };
        let (good, bad) = (run(0, RunOutcome::Measured(measured)), run(1, RunOutcome::Failed("why".into())));
        let ledger = Ledger::open(&folder, &workload(), false).unwrap();
        ledger.keep(&good).unwrap();
        ledger.keep(&bad).unwrap();
        let again = Ledger::open(&folder, &workload(), false).unwrap();
        assert_eq!(again.measured(&good.point, 0).unwrap(), Some(good.clone()));
        assert_eq!(again.measured(&bad.point, 1).unwrap(), None);
        let fresh = Ledger::open(&folder, &workload(), true).unwrap();
        assert_eq!(fresh.measured(&good.point, 0).unwrap(), None);
    }

    #[test]
    fn another_study_in_the_folder_is_refused_with_the_difference() {
        let folder = farandole_testing::Folder::new();
        Ledger::open(&folder, &workload(), false).unwrap();
        let other = Workload { command: Some("./x".into()), ..workload() };
        let error = Ledger::open(&folder, &other, false).unwrap_err().to_string();
        assert!(error.contains("command: the built-in trainer there, ./x now"), "{error}");
        assert!(error.contains("--fresh"), "{error}");
    }

    #[test]
    fn a_file_of_somebody_elses_is_named() {
        let folder = farandole_testing::Folder::new();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("study.json"), "{").unwrap();
        let error = format!("{:#}", Ledger::open(&folder, &workload(), false).unwrap_err());
        assert!(error.contains("study.json was not written by a study"), "{error}");
    }
}
