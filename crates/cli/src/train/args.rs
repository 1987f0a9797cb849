//! The command line of `farandole train`: what is to be trained and how; how ranks are started is said as in
//! `farandole run`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use farandole_train::job::{OptimizerChoice, Precision, Resume, TrainJob};
use farandole_train::schedule::Decay;

use crate::run::LaunchArgs;

/// Train a network on many ranks, with nothing but this program.
///
/// Without any flag this is ResNet-20 on generated images like those of CIFAR-10, with one rank on each core of this
/// machine: a few minutes, after which it says how accurate the network is, how fast it went, and where the time was
/// lost. All flags of `farandole run` that say where and how ranks are started mean the same here.
#[derive(Args, Clone, Debug)]
#[command(
    args_override_self = true,
    override_usage = "farandole train [--model NAME] [--data NAME|FOLDER] [-np RANKS] [-H HOSTS | --hostfile FILE] [FLAGS]",
    after_help = "Examples:
  farandole train
  farandole train --model resnet50 --data photos/ -np 4 --epochs 30 --checkpoint run1 --log run1.jsonl
  farandole train --model resnet50 --data photos/ -np 4 --epochs 30 --checkpoint run1 --log run1.jsonl --resume
  farandole train --model mobilenet-v2 --data imagenet-like --image-size 96 --steps 20 --eval-every 0 -H gpu1:4,gpu2:4

docs/train.md describes the data sets, the log and the checkpoint."
)]
pub(crate) struct TrainArgs {
    /// resnet20, resnet18, resnet50, vgg16, inception-v3, alexnet, googlenet, mobilenet-v2, edsr or lenet [default:
    /// resnet20]
    #[arg(long, value_name = "NAME", help_heading = WHAT)]
    model: Option<String>,

    /// Give layers one N-th of the published channels, for small machines and tests [default: 1]
    #[arg(long, value_name = "N", help_heading = WHAT)]
    thin: Option<usize>,

    /// cifar-like, imagenet-like, bigearthnet-like, faces-like, pairs-like (made on the fly), or a folder with a folder
    /// of JPEG and PNG images for each class [default: cifar-like]
    #[arg(long, value_name = "NAME|FOLDER", help_heading = WHAT)]
    data: Option<String>,

    /// Samples to learn from: so many are generated [default: 10240], or chosen from a folder, alike for one seed
    /// [default: all]
    #[arg(long, value_name = "COUNT", help_heading = WHAT)]
    samples: Option<usize>,

    /// Samples to judge by: so many are generated [default: 1024], or chosen from a folder [default: all of its test
    /// images]
    #[arg(long, value_name = "COUNT", help_heading = WHAT)]
    test_samples: Option<usize>,

    /// Rows and columns of an image [default: what the model was published with; 32 for cifar-like, 120 for
    /// bigearthnet-like, 48 for pairs-like]
    #[arg(long, value_name = "PIXELS", help_heading = WHAT)]
    image_size: Option<usize>,

    /// Classes, of imagenet-like [default: 1000], or of a folder's table [default: as many as it has]; other data has
    /// a number of its own
    #[arg(long, value_name = "COUNT", help_heading = WHAT)]
    classes: Option<usize>,

    /// How training samples are changed each time: none, or some of flip, flip-rows, turn, rotate=DEGREES, crop=PIXELS,
    /// mixup=ALPHA, with commas between [default: what is usual for the task]
    #[arg(long, value_name = "WORDS", help_heading = WHAT)]
    augment: Option<String>,

    /// Samples of one rank in one pass [default: 32]
    #[arg(long, value_name = "SAMPLES", help_heading = HOW)]
    batch: Option<usize>,

    /// How often all samples are seen [default: 3]
    #[arg(long, value_name = "COUNT", help_heading = HOW)]
    epochs: Option<u64>,

    /// Train so many steps, whatever --epochs says
    #[arg(long, value_name = "COUNT", help_heading = HOW)]
    steps: Option<u64>,

    /// Learning rate of one rank; it is multiplied by the number of ranks [default: 0.05, or 0.001 for adam]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = HOW)]
    lr: Option<f64>,

    /// How weights follow gradients [default: sgd]
    #[arg(long, value_enum, value_name = "NAME", help_heading = HOW)]
    optimizer: Option<OptimizerArg>,

    /// How much of the last step's direction sgd keeps [default: 0.9]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, help_heading = HOW)]
    momentum: Option<f64>,

    /// How strongly weights are drawn towards zero [default: 0.0005]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = HOW)]
    weight_decay: Option<f64>,

    /// How much of the right answer's weight is spread over all answers [default: 0]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, help_heading = HOW)]
    label_smoothing: Option<f32>,

    /// Passes whose gradients are summed before a step [default: 1]
    #[arg(long, value_name = "PASSES", help_heading = HOW)]
    accumulate: Option<usize>,

    /// Epochs, or parts of one, during which the learning rate rises [default: a tenth of all, 1 at most]
    #[arg(long, value_name = "EPOCHS", allow_negative_numbers = true, help_heading = HOW)]
    warmup: Option<f64>,

    /// How the learning rate falls afterwards: cosine (to zero), step (to a tenth at 1/2 and at 3/4), none [default:
    /// cosine]
    #[arg(long, value_name = "KIND", help_heading = HOW)]
    decay: Option<Decay>,

    /// How gradients travel between ranks; they are computed in f32 in any case [default: f32]
    #[arg(long, value_enum, value_name = "KIND", help_heading = HOW)]
    precision: Option<PrecisionArg>,

    /// BatchNorm takes its statistics over so many samples [default: the batch of a rank]
    #[arg(long, value_name = "SAMPLES", help_heading = HOW)]
    norm_batch: Option<usize>,

    /// Where everything random comes from: two runs with the same seed give the same weights, bit by bit [default: 1]
    #[arg(long, value_name = "NUMBER", help_heading = HOW)]
    seed: Option<u64>,

    /// Threads of each rank that make batches; 0: the rank makes them itself [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = SPEED)]
    workers: Option<usize>,

    /// Batches that are made ahead of time [default: 4]
    #[arg(long, value_name = "COUNT", help_heading = SPEED)]
    prefetch: Option<usize>,

    /// Threads that each rank computes with [default: the cores of its host, shared by the ranks there]
    #[arg(long, value_name = "COUNT", help_heading = SPEED)]
    threads: Option<usize>,

    /// Keep a checkpoint in DIR: after each epoch, and when training is asked to stop
    #[arg(long, value_name = "DIR", help_heading = RESULTS)]
    checkpoint: Option<PathBuf>,

    /// Go on from the checkpoint in the folder of --checkpoint, if there is one, or from FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = RESULTS)]
    resume: Option<Option<PathBuf>>,

    /// Leave so many steps at the beginning out of throughput [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = RESULTS)]
    warm_up_steps: Option<usize>,

    /// Look at the test samples after each so many epochs; 0: never [default: 1, or 0 with --steps]
    #[arg(long, value_name = "EPOCHS", help_heading = RESULTS)]
    eval_every: Option<u64>,

    /// Write a line of JSON for each epoch, and one for the whole run
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    log: Option<PathBuf>,

    #[command(flatten)]
    pub(super) launch: LaunchArgs,
}

const WHAT: &str = "What is trained";
const HOW: &str = "How it learns";
const SPEED: &str = "Threads of a rank";
const RESULTS: &str = "What is kept";

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OptimizerArg {
    /// Stochastic gradient descent with momentum
    Sgd,
    /// Adam
    Adam,
}

/// How gradients travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrecisionArg {
    /// As they are
    F32,
    /// As bf16: half the bytes
    Bf16Wire,
    /// As f16: half the bytes, more digits, little range
    F16Wire,
}

/// The learning rate of one rank with Adam, where nothing is said: Adam's own.
const ADAM_RATE: f64 = 0.001;

impl TrainArgs {
    /// What is to be trained. Files are meant where the user stands, so paths are made whole.
    pub(super) fn job(&self, here: &Path) -> Result<TrainJob> {
        let mut job = TrainJob::new();
        let data = &mut job.data;
        set(&mut data.name, self.data.clone());
        if farandole_train::GENERATED.iter().all(|name| *name != data.name) && !data.name.contains("://") {
            data.name = here.join(&data.name).display().to_string();
        }
        data.samples = self.samples;
        data.test_samples = self.test_samples;
        data.image_size = self.image_size;
        data.classes = self.classes;
        data.augment = self.augment.clone();
        set(&mut job.model, self.model.clone());
        set(&mut job.thin, self.thin);
        set(&mut job.batch, self.batch);
        set(&mut job.epochs, self.epochs);
        job.steps = self.steps;
        set(&mut job.uncounted_steps, self.warm_up_steps);
        if self.optimizer == Some(OptimizerArg::Adam) {
            job.optimizer = OptimizerChoice::Adam;
            job.learning_rate = ADAM_RATE;
        }
        set(&mut job.learning_rate, self.lr);
        set(&mut job.momentum, self.momentum);
        set(&mut job.weight_decay, self.weight_decay);
        set(&mut job.label_smoothing, self.label_smoothing);
        set(&mut job.accumulate, self.accumulate);
        // A short training has a short warm-up, unless the user has said what it is to be.
        job.warmup_epochs = self.warmup.unwrap_or(job.warmup_epochs.min(0.1 * job.epochs as f64));
        set(&mut job.decay, self.decay);
        set(
            &mut job.precision,
            self.precision.map(|precision| match precision {
                PrecisionArg::F32 => Precision::F32,
                PrecisionArg::Bf16Wire => Precision::Bf16Wire,
                PrecisionArg::F16Wire => Precision::F16Wire,
            }),
        );
        job.norm_batch = self.norm_batch;
        set(&mut job.seed, self.seed);
        set(&mut job.workers, self.workers);
        set(&mut job.prefetch, self.prefetch);
        job.threads = self.threads;
        job.checkpoint = self.checkpoint.as_ref().map(|folder| here.join(folder));
        job.resume = match &self.resume {
            None => Resume::No,
            Some(None) => Resume::IfThere,
            Some(Some(file)) => Resume::From(here.join(file)),
        };
        // Whoever counts steps wants to know how fast they are.
        job.eval_every = self.eval_every.unwrap_or(u64::from(self.steps.is_none()));
        job.log = self.log.as_ref().map(|file| here.join(file));
        Ok(job)
    }
}

/// What was said counts before the default.
fn set<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}
