//! From a job to a rank that is ready to train: data, network, optimizer, and what a checkpoint knows of them.
//!
//! What a rank can get wrong by itself (a folder that its host does not have) comes first, and all ranks hear of it
//! before anything else is begun: either all are ready, or all end, and one of them says why. In an elastic job such a
//! rank ends by itself, and the others go on.

use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use farandole::burn::{Learner, Wire};
use farandole::elastic::Training;
use farandole::{ReduceOp, World};
use serde_json::json;

use super::desk::Desk;
use super::keep::{self, Found};
use super::learned::{Learned, Place};
use super::{Failed, Trainer, ends_with};
use crate::error::{Error, Result};
use crate::job::{Plan, Precision, Resume, TrainJob};
use crate::log::{Before, Log};
use crate::model::{Architecture, ModelSpec, Network};
use crate::optimizer;
use crate::progress::Voice;
use crate::share;
use crate::source;
use crate::stop::Stop;
use farandole_data::sample::Split;
use farandole_data::{Augment, DataSet};

/// Which kind of network.
pub(super) fn architecture(job: &TrainJob) -> Result<Architecture> {
    job.model.parse().map_err(|error| Error::Model(format!("--model {}: {error}", job.model)))
}

/// What is to be learned, and by what.
pub(super) fn subject(job: &TrainJob) -> Result<(Arc<dyn DataSet>, ModelSpec)> {
    let architecture = architecture(job)?;
    let data = source::open(job, architecture)?;
    let spec = ModelSpec::new(architecture, data.shape(), data.task()).seed(job.seed).thin(job.thin);
    Ok((data, spec))
}

/// Everything that a rank can make without the others.
struct Own {
    data: Arc<dyn DataSet>,
    augment: Augment,
    spec: ModelSpec,
    network: Network,
    device: Device,
}

/// Makes this process a rank, with what the others have learned, if they have begun before it.
pub(super) fn begin(job: &TrainJob, threads: usize) -> std::result::Result<Trainer, Failed> {
    if farandole::elastic::is_enabled() {
        // A rank that joins makes no call before the others let it in; so one that cannot train ends by itself, and the
        // others go on without it.
        let own = own(job)?;
        let world = farandole::init()?;
        return Ok(start(job, threads, own, world)?);
    }
    let mut world = farandole::init()?;
    let own = own(job);
    match agree(&mut world, own).and_then(|own| same_data(&mut world, own)) {
        Ok(own) => Ok(start(job, threads, own, world)?),
        Err(error) => Err(ends_with(error, &mut world)),
    }
}

fn own(job: &TrainJob) -> Result<Own> {
    job.check()?;
    let (data, spec) = subject(job)?;
    let device = Device::flex().autodiff();
    device.seed(job.seed);
    let network = Network::new(&spec, &device).map_err(|error| Error::Model(error.to_string()))?;
    let augment = source::augment(job, data.as_ref())?;
    Ok(Own { data, augment, spec, network, device })
}

/// Gets the state of the others, or of rank 0 if training begins.
fn start(job: &TrainJob, threads: usize, own: Own, world: World) -> Result<Trainer> {
    let Own { data, augment, spec, network, device } = own;
    // Not before this process is a rank: one that still waits to become one ends by a signal, as any process does.
    let stop = Stop::on_signals().map_err(|error| Error::TrainJob(format!("signals cannot be heard: {error}")))?;
    let wire = match job.precision {
        Precision::F32 => Wire::F32,
        Precision::Bf16Wire => Wire::Bf16,
        Precision::F16Wire => Wire::F16,
    };
    let optimizer = optimizer::make(job, None, &network)?;
    let mark = format!("{} ({:016x})", data.describe(), data.fingerprint());
    let learned = Learned::new(Learner::new(network, optimizer, wire), job, mark);
    let training = Training::new(learned).begin_in(world)?;
    let mut desk = Desk::new(job, threads, (data, augment, spec), (device, stop), training.world())?;
    desk.skip_changes(training.state());
    Ok(Trainer { training, desk })
}

/// What training begins with.
struct Beginning {
    network: Network,
    optimizer: ModuleOptimizer,
    at: Place,
    plan: Plan,
    /// Counts the jobs that have written the checkpoint.
    run: u64,
}

impl Trainer {
    /// Finds out what there is to go on from, and says what is going to be done.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let Trainer { training, desk } = self;
        let mut failed = Ok(());
        training.exchange(
            // Whatever else goes wrong here does so on all ranks together.
            |world, learned| match desk.find(world, learned) {
                Err(error @ Error::World(_)) => Err(error),
                found => Ok(found),
            },
            |learned, found| match found {
                Ok(Beginning { network, optimizer, at, plan, run }) => {
                    learned.progress.run = run;
                    learned.learner.set_module(network);
                    learned.learner.set_optimizer(optimizer);
                    (learned.progress.rate_ranks, learned.progress.norm_batch) = (plan.rate_ranks, plan.norm_batch);
                    learned.progress.begin(at, &plan);
                }
                Err(error) => failed = Err(error),
            },
        )?;
        failed?;
        desk.introduce(training.world(), training.state())
    }
}

impl Desk {
    /// What a checkpoint has, if there is one to go on from; else what every rank has made. All ranks call this
    /// together.
    fn find(&mut self, world: &mut World, learned: &Learned) -> Result<Beginning> {
        self.follow(world, learned)?;
        let (job, founders) = (self.job.clone(), learned.progress.founders);
        let (run, begun) = keep::begin(world, &job)?;
        let wanted = keep::wanted(&job, &self.spec, self.data.len(Split::Train), founders);
        let Found { network, state, meta } = keep::take_over(begun, learned.learner.module().clone(), &wanted)?;
        let (rate_ranks, norm_batch) = match &meta {
            Some(meta) => (meta.rate_ranks, norm_batch(&job, meta.norm_batch, &mut self.voice)),
            None => (founders, job.norm_batch.unwrap_or(job.batch)),
        };
        let steps = self.data.len(Split::Train).div_ceil(learned.global_batch()) as u64;
        let plan = Plan::new(&job, founders, steps, rate_ranks, norm_batch);
        let optimizer = optimizer::make(&job, state, &network)?;
        let at = meta.as_ref().map_or(Place::default(), |meta| Place::of(meta.epoch, meta.step, plan.steps));
        let path = job.log.as_deref().filter(|_| world.rank() == 0);
        let log = Log::open(path, if meta.is_some() { Before::Kept } else { Before::Forgotten });
        self.log = agree(world, log)?;
        Ok(Beginning { network, optimizer, at, plan, run })
    }

    /// Says what is going to be done.
    fn introduce(&mut self, world: &World, learned: &Learned) -> Result<()> {
        let (plan, at) = (self.plan(learned), learned.progress.at);
        let parameters = self.spec.parameters(&self.device).map_err(|error| Error::Model(error.to_string()))?;
        let (ranks, threads) = (world.size(), self.threads);
        let job = &self.job;
        let many = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let passes = if job.accumulate == 1 { String::new() } else { format!(" x {} passes", job.accumulate) };
        let model = format!("{} with {} parameters", self.spec.architecture, grouped(parameters));
        let who = format!("{} x {}", many(ranks, "rank"), many(threads, "thread"));
        let batch = format!("batch {}{passes} x {ranks} = {}", job.batch, plan.global_batch);
        let from = match (at, &job.resume) {
            (Place { epoch: 0, step: 0 }, Resume::IfThere) => "; there is no checkpoint to resume from yet".to_owned(),
            (Place { epoch: 0, step: 0 }, _) => String::new(),
            (at, _) => format!("; resumed after {at}"),
        };
        self.voice.say(&format!("{model} on {}", self.data.describe()));
        self.voice.say(&format!(
            "{who}, {batch}, {} in {}{from}",
            many(plan.schedule.total_steps as usize, "step"),
            many(plan.epochs as usize, "epoch")
        ));
        let facts = json!({
            "format": 1, "model": self.spec.architecture.to_string(), "parameters": parameters,
            "data": self.data.describe(), "ranks": ranks, "hosts": world.topology().hosts(), "threads": threads,
            "batch": job.batch, "accumulate": job.accumulate, "global_batch": plan.global_batch,
            "epochs": plan.epochs, "steps": plan.steps, "total_steps": plan.schedule.total_steps, "optimizer": job.optimizer.name(),
            "peak_lr": plan.schedule.peak, "precision": job.precision, "seed": job.seed,
            "resumed": { "epoch": at.epoch, "step": at.step },
        });
        self.log.write("start", facts)
    }
}

/// Whether something went well on all ranks. The first rank on which it did not says why; to the others that is known.
fn agree<T>(world: &mut World, own: Result<T>) -> Result<T> {
    let rank = world.rank() as u64;
    let mut first = [if own.is_err() { rank } else { u64::MAX }];
    world.allreduce(&mut first, ReduceOp::Min)?;
    match own {
        _ if first[0] != u64::MAX && first[0] != rank => Err(Error::SaidElsewhere(first[0] as usize)),
        own => own,
    }
}

/// Whether this rank has the data of rank 0. Hosts may have copies of their own, and where these differ ranks would
/// share out samples that are not the same, or wait for each other in steps that others do not have.
fn same_data(world: &mut World, own: Own) -> Result<Own> {
    let compared = compare_data(world, own.data.as_ref())?;
    agree(world, compared)?;
    Ok(own)
}

fn compare_data(world: &mut World, data: &dyn DataSet) -> Result<Result<()>> {
    let (own, mark) = (data.describe(), data.fingerprint());
    let theirs = share::bytes(world, format!("{mark:016x}{own}").into_bytes())?;
    let (their_mark, their) = theirs.split_at(theirs.len().min(16));
    let their = String::from_utf8_lossy(their);
    if own != their {
        return Ok(Err(Error::Data(format!("this host has other data than rank 0's: here {own}, there {their}"))));
    }
    if format!("{mark:016x}").as_bytes() != their_mark {
        let why = "as many files, but with other names or labels";
        return Ok(Err(Error::Data(format!("this host has other data than rank 0's, {why}: {own}"))));
    }
    Ok(Ok(()))
}

/// The samples over which BatchNorm takes its statistics when a run is resumed.
fn norm_batch(job: &TrainJob, before: usize, voice: &mut Voice) -> usize {
    let wished = job.norm_batch.unwrap_or(before);
    if job.batch.is_multiple_of(wished) {
        return wished;
    }
    voice.say(&format!(
        "BatchNorm took its statistics over {wished} samples until now, and the batch of a rank, {}, does not divide into such groups: \
         from here on it is over {}, and training goes on a little differently",
        job.batch, job.batch
    ));
    job.batch
}

/// A number with commas.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_commas() {
        assert_eq!([7, 999, 1000, 25_557_032].map(grouped), ["7", "999", "1,000", "25,557,032"]);
    }
}
