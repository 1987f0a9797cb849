//! What is to be trained, and how: a job as it is given to every rank.
//!
//! A job is made once, by whoever reads a command line, and goes to all ranks as JSON: what is in here is the same
//! everywhere. It names things (a model, a data set) that a rank then makes for itself. Nothing in here depends on how
//! many ranks there are; what does is in the [`Plan`] that a rank makes of it. [`TrainJob::check`] finds what is wrong
//! with it in itself, before anything is started.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::schedule::{Decay, LearningRateSchedule};

/// A batch has so many samples at most, in so many passes at most: more than any memory holds, and few enough that
/// their product with any number of ranks is a number.
const MOST_SAMPLES: usize = 1 << 24;

/// A rank has so many threads of a kind at most. No machine has more cores, and a slip does not ask the system for a
/// million threads.
const MOST_THREADS: usize = 4096;

/// What is to be trained, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainJob {
    /// The name of the network.
    pub model: String,
    /// Layers have one so-many-th of the published channels; 1 is the network as published.
    pub thin: usize,
    /// What is learned from.
    pub data: DataChoice,
    /// Samples of a rank in one forward pass.
    pub batch: usize,
    /// How often all samples are seen.
    pub epochs: u64,
    /// The learning rate of one rank.
    pub learning_rate: f64,
    /// How weights follow gradients.
    pub optimizer: OptimizerChoice,
    /// How much of the last step's direction is kept, for `sgd`.
    pub momentum: f64,
    /// How strongly weights are drawn towards zero.
    pub weight_decay: f64,
    /// How much of the right answer's weight goes to all others.
    pub label_smoothing: f32,
    /// Forward and backward passes of a step.
    pub accumulate: usize,
    /// Epochs, and parts of them, during which the learning rate rises.
    pub warmup_epochs: f64,
    /// How it falls afterwards.
    pub decay: Decay,
    /// How gradients travel.
    pub precision: Precision,
    /// BatchNorm takes its statistics over so many samples; over the batch of a rank where nothing is said.
    pub norm_batch: Option<usize>,
    /// Threads that make batches, on each rank.
    pub workers: usize,
    /// Batches that are made ahead of time.
    pub prefetch: usize,
    /// Threads that each rank computes with; its share of the cores where nothing is said.
    pub threads: Option<usize>,
    /// Where everything random comes from.
    pub seed: u64,
    /// The folder of the checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Whether, and from what, training goes on.
    pub resume: Resume,
    /// The test samples are looked at after each so many epochs, and after the last; zero means never.
    pub eval_every: u64,
    /// Steps of the whole run, where these are to count and not epochs.
    pub steps: Option<u64>,
    /// Steps at the beginning that are left out of throughput: they pay for what is only made once.
    pub uncounted_steps: usize,
    /// The file that gets a line of JSON for each epoch.
    pub log: Option<PathBuf>,
}

/// What is learned from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataChoice {
    /// The name of a generated data set, or the folder of one.
    pub name: String,
    /// Samples to learn from: so many are generated, or chosen from the folder.
    pub samples: Option<usize>,
    /// Samples to judge by, likewise.
    pub test_samples: Option<usize>,
    /// Rows and columns of an image.
    pub image_size: Option<usize>,
    /// Classes of a generated data set that can have any number of them, or of a folder's table. A folder of classes
    /// is refused where it has another number.
    pub classes: Option<usize>,
    /// How samples are changed each time they are seen, in the words of the data's augmentation; as is usual for the
    /// task where nothing is said.
    pub augment: Option<String>,
}

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerChoice {
    /// Stochastic gradient descent, with momentum if it is not zero.
    Sgd,
    /// Adam.
    Adam,
}

impl OptimizerChoice {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OptimizerChoice::Sgd => "sgd",
            OptimizerChoice::Adam => "adam",
        }
    }
}

/// How gradients travel between ranks. They are computed and applied as `f32` in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// As they are.
    F32,
    /// As `bf16`: half the bytes, eight bits of precision.
    Bf16Wire,
    /// As `f16`: half the bytes, eleven bits of precision, little range.
    F16Wire,
}

/// Whether, and from what, training goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resume {
    /// It begins at the beginning.
    No,
    /// From the checkpoint in the folder, if there is one; else at the beginning.
    IfThere,
    /// From this file.
    From(PathBuf),
}

impl TrainJob {
    /// A job with every setting at its default: what `farandole train` does when nothing is said.
    pub fn new() -> TrainJob {
        TrainJob {
            model: "resnet20".to_owned(),
            thin: 1,
            data: DataChoice {
                name: "cifar-like".to_owned(),
                samples: None,
                test_samples: None,
                image_size: None,
                classes: None,
                augment: None,
            },
            batch: 32,
            epochs: 3,
            learning_rate: 0.05,
            optimizer: OptimizerChoice::Sgd,
            momentum: 0.9,
            weight_decay: 5e-4,
            label_smoothing: 0.0,
            accumulate: 1,
            warmup_epochs: 1.0,
            decay: Decay::Cosine,
            precision: Precision::F32,
            norm_batch: None,
            workers: 1,
            prefetch: 4,
            threads: None,
            seed: 1,
            checkpoint: None,
            resume: Resume::No,
            eval_every: 1,
            steps: None,
            uncounted_steps: 1,
            log: None,
        }
    }

    /// Finds what is wrong with the numbers.
    ///
    /// # Errors
    /// With the flag that it is about, and what it should be.
    pub fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::TrainJob(text));
        for (flag, number) in
            [("batch", self.batch), ("accumulate", self.accumulate), ("prefetch", self.prefetch), ("thin", self.thin)]
        {
            if number == 0 {
                return wrong(format!("--{flag} 0: at least 1"));
            }
            if number > MOST_SAMPLES {
                return wrong(format!("--{flag} {number}: at most {MOST_SAMPLES}"));
            }
        }
        for (flag, number) in [("workers", self.workers), ("threads", self.threads.unwrap_or(0))] {
            if number > MOST_THREADS {
                return wrong(format!("--{flag} {number}: at most {MOST_THREADS}"));
            }
        }
        if self.threads == Some(0) {
            return wrong("--threads 0: at least 1".to_owned());
        }
        if self.epochs == 0 {
            return wrong("--epochs 0: at least 1".to_owned());
        }
        if self.steps == Some(0) {
            return wrong("--steps 0: at least 1".to_owned());
        }
        let positive = self.learning_rate.is_finite() && self.learning_rate > 0.0;
        if !positive {
            return wrong(format!("--lr {}: a number above 0", self.learning_rate));
        }
        for (flag, number, limit) in [
            ("momentum", self.momentum, 1.0),
            ("label-smoothing", f64::from(self.label_smoothing), 1.0),
            ("weight-decay", self.weight_decay, f64::INFINITY),
            ("warmup", self.warmup_epochs, f64::INFINITY),
        ] {
            if !(number >= 0.0 && number < limit) {
                let range =
                    if limit.is_finite() { format!("from 0 to below {limit}") } else { "0 or above".to_owned() };
                return wrong(format!("--{flag} {number}: a number {range}"));
            }
        }
        if self.warmup_epochs > self.epochs as f64 && self.steps.is_none() {
            let (warmup, epochs) = (self.warmup_epochs, self.epochs);
            return wrong(format!("--warmup {warmup}: no longer than the training of {epochs} epochs"));
        }
        if let Some(norm) = self.norm_batch
            && (norm == 0 || !self.batch.is_multiple_of(norm))
        {
            let batch = self.batch;
            return wrong(format!(
                "--norm-batch {norm}: the batch of a rank, {batch}, does not divide into such groups"
            ));
        }
        if self.resume == Resume::IfThere && self.checkpoint.is_none() {
            return wrong(
                "--resume: from what? Name the folder with --checkpoint DIR, or a file with --resume=FILE".to_owned(),
            );
        }
        Ok(())
    }
}

impl Default for TrainJob {
    fn default() -> TrainJob {
        TrainJob::new()
    }
}

/// What follows from a job once it is known how many ranks there are and how large the data set is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Samples of a step, of all ranks together.
    pub global_batch: usize,
    /// Steps of an epoch.
    pub steps: u64,
    /// Epochs, the last of which may be cut short.
    pub epochs: u64,
    /// BatchNorm takes its statistics over so many samples.
    pub norm_batch: usize,
    /// By how many ranks the learning rate is multiplied: all of them, or as many as there were when training began.
    pub rate_ranks: usize,
    /// The learning rate of every step.
    pub schedule: LearningRateSchedule,
}

impl Plan {
    /// Makes the plan. `steps` is what the loader says; `rate_ranks` and `norm_batch` may come from a checkpoint.
    pub fn new(job: &TrainJob, ranks: usize, steps: u64, rate_ranks: usize, norm_batch: usize) -> Plan {
        let total_steps = job.steps.unwrap_or(job.epochs.saturating_mul(steps));
        let warmup_steps = (job.warmup_epochs * steps as f64).round() as u64;
        let peak = job.learning_rate * rate_ranks as f64;
        let schedule =
            LearningRateSchedule { peak, warmup_steps: warmup_steps.min(total_steps), total_steps, decay: job.decay };
        let (global_batch, epochs) = (job.batch * job.accumulate * ranks, total_steps.div_ceil(steps.max(1)));
        Plan { global_batch, steps, epochs, norm_batch, rate_ranks, schedule }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_being_sent_to_a_rank() {
        let job = TrainJob { resume: Resume::From("a b".into()), norm_batch: Some(8), ..TrainJob::new() };
        assert_eq!(serde_json::from_str::<TrainJob>(&serde_json::to_string(&job).unwrap()).unwrap(), job);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_flag() {
        let wrong = |change: &dyn Fn(&mut TrainJob)| {
            let mut job = TrainJob::new();
            change(&mut job);
            job.check().unwrap_err().to_string()
        };
        TrainJob::new().check().unwrap();
        assert!(wrong(&|job| job.batch = 0).starts_with("--batch 0"));
        assert!(wrong(&|job| job.epochs = 0).starts_with("--epochs 0"));
        assert!(wrong(&|job| job.accumulate = 0).starts_with("--accumulate 0"));
        assert!(wrong(&|job| job.learning_rate = f64::NAN).starts_with("--lr NaN"));
        assert!(wrong(&|job| job.learning_rate = -1.0).starts_with("--lr -1"));
        assert!(wrong(&|job| job.momentum = 1.0).starts_with("--momentum 1"));
        assert!(wrong(&|job| job.label_smoothing = -0.5).starts_with("--label-smoothing -0.5"));
        assert!(wrong(&|job| job.warmup_epochs = 400.0).starts_with("--warmup 400"));
        assert!(wrong(&|job| job.norm_batch = Some(5)).starts_with("--norm-batch 5"));
        assert!(wrong(&|job| job.batch = usize::MAX).starts_with(&format!("--batch {}: at most", usize::MAX)));
        assert!(wrong(&|job| job.threads = Some(0)).starts_with("--threads 0"));
        assert!(wrong(&|job| job.threads = Some(1_000_000)).starts_with("--threads 1000000: at most"));
        assert!(wrong(&|job| job.workers = 1_000_000).starts_with("--workers 1000000: at most"));
        assert!(wrong(&|job| job.resume = Resume::IfThere).starts_with("--resume"));
    }

    #[test]
    fn ranks_multiply_the_batch_and_the_learning_rate() {
        let job =
            TrainJob { learning_rate: 0.1, accumulate: 3, batch: 4, epochs: 10, warmup_epochs: 0.5, ..TrainJob::new() };
        let plan = Plan::new(&job, 2, 20, 2, 4);
        assert_eq!((plan.global_batch, plan.steps), (24, 20));
        assert_eq!((plan.schedule.warmup_steps, plan.schedule.total_steps), (10, 200));
        assert!((plan.schedule.peak - 0.2).abs() < 1e-12);
        let short = Plan::new(&TrainJob { steps: Some(25), ..job }, 2, 20, 2, 4);
        assert_eq!((short.schedule.total_steps, short.epochs), (25, 2));
    }
}
