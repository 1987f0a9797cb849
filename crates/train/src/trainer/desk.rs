//! What a rank has for itself, and does for itself: its data and loaders, its clock, its voice.
//!
//! Rank 0 speaks for all, and writes the log. Ranks are numbered anew when some leave or join, so a rank looks before
//! whatever it does with the others whether it is still the same one ([`Desk::follow`]).

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use farandole::publish::Publisher;
use farandole::{Phase, World};
use serde_json::json;

use super::learned::{Changed, Learned};
use super::seat::Seat;
use crate::error::Result;
use crate::evaluate::{Judgement, evaluate};
use crate::job::{Plan, TrainJob};
use crate::log::{Before, Log};
use crate::model::ModelSpec;
use crate::progress::{MAILBOX, TrainProgress, Voice};
use crate::stop::Stop;
use crate::stopwatch::Stopwatch;
use crate::summary::{self, Facts, Gathered, Metrics, RankChange};
use farandole_data::sample::Split;
use farandole_data::{Augment, DataSet};

/// See the module's text.
pub(super) struct Desk {
    pub(super) job: TrainJob,
    pub(super) threads: usize,
    pub(super) data: Arc<dyn DataSet>,
    pub(super) augment: Augment,
    pub(super) spec: ModelSpec,
    pub(super) device: Device,
    pub(super) stop: Stop,
    pub(super) watch: Stopwatch,
    pub(super) voice: Voice,
    pub(super) log: Log,
    pub(super) publisher: Publisher,
    /// Made when it is first needed.
    pub(super) seat: Option<Seat>,
    /// The rank whose voice it has.
    speaks_as: usize,
    /// Changes of ranks that were told of.
    changes_told: usize,
}

impl Desk {
    pub(super) fn new(
        job: &TrainJob,
        threads: usize,
        (data, augment, spec): (Arc<dyn DataSet>, Augment, ModelSpec),
        (device, stop): (Device, Stop),
        world: &World,
    ) -> Result<Desk> {
        Ok(Desk {
            job: job.clone(),
            threads,
            data,
            augment,
            spec,
            device,
            stop,
            watch: Stopwatch::new(world.recorder(), job.uncounted_steps),
            voice: voice(world.rank()),
            log: Log::open(None, Before::Kept)?,
            publisher: world.publisher(),
            seat: None,
            speaks_as: world.rank(),
            changes_told: 0,
        })
    }

    /// What follows from the job and the number of ranks with which it began.
    pub(super) fn plan(&self, learned: &Learned) -> Plan {
        let steps = self.data.len(Split::Train).div_ceil(learned.global_batch()) as u64;
        let progress = &learned.progress;
        Plan::new(&self.job, progress.founders.max(1), steps, progress.rate_ranks, progress.norm_batch)
    }

    /// Takes its seat among the ranks of now.
    pub(super) fn follow(&mut self, world: &World, learned: &Learned) -> Result<&mut Seat> {
        if self.seat.as_ref().is_none_or(|seat| !seat.is_in(world)) {
            let cut = (learned.global_batch(), learned.passes(world.size()));
            // The old one first: its threads need not run beside those of the new one.
            self.seat = None;
            self.watch.record_with(world.recorder());
            self.seat = Some(Seat::new(world, &self.job, &self.data, self.augment.clone(), cut)?);
            self.speak_as(world.rank())?;
            self.tell_changes(&learned.progress.changes)?;
        }
        Ok(self.seat.as_mut().expect("invariant: a rank has a seat now"))
    }

    /// Speaks and writes if this is rank 0 now.
    fn speak_as(&mut self, rank: usize) -> Result<()> {
        if rank == self.speaks_as {
            return Ok(());
        }
        (self.voice, self.speaks_as) = (voice(rank), rank);
        self.log = Log::open(self.job.log.as_deref().filter(|_| rank == 0), Before::Kept)?;
        Ok(())
    }

    fn tell_changes(&mut self, changes: &[Changed]) -> Result<()> {
        for change in changes.iter().skip(self.changes_told) {
            let &Changed { at, before, ranks, joined } = change;
            let many = if ranks == 1 { "rank goes" } else { "ranks go" };
            let lost = change.lost();
            self.voice.say(&format!("{ranks} {many} on after {at}, {before} before: {lost} lost, {joined} joined"));
            let facts = json!({
                "epoch": at.epoch, "step": at.step, "before": before, "ranks": ranks, "lost": lost, "joined": joined,
            });
            self.log.write("change", facts)?;
        }
        self.changes_told = changes.len();
        Ok(())
    }

    /// A rank that has joined has nothing to tell of what was before it.
    pub(super) fn skip_changes(&mut self, learned: &Learned) {
        self.changes_told = learned.progress.changes.len();
    }

    /// Looks at the test samples, if there are any, and says whether somebody asked to stop before all were looked at.
    pub(super) fn judge(&mut self, world: &mut World, learned: &Learned) -> Result<(Option<Judgement>, bool)> {
        self.follow(world, learned)?;
        let Desk { seat, watch, spec, stop, .. } = self;
        let seat = seat.as_mut().expect("invariant: a rank has a seat now");
        let Some(loader) = &mut seat.test else { return Ok((None, false)) };
        let network = learned.learner.module();
        let judgement = watch.time(Phase::Evaluation, || evaluate(world, network, loader, spec, stop))?;
        self.warn(world);
        let was_asked_to_stop = judgement.is_none();
        Ok((judgement, was_asked_to_stop))
    }

    /// Says which samples could not be read here.
    fn warn(&self, world: &World) {
        for notice in self.seat.iter().flat_map(Seat::take_notices) {
            Voice::warn(world.rank(), &notice);
        }
    }

    /// Says that a step is over.
    pub(super) fn tell_step(&mut self, world: &World, learned: &Learned) {
        self.warn(world);
        let (plan, progress) = (self.plan(learned), &learned.progress);
        let is_over = progress.at.step == 0;
        let sums = &progress.epoch_sums;
        self.voice.step(TrainProgress {
            epoch: progress.at.epoch + u64::from(!is_over),
            epochs: plan.epochs,
            step: if is_over { plan.steps } else { progress.at.step },
            steps: plan.steps,
            steps_done: progress.number(&plan),
            steps_in_all: plan.schedule.total_steps,
            loss: progress.last_loss,
            samples_per_s: sums.samples / sums.seconds,
        });
    }

    fn metrics(&self, judgement: &Judgement) -> Metrics {
        summary::metrics(judgement, self.spec.task, &self.data.unit())
    }

    /// Says what has come of an epoch, and what becomes of the run if somebody asked to stop.
    pub(super) fn tell_epoch(&mut self, learned: &Learned) -> Result<()> {
        let progress = &learned.progress;
        if !progress.stopped || progress.at.step == 0 {
            self.tell_complete_epoch(learned)?;
        }
        if progress.stopped {
            self.voice.say(&format!("asked to stop after {}", progress.at));
        }
        Ok(())
    }

    fn tell_complete_epoch(&mut self, learned: &Learned) -> Result<()> {
        let (plan, progress) = (self.plan(learned), &learned.progress);
        let (epoch, epochs) = (progress.at.epoch + u64::from(progress.at.step > 0), plan.epochs);
        let rate = plan.schedule.rate(progress.number(&plan).saturating_sub(1));
        let judgement = progress.judgement(self.spec.task).filter(|_| progress.judged_now);
        let metrics = judgement.as_ref().map(|judgement| self.metrics(judgement));
        let sums = &progress.epoch_sums;
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
            "epoch": epoch, "epochs": epochs, "steps": plan.steps, "lr": rate, "loss": sums.loss(),
            "samples": sums.samples, "seconds": sums.seconds, "samples_per_s": speed, "replaced": sums.replaced,
            "test": metrics.as_ref().map(summary::metrics_json),
            "test_left_out": judgement.as_ref().map(|judgement| judgement.left_out),
        });
        self.log.write("epoch", facts)
    }

    /// Says what has come of the whole run.
    pub(super) fn sum_up(&mut self, world: &World, learned: &Learned, gathered: Gathered) -> Result<()> {
        let (plan, progress) = (self.plan(learned), &learned.progress);
        let judgement = progress.judgement(self.spec.task);
        let facts = Facts {
            job: &self.job,
            plan: &plan,
            data: self.data.describe(),
            model: self.spec.architecture.to_string(),
            hosts: world.topology().hosts(),
            threads: self.threads,
            epochs_done: progress.at.epoch,
            samples: progress.all.samples,
            loss: progress.all.loss(),
            seconds: learned.began.elapsed().as_secs_f64(),
            stopped: progress.stopped,
            metrics: judgement.map(|judgement| self.metrics(&judgement)),
            gathered,
            changes: progress.changes.iter().map(shown).collect(),
        };
        for line in facts.text() {
            self.voice.say(&line);
        }
        self.log.write("summary", facts.json())
    }

    /// Nothing more will be said.
    pub(super) fn end(&mut self) {
        self.voice.end();
    }
}

/// A change as the summary has it.
fn shown(change: &Changed) -> RankChange {
    let &Changed { at, before, ranks, joined } = change;
    RankChange { at: at.to_string(), before, ranks, joined }
}

/// The voice of a rank.
fn voice(rank: usize) -> Voice {
    Voice::new(rank, std::env::var_os(MAILBOX).map(PathBuf::from).as_deref())
}
