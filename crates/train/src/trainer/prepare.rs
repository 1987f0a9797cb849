//! From a job to a rank that is ready to train: data, network, optimizer, and what a checkpoint knows of them.
//!
//! What a rank can get wrong by itself (a folder that its host does not have) comes first, and all ranks hear of it
//! before anything else is begun: either all are ready, or all end, and one of them says why.

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use farandole::burn::{DistributedOptimizer, Wire, broadcast_parameters};
use farandole::{ReduceOp, World};
use serde_json::json;

use super::keep::{self, Found};
use super::{Place, Trainer};
use crate::data::shard::Shard;
use crate::data::{DataSet, Loader, LoaderConfig, SampleOrder};
use crate::error::{Error, Result};
use crate::job::{Plan, Precision, Resume, TrainJob};
use crate::log::{Before, Log};
use crate::model::{Architecture, ModelSpec, Network};
use crate::optimizer;
use crate::progress::{MAILBOX, Voice};
use crate::sample::Split;
use crate::share;
use crate::source;
use crate::stop::Stop;
use crate::stopwatch::Stopwatch;

/// What is to be learned, and by what.
pub(super) fn subject(job: &TrainJob) -> Result<(Arc<dyn DataSet>, ModelSpec)> {
    let architecture: Architecture =
        job.model.parse().map_err(|error| Error::Model(format!("--model {}: {error}", job.model)))?;
    let data = source::open(job, architecture)?;
    let spec = ModelSpec::new(architecture, data.shape(), data.task()).seed(job.seed).thin(job.thin);
    Ok((data, spec))
}

/// Everything that a rank can make without the others.
struct Own {
    data: Arc<dyn DataSet>,
    spec: ModelSpec,
    network: Network,
    device: Device,
    train: Loader,
    test: Option<Loader>,
    stop: Stop,
}

/// Makes this rank ready. All ranks call this together.
pub(super) fn prepare<'w>(world: &'w mut World, job: &TrainJob, threads: usize) -> Result<Trainer<'w>> {
    let own = own(job, world);
    let own = agree(world, own)?;
    let same = same_data(world, own.data.as_ref())?;
    agree(world, same)?;
    let mailbox = std::env::var_os(MAILBOX).map(PathBuf::from);
    let mut voice = Voice::new(world.rank(), mailbox.as_deref());
    let watch = Stopwatch::new(world.recorder(), job.uncounted_steps);
    let Own { data, spec, network, device, train, test, stop } = own;
    let ranks = world.size();

    let begun = keep::begin(world, job)?;
    let wanted = keep::wanted(job, &spec, data.len(Split::Train), ranks);
    let Found { network, state, meta } = keep::take_over(begun, network, &wanted)?;
    let network = broadcast_parameters(world, network, 0)?;
    let (rate_ranks, norm_batch) = match &meta {
        Some(meta) => (meta.rate_ranks, norm_batch(job, meta.norm_batch, &mut voice)),
        None => (ranks, job.norm_batch.unwrap_or(job.batch)),
    };
    let plan = Plan::new(job, ranks, train.steps() as u64, rate_ranks, norm_batch);
    let inside = optimizer::make(job, state, &network)?;
    let wire = match job.precision {
        Precision::F32 => Wire::F32,
        Precision::Bf16Wire => Wire::Bf16,
        Precision::F16Wire => Wire::F16,
    };
    let optimizer = DistributedOptimizer::accumulating(world, &network, inside, wire, job.accumulate)?;
    let at = meta.as_ref().map_or(Place { epoch: 0, step: 0 }, |meta| Place::of(meta.epoch, meta.step, plan.steps));
    let path = job.log.as_deref().filter(|_| world.rank() == 0);
    let log = Log::open(path, if meta.is_some() { Before::Kept } else { Before::Forgotten });
    let log = agree(world, log)?;
    let shard = Shard {
        rank: world.rank(),
        world_size: ranks,
        batch: job.batch * job.accumulate,
        length: data.len(Split::Train),
    };
    let job = job.clone();
    let network = Some(network);
    let mut trainer = Trainer {
        job,
        plan,
        world,
        voice,
        log,
        stop,
        watch,
        device,
        data,
        spec,
        train,
        test,
        network,
        optimizer,
        at,
        threads,
        shard,
    };
    trainer.introduce()?;
    Ok(trainer)
}

fn own(job: &TrainJob, world: &World) -> Result<Own> {
    let stop = Stop::on_signals().map_err(|error| Error::TrainJob(format!("signals cannot be heard: {error}")))?;
    job.check()?;
    let (data, spec) = subject(job)?;
    let device = Device::flex().autodiff();
    device.seed(job.seed);
    let network = Network::new(&spec, &device).map_err(|error| Error::Model(error.to_string()))?;
    let config = LoaderConfig {
        rank: world.rank(),
        world_size: world.size(),
        batch: job.batch * job.accumulate,
        workers: job.workers,
        prefetch: job.prefetch,
        seed: job.seed,
        augment: source::augment(job, data.as_ref())?,
        order: SampleOrder::Shuffled,
        recorder: Some(Arc::clone(world.recorder())),
    };
    let loader =
        |split, config| Loader::new(Arc::clone(&data), split, config).map_err(|error| Error::Data(error.to_string()));
    let train = loader(Split::Train, config.clone())?;
    let test = match data.is_empty(Split::Test) || job.eval_every == 0 {
        true => None,
        false => Some(loader(Split::Test, LoaderConfig { order: SampleOrder::InOrder, batch: job.batch, ..config })?),
    };
    Ok(Own { data, spec, network, device, train, test, stop })
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
fn same_data(world: &mut World, data: &dyn DataSet) -> Result<Result<()>> {
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

impl Trainer<'_> {
    /// Says what is going to be done.
    fn introduce(&mut self) -> Result<()> {
        let parameters = self.spec.parameters(&self.device).map_err(|error| Error::Model(error.to_string()))?;
        let (ranks, threads) = (self.world.size(), self.threads);
        let job = &self.job;
        let many = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let passes = if job.accumulate == 1 { String::new() } else { format!(" x {} passes", job.accumulate) };
        let model = format!("{} with {} parameters", self.spec.architecture, grouped(parameters));
        let who = format!("{} x {}", many(ranks, "rank"), many(threads, "thread"));
        let batch = format!("batch {}{passes} x {ranks} = {}", job.batch, self.plan.global_batch);
        let from = match (self.at, &job.resume) {
            (Place { epoch: 0, step: 0 }, Resume::IfThere) => "; there is no checkpoint to resume from yet".to_owned(),
            (Place { epoch: 0, step: 0 }, _) => String::new(),
            (at, _) => format!("; resumed after {at}"),
        };
        self.voice.say(&format!("{model} on {}", self.data.describe()));
        self.voice.say(&format!(
            "{who}, {batch}, {} in {}{from}",
            many(self.plan.schedule.total_steps as usize, "step"),
            many(self.plan.epochs as usize, "epoch")
        ));
        let facts = json!({
            "format": 1, "model": self.spec.architecture.to_string(), "parameters": parameters,
            "data": self.data.describe(), "ranks": ranks, "hosts": self.world.topology().hosts(), "threads": threads,
            "batch": job.batch, "accumulate": job.accumulate, "global_batch": self.plan.global_batch,
            "epochs": self.plan.epochs, "steps": self.plan.steps, "total_steps": self.plan.schedule.total_steps, "optimizer": job.optimizer.name(),
            "peak_lr": self.plan.schedule.peak, "precision": job.precision, "seed": job.seed,
            "resumed": { "epoch": self.at.epoch, "step": self.at.step },
        });
        self.log.write("start", facts)
    }
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
