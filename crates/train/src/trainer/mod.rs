//! The training loop of one rank.
//!
//! All ranks run the same loop over the same number of steps, and after each of them have the same weights. A step is
//! this, on each rank: take the rank's share of the global batch; forward, in as many passes as gradients are to be
//! accumulated over; backward, during which gradients leave for the other ranks as soon as they are known; wait for the
//! averages, and let the optimizer change the weights. The gradient of a step is the mean over the samples of the
//! *global* batch, however they are cut: a pass's loss is weighed by its share of them, and a rank without samples
//! contributes nothing.
//!
//! Each step also adds up a few numbers over all ranks (the `tally`): the loss, how many samples could not be read, who
//! was asked to stop, whose loss is not finite any more. Every rank sees the same sums before it changes its weights,
//! so that all go on, stop or give up together.
//!
//! Files: `prepare` makes everything ready, `step` is one step, `keep` writes and reads checkpoints, `tally` is what
//! ranks tell each other.

mod keep;
mod prepare;
mod step;
mod tally;

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use farandole::burn::{DistributedOptimizer, average_buffers};
use farandole::{Phase, World};
use serde_json::json;

use crate::data::shard::Shard;
use crate::data::{DataSet, Loader};
use crate::error::{Error, Result};
use crate::evaluate::{Judgement, evaluate};
use crate::job::{Plan, TrainJob};
use crate::log::Log;
use crate::model::{ModelSpec, Network};
use crate::progress::{TrainProgress, Voice};
use crate::share;
use crate::stop::Stop;
use crate::stopwatch::Stopwatch;
use crate::summary::{self, Facts, Metrics};
use tally::Sums;

/// One rank of a job.
struct Trainer<'w> {
    job: TrainJob,
    plan: Plan,
    world: &'w mut World,
    voice: Voice,
    log: Log,
    stop: Stop,
    watch: Stopwatch,
    device: Device,
    data: Arc<dyn DataSet>,
    spec: ModelSpec,
    train: Loader,
    test: Option<Loader>,
    /// Always there between two steps; the optimizer takes it and gives it back, because it changes weights in place
    /// only if nobody else holds them.
    network: Option<Network>,
    optimizer: DistributedOptimizer,
    /// How far it is.
    at: Place,
    threads: usize,
    /// The law by which batches are cut.
    shard: Shard,
}

/// How far training is. There is one way to say it: where the last step of an epoch is done, the epoch is complete and
/// no step of the next one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Epochs that are complete.
    epoch: u64,
    /// Steps of the next one that are done; fewer than it has.
    step: u64,
}

impl Place {
    /// Where somebody is who has done so many steps of the epoch after so many, be they all it has.
    fn of(epoch: u64, step: u64, steps: u64) -> Place {
        Place { epoch: epoch.saturating_add(step / steps.max(1)), step: step % steps.max(1) }
    }

    /// One step further, where epochs have so many.
    fn after_step(self, steps: u64) -> Place {
        if self.step + 1 < steps {
            Place { step: self.step + 1, ..self }
        } else {
            Place { epoch: self.epoch + 1, step: 0 }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.step == 0 {
            write!(f, "epoch {}", self.epoch)
        } else {
            write!(f, "step {} of epoch {}", self.step, self.epoch + 1)
        }
    }
}

/// How training has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs are complete.
    Complete,
    /// Somebody asked for it.
    Stopped,
}

/// Trains as one rank of the job that this process was started in, until it is done or somebody asks to stop.
///
/// `threads` is what this rank computes with, for the records. The last thing that is said is the summary.
///
/// # Errors
/// With the cause, which this rank should say if [`Error::is_to_be_said_by`] it.
pub fn run(job: &TrainJob, threads: usize) -> Result<Ended> {
    let mut world = farandole::init()?;
    let ended = prepare::prepare(&mut world, job, threads).and_then(|mut trainer| {
        let ended = trainer.train();
        trainer.voice.end();
        ended
    });
    if ended.as_ref().is_err_and(|error| !error.is_to_be_said_by(world.rank())) {
        share::outlive_another(&mut world);
    }
    ended
}

impl Trainer<'_> {
    fn train(&mut self) -> Result<Ended> {
        let began = Instant::now();
        let mut all = Sums::default();
        let mut last_judgement = None;
        let mut ended = Ended::Complete;
        while self.number() < self.plan.schedule.total_steps && ended == Ended::Complete {
            let (sums, how) = self.epoch()?;
            ended = how;
            all.add(&sums);
            let network = self.network.take().expect("invariant: between steps the network is here");
            self.network = Some(average_buffers(self.world, network)?);
            let last = self.number() == self.plan.schedule.total_steps;
            let due = self.job.eval_every > 0 && (self.at.epoch.is_multiple_of(self.job.eval_every) || last);
            let mut judgement = None;
            if due && ended == Ended::Complete {
                (judgement, ended) = self.judge()?;
            }
            if ended == Ended::Complete || self.at.step == 0 {
                self.tell_epoch(&sums, judgement.as_ref())?;
            }
            last_judgement = judgement.or(last_judgement);
            if ended == Ended::Stopped {
                self.voice.say(&format!("asked to stop after {}", self.at));
            }
            self.keep()?;
        }
        if ended == Ended::Complete && all.samples == 0.0 {
            self.voice.say("training was complete already");
            (last_judgement, ended) = self.judge()?;
        }
        self.sum_up(&all, last_judgement.as_ref(), ended, began)?;
        Ok(ended)
    }

    /// Steps that are done, since the very beginning.
    fn number(&self) -> u64 {
        self.at.epoch * self.plan.steps + self.at.step
    }

    /// One epoch, or what is left of it, or of the run.
    fn epoch(&mut self) -> Result<(Sums, Ended)> {
        let epoch = self.at.epoch;
        self.world.epoch(epoch);
        let mut batches = self.train.epoch(epoch, self.at.step as usize);
        let mut sums = Sums::default();
        while self.at.epoch == epoch && self.number() < self.plan.schedule.total_steps {
            let step = self.step(&mut batches)?;
            let number_in_epoch = self.at.step + 1;
            self.at = self.at.after_step(self.plan.steps);
            sums.add(&step);
            for notice in self.train.take_notices() {
                Voice::warn(self.world.rank(), &notice);
            }
            self.voice.step(TrainProgress {
                epoch: epoch + 1,
                epochs: self.plan.epochs,
                step: number_in_epoch,
                steps: self.plan.steps,
                steps_done: self.number(),
                steps_in_all: self.plan.schedule.total_steps,
                loss: step.loss(),
                samples_per_s: sums.samples / sums.seconds,
            });
            if step.stops > 0.0 {
                return Ok((sums, Ended::Stopped));
            }
        }
        Ok((sums, Ended::Complete))
    }

    /// Looks at the test samples, if there are any, unless somebody asks to stop before all are looked at.
    fn judge(&mut self) -> Result<(Option<Judgement>, Ended)> {
        let Some(loader) = &mut self.test else { return Ok((None, Ended::Complete)) };
        let network = self.network.as_ref().expect("invariant: between steps the network is here");
        let (world, spec, stop) = (&mut *self.world, &self.spec, &self.stop);
        let judgement = self.watch.time(Phase::Evaluation, || evaluate(world, network, loader, spec, stop))?;
        for notice in loader.take_notices() {
            Voice::warn(self.world.rank(), &notice);
        }
        let ended = if judgement.is_some() { Ended::Complete } else { Ended::Stopped };
        Ok((judgement, ended))
    }

    fn metrics(&self, judgement: &Judgement) -> Metrics {
        summary::metrics(judgement, self.spec.task, &self.data.unit())
    }

    fn tell_epoch(&mut self, sums: &Sums, judgement: Option<&Judgement>) -> Result<()> {
        let (epoch, epochs) = (self.at.epoch + u64::from(self.at.step > 0), self.plan.epochs);
        let rate = self.plan.schedule.rate(self.number().saturating_sub(1));
        let metrics = judgement.map(|judgement| self.metrics(judgement));
        let speed = sums.samples / sums.seconds;
        let mut line = format!("epoch {epoch}/{epochs}  loss {:.4}", sums.loss());
        if let Some(metrics) = &metrics {
            line += &format!("  test: {}", summary::metrics_text(metrics));
        }
        line += &format!("  {speed:.1} samples/s");
        if sums.replaced > 0.0 {
            let samples = if sums.replaced == 1.0 { "sample" } else { "samples" };
            line += &format!("  ({} {samples} could not be read)", sums.replaced);
        }
        self.voice.say(&line);
        let facts = json!({
            "epoch": epoch, "epochs": epochs, "steps": self.plan.steps, "lr": rate, "loss": sums.loss(),
            "samples": sums.samples, "seconds": sums.seconds, "samples_per_s": speed, "replaced": sums.replaced,
            "test": metrics.as_ref().map(summary::metrics_json),
            "test_left_out": judgement.map(|judgement| judgement.left_out),
        });
        self.log.write("epoch", facts)
    }

    fn sum_up(&mut self, all: &Sums, judgement: Option<&Judgement>, ended: Ended, began: Instant) -> Result<()> {
        let gathered = summary::gather(self.world, &self.watch)?;
        let facts = Facts {
            job: &self.job,
            plan: &self.plan,
            data: self.data.describe(),
            model: self.spec.architecture.to_string(),
            hosts: self.world.topology().hosts(),
            threads: self.threads,
            epochs_done: self.at.epoch,
            samples: all.samples,
            loss: all.loss(),
            seconds: began.elapsed().as_secs_f64(),
            stopped: ended == Ended::Stopped,
            metrics: judgement.map(|judgement| self.metrics(judgement)),
            gathered,
        };
        for line in facts.text() {
            self.voice.say(&line);
        }
        self.log.write("summary", facts.json())
    }
}

/// Limits this process to so many threads of computation. Call it before anything is computed; later it has no effect.
pub fn limit_threads(count: usize) {
    // If something else has made the threads already, there are as many as that one wanted.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count.max(1)).build_global();
}

/// Finds what would keep every rank from training, without starting any: for whoever starts them.
///
/// # Errors
/// With what is wrong.
pub fn check(job: &TrainJob) -> Result<()> {
    job.check()?;
    let (data, spec) = prepare::subject(job)?;
    crate::source::augment(job, data.as_ref())?;
    let fits = spec.parameters(&Device::flex()).map(|_| ());
    fits.map_err(|error| Error::Model(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_of_an_epoch_completes_it() {
        let (steps, mut at) = (3, Place { epoch: 0, step: 0 });
        let mut told = Vec::new();
        for _ in 0..4 {
            at = at.after_step(steps);
            told.push(at.to_string());
        }
        assert_eq!(told, ["step 1 of epoch 1", "step 2 of epoch 1", "epoch 1", "step 1 of epoch 2"]);
        assert_eq!(Place { epoch: 4, step: 0 }.after_step(1), Place { epoch: 5, step: 0 });
        assert_eq!(
            [Place::of(4, 2, 3), Place::of(4, 3, 3)],
            [Place { epoch: 4, step: 2 }, Place { epoch: 5, step: 0 }]
        );
    }
}
