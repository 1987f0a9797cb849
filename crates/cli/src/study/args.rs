//! The command line of `farandole study`, and what its defaults are on this machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farandole_study::planes;
use farandole_study::run::Workload;
use farandole_study::sweep::{Axes, StudyKind};

use super::input_args::InputArgs;
use super::numbers::numbers;

/// Measure how throughput depends on ranks, batch, threads, model, precision, plane, storage, format or loader, with
/// real jobs.
///
/// Each point is a job of its own, `farandole train` or, with --command, your script, run several times; the median
/// counts. Results are kept in a folder as they come: the same command again goes on where the last one ended. In the
/// end there are a table, study.csv, results.json and study.html with charts, laws and remarks. docs/study.md tells it
/// all.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  farandole study weak --ranks 1,2,4 --batch 32
  farandole study strong --ranks 1,2,4 --total-batch 128 --model resnet50 -- --data imagenet-like
  farandole study threads --cores 8 --total-batch 64
  farandole study batch --ranks 4 --batches 8,16,32,64,128 --command 'python train.py --batch-size {batch}'
  farandole study planes --ranks 2 --command 'python train.py'
  farandole study storage --sources /local/photos,/nfs/photos,s3://bucket/photos
  farandole study format photos --formats folder,tar,tar@256
  farandole study loader photos --workers 1,2,4 --prefetch 1,2,4 --in-training

A script says how fast it is with lines `throughput: 812.4 samples/s` (one rank, for all) or `rank throughput: …` (every rank, its own).")]
pub(crate) struct StudyArgs {
    /// What is varied
    #[arg(value_parser = kinds(), value_name = "KIND")]
    pub(super) kind: StudyKind,

    #[command(flatten)]
    pub(super) input: InputArgs,

    /// Measure this command instead of the built-in trainer. {ranks}, {threads}, {batch}, {total_batch}, {model},
    /// {precision} and {plane} in it stand for the point's; FARANDOLE_STUDY_RANKS and so on are set as well
    #[arg(long, value_name = "COMMAND", conflicts_with = "words")]
    pub(super) command: Option<String>,

    /// Numbers of ranks, each of which is measured [default: 1, 2, 4, … up to the number of cores; for batch and
    /// precision that number alone; for threads all that divide --cores]
    #[arg(long, visible_alias = "np", value_name = "LIST")]
    ranks: Option<String>,

    /// Samples of each rank in one step, or of a batch, for all but batch [default: 32]
    #[arg(long, value_name = "SAMPLES")]
    batch: Option<usize>,

    /// Batches of a batch study [default: 4,8,16,32,64]
    #[arg(long, value_name = "LIST")]
    batches: Option<String>,

    /// Samples of all ranks in one step, for strong and threads [default: --batch for each of the most ranks]
    #[arg(long, value_name = "SAMPLES")]
    total_batch: Option<usize>,

    /// Threads of each rank, for all but threads [default: 1]
    #[arg(long, value_name = "THREADS")]
    threads: Option<usize>,

    /// Cores to divide, for threads [default: all that may be used here]
    #[arg(long, value_name = "CORES")]
    cores: Option<usize>,

    /// The network; several for a study of models
    #[arg(long, visible_alias = "models", value_name = "NAMES", value_delimiter = ',')]
    model: Vec<String>,

    /// How gradients travel; several for a study of precision
    #[arg(long, visible_alias = "precisions", value_name = "NAMES", value_delimiter = ',')]
    precision: Vec<String>,

    /// Where tensors on GPUs are reduced, for a study of planes: staged, own, nccl, each also with +mps [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    planes: Vec<String>,

    /// What the others are compared with: a number of ranks, a batch, a precision or a plane of this study [default:
    /// the first]
    #[arg(long, value_name = "VALUE")]
    baseline: Option<String>,

    /// Runs of each point; they take turns, so that no point has all of the machine's bad moments
    #[arg(long, value_name = "RUNS", default_value_t = 3)]
    pub(super) repeats: usize,

    /// Steps of the trainer that are measured
    #[arg(long, value_name = "STEPS", default_value_t = 20)]
    steps: usize,

    /// What a run does before it is measured: more steps of the trainer [default: 3], or lines of throughput of a
    /// command that are left out [default: 1]
    #[arg(long, value_name = "NUMBER")]
    warm_up: Option<usize>,

    /// The longest that one run may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,

    /// Hosts, as in `farandole run`
    #[arg(long, short = 'H', value_name = "HOSTS")]
    hosts: Option<String>,

    /// Folder for results [default: study-KIND]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Throw away what the folder holds of an earlier study, and begin anew
    #[arg(long)]
    pub(super) fresh: bool,

    /// Print the findings as JSON instead of text
    #[arg(long)]
    pub(super) json: bool,

    /// More words for `farandole train`
    #[arg(last = true, value_name = "WORDS")]
    pub(super) words: Vec<String>,
}

/// Networks of a study of models that names none: small ones, which any machine trains in reasonable time.
const MODELS: [&str; 3] = ["lenet", "resnet20", "mobilenet-v2"];

/// Ways for gradients to travel that the trainer knows.
const PRECISIONS: [&str; 3] = ["f32", "bf16-wire", "f16-wire"];

/// Ranks of a study of planes where nothing is said: the fewest that have something to reduce.
const PLANES_RANKS: usize = 2;

/// Samples of each rank where nothing is said.
const BATCH: usize = 32;

/// Batches of a batch study where nothing is said.
const BATCHES: &str = "4,8,16,32,64";

impl StudyArgs {
    /// Refuses flags that mean nothing in a study of this kind.
    fn refuse_what_would_be_ignored(&self) -> Result<()> {
        use StudyKind::{Batch, Planes, Strong, Threads};
        let divides = matches!(self.kind, Strong | Threads);
        for (flag, given, used, instead) in [
            ("--batches", self.batches.is_some(), self.kind == Batch, "--batch has the one batch of all points"),
            ("--batch", self.batch.is_some(), self.kind != Batch, "--batches has those that are compared"),
            ("--total-batch", self.total_batch.is_some(), divides, "--batch has the samples of each rank"),
            ("--cores", self.cores.is_some(), self.kind == Threads, "--ranks and --threads say what is used"),
            ("--threads", self.threads.is_some(), self.kind != Threads, "--cores are divided into ranks and threads"),
            ("--planes", !self.planes.is_empty(), self.kind == Planes, "FARANDOLE_PLANE has the one of all points"),
        ] {
            let kind = self.kind.word();
            ensure!(used || !given, "{flag} means nothing in a study of kind {kind}: {instead}");
        }
        if self.kind.is_input() {
            let trains = self.input.in_training;
            for (flag, given, used) in [
                ("--command", self.command.is_some(), false),
                ("--precision", !self.precision.is_empty(), false),
                ("--ranks", self.ranks.is_some(), trains),
                ("--threads", self.threads.is_some(), trains),
                ("--model", !self.model.is_empty(), trains),
                ("--warm-up", self.warm_up.is_some(), trains),
                ("--hosts", self.hosts.is_some(), trains),
                ("words behind --", !self.words.is_empty(), trains),
            ] {
                let kind = self.kind.word();
                let hint =
                    if used || flag == "--command" || flag == "--precision" { "" } else { " without --in-training" };
                ensure!(used || !given, "{flag} means nothing in a study of kind {kind}{hint}");
            }
        }
        let both = self.batch.is_some() && self.total_batch.is_some();
        ensure!(!both, "--batch and --total-batch: give one of them, the samples of each rank or of all together");
        Ok(())
    }

    /// Where results go.
    pub(super) fn folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from(format!("study-{}", self.kind.word())))
    }

    /// The longest that one run may take.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// What is measured.
    pub(super) fn workload(&self) -> Workload {
        Workload {
            kind: self.kind,
            command: self.command.clone(),
            words: self.words.clone(),
            steps: self.steps,
            warm_up: self.warm_up.unwrap_or(if self.command.is_some() { 1 } else { 3 }),
            hosts: self.hosts.clone(),
            input: self.input.workload(self.kind),
        }
    }

    /// What is varied over what, with the defaults of a machine with so many cores.
    pub(super) fn axes(&self, cores_here: usize) -> Result<Axes> {
        self.refuse_what_would_be_ignored()?;
        let input = self.input.axes(self.kind, cores_here)?;
        let (batch, threads) = (self.batch.unwrap_or(BATCH), self.threads.unwrap_or(1));
        for (name, value) in
            [("--repeats", self.repeats), ("--steps", self.steps), ("--batch", batch), ("--threads", threads)]
        {
            ensure!(value > 0, "{name} 0: nothing would be measured");
        }
        let cores = self.cores.unwrap_or(cores_here);
        ensure!(cores > 0, "--cores 0: nothing would be measured");
        let ranks = match (&self.ranks, self.kind) {
            (Some(list), _) => numbers(list)?,
            (None, StudyKind::Batch | StudyKind::Precision) => vec![cores_here.max(1)],
            (None, StudyKind::Threads) => Vec::new(),
            (None, StudyKind::Planes) => vec![PLANES_RANKS],
            (None, StudyKind::Storage | StudyKind::Format | StudyKind::Loader) => vec![1],
            (None, _) => doublings(cores_here),
        };
        let most = *ranks.last().unwrap_or(&1);
        let batches = match self.kind {
            StudyKind::Batch => numbers(self.batches.as_deref().unwrap_or(BATCHES))?,
            _ => vec![batch],
        };
        let several = |given: &[String], all: &[&str], varied: bool| -> Vec<String> {
            let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            match (given.is_empty(), varied) {
                (false, _) => given.to_vec(),
                (true, true) => own(all),
                (true, false) => own(&all[..1]),
            }
        };
        let mut models = several(&self.model, &MODELS, self.kind == StudyKind::Models);
        if self.model.is_empty() && self.kind != StudyKind::Models {
            let alone = self.kind.is_input() && !self.input.in_training;
            let name = if alone {
                "pipeline"
            } else if self.command.is_some() {
                "command"
            } else {
                "resnet20"
            };
            models = vec![name.to_owned()];
        }
        let precisions = several(&self.precision, &PRECISIONS, self.kind == StudyKind::Precision);
        ensure!(
            self.kind == StudyKind::Models || models.len() == 1,
            "--model: only a study of models has several ({})",
            models.join(", ")
        );
        ensure!(
            self.kind == StudyKind::Precision || precisions.len() == 1,
            "--precision: only a study of precision has several"
        );
        planes::check(&self.planes)?;
        let divided = if self.kind == StudyKind::Threads { cores } else { most };
        let total_batch = self.total_batch.unwrap_or(batch * divided);
        ensure!(total_batch > 0, "--total-batch 0: nothing would be measured");
        Ok(Axes {
            kind: self.kind,
            models,
            ranks,
            threads,
            batches,
            total_batch,
            precisions,
            planes: several(&self.planes, &planes::PLANES, true),
            cores,
            baseline: self.baseline.clone(),
            input,
        })
    }
}

/// Reads one of these values by its word, and lists all of them with their meanings.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    word: fn(T) -> &'static str,
    meaning: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let values = all.iter().map(|value| PossibleValue::new(word(*value)).help(meaning(*value)));
    PossibleValuesParser::new(values).try_map(move |given| {
        let found = all.iter().find(|value| word(**value) == given);
        found.copied().ok_or("not one of the values")
    })
}

fn kinds() -> impl TypedValueParser<Value = StudyKind> {
    one_of(&StudyKind::ALL, StudyKind::word, StudyKind::meaning)
}

/// 1, 2, 4, … up to the number of cores, which is always among them.
pub(super) fn doublings(cores: usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&ranks| ranks < cores).collect();
    ranks.push(cores.max(1));
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        study: StudyArgs,
    }

    fn axes(line: &str) -> Result<Axes> {
        let words = ["study"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)?.study.axes(6)
    }

    #[test]
    fn ranks_double_up_to_the_cores() {
        assert_eq!(doublings(1), [1]);
        assert_eq!(doublings(2), [1, 2]);
        assert_eq!(axes("weak").unwrap().ranks, [1, 2, 4, 6]);
        assert_eq!(axes("weak --ranks 1,3").unwrap().ranks, [1, 3]);
    }

    #[test]
    fn strong_and_threads_have_a_total_batch_that_fits() {
        assert_eq!(axes("strong --ranks 1,2,4 --batch 8").unwrap().total_batch, 32);
        assert_eq!(axes("threads --cores 4 --batch 8").unwrap().total_batch, 32);
        assert_eq!(axes("strong --total-batch 12").unwrap().total_batch, 12);
    }

    #[test]
    fn batch_and_precision_take_all_given_ranks_and_otherwise_all_cores() {
        for kind in ["batch", "precision"] {
            assert_eq!(axes(kind).unwrap().ranks, [6], "{kind}");
            assert_eq!(axes(&format!("{kind} --ranks 1,2,4")).unwrap().ranks, [1, 2, 4], "{kind}");
        }
        assert!(axes("threads").unwrap().ranks.is_empty());
        assert_eq!(axes("threads --ranks 2,3").unwrap().ranks, [2, 3]);
    }

    #[test]
    fn flags_that_would_be_ignored_are_refused() {
        for line in [
            "weak --batches 1,2",
            "batch --batch 8",
            "weak --total-batch 8",
            "precision --cores 2",
            "threads --threads 2",
            "strong --batch 8 --total-batch 32",
        ] {
            let error = axes(line).unwrap_err().to_string();
            assert!(error.contains(line.split_whitespace().nth(1).unwrap()), "{line}: {error}");
        }
        assert_eq!(axes("batch").unwrap().batches, [4, 8, 16, 32, 64]);
        assert_eq!(axes("batch --batches 1,2 --threads 2").unwrap().batches, [1, 2]);
        assert_eq!((axes("weak").unwrap().batches, axes("weak").unwrap().threads), (vec![32], 1));
    }

    #[test]
    fn only_the_study_of_a_thing_has_several_of_it() {
        assert_eq!(axes("models --models a,b").unwrap().models, ["a", "b"]);
        assert!(axes("weak --model a,b").unwrap_err().to_string().contains("only a study of models"));
        assert_eq!(axes("precision").unwrap().precisions.len(), 3);
        assert_eq!(axes("weak").unwrap().precisions, ["f32"]);
        assert!(axes("weak --precision f32,f16-wire").is_err());
        assert_eq!(axes("planes").unwrap().planes.len(), 6);
        let some = axes("planes --planes own,own+mps").unwrap();
        assert_eq!((some.planes, some.ranks), (vec!["own".to_owned(), "own+mps".to_owned()], vec![2]));
        assert!(axes("planes --planes mpi").unwrap_err().to_string().contains("nccl"));
        assert!(axes("weak --planes own").unwrap_err().to_string().contains("FARANDOLE_PLANE"));
    }

    #[test]
    fn nothing_is_refused_before_anything_runs() {
        for line in
            ["weak --repeats 0", "weak --steps 0", "strong --total-batch 0", "threads --cores 0", "weak --ranks 0"]
        {
            assert!(axes(line).is_err(), "{line}");
        }
    }
}
