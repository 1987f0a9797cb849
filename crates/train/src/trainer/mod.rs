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
//! In an elastic job ranks leave and join (`farandole::elastic`). Whatever ranks do together is a *block* that counts
//! on all of them or on none; what comes next follows from the state that all have in common (`learned`). What all find
//! out together, such as a loss that is not finite, is the outcome of a block, and ends the training after it.
//!
//! Files: `prepare` makes everything ready, `step` is one step, `keep` writes and reads checkpoints, `tally` is what
//! ranks tell each other, `learned` is the state; `desk` and `seat` are what a rank has for itself.

mod desk;
mod keep;
mod learned;
mod prepare;
mod seat;
mod step;
mod tally;

use std::cell::RefCell;

use burn::tensor::Device;
use farandole::World;
use farandole::burn::average_buffers;
use farandole::elastic::Training;

use crate::error::{Error, Result};
use crate::job::TrainJob;
use crate::share;
use crate::summary;
use desk::Desk;
use learned::{Learned, Stage};

/// One rank of a job.
struct Trainer {
    training: Training<Learned>,
    desk: Desk,
}

/// How training has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs are complete.
    Complete,
    /// Somebody asked for it.
    Stopped,
}

/// Why a rank has ended before its time.
#[derive(Debug)]
pub struct Failed {
    /// The cause.
    pub error: Box<Error>,
    /// The number of the rank, if it was one at the end.
    pub rank: Option<usize>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error: Box::new(error), rank: None }
    }
}

impl From<farandole::Error> for Failed {
    fn from(error: farandole::Error) -> Failed {
        Failed::from(Error::from(error))
    }
}

/// Trains as one rank of the job that this process was started in, until it is done or somebody asks to stop.
///
/// `threads` is what this rank computes with, for the records. The last thing that is said is the summary.
///
/// # Errors
/// With the cause, which this rank should say if [`Error::is_to_be_said_by`] it.
pub fn run(job: &TrainJob, threads: usize) -> std::result::Result<Ended, Failed> {
    let mut trainer = prepare::begin(job, threads)?;
    let ended = trainer.train();
    trainer.desk.end();
    match ended {
        Ok(ended) => {
            trainer.training.finish()?;
            Ok(ended)
        }
        // The world may have ended for good, and then there is no rank any more.
        Err(error @ Error::World(_)) if !matches!(error, Error::World(farandole::Error::Overflow(_))) => {
            Err(error.into())
        }
        Err(error) => {
            let (_, mut world) = trainer.training.into_parts();
            Err(ends_with(error, &mut world))
        }
    }
}

/// Ends a rank with an error that others may have, too.
fn ends_with(error: Error, world: &mut World) -> Failed {
    if !error.is_to_be_said_by(world.rank()) {
        share::outlive_another(world);
    }
    Failed { error: Box::new(error), rank: Some(world.rank()) }
}

impl Trainer {
    fn train(&mut self) -> Result<Ended> {
        loop {
            let Learned { progress, .. } = self.training.state();
            match progress.stage {
                Stage::Prepare => self.prepare()?,
                Stage::Learn => self.learn()?,
                Stage::Average => self.average()?,
                Stage::Judge => self.judge()?,
                Stage::Keep => self.keep()?,
                Stage::SumUp => self.sum_up()?,
                Stage::Over if progress.stopped => return Ok(Ended::Stopped),
                Stage::Over => return Ok(Ended::Complete),
            }
        }
    }

    /// Makes a step.
    fn learn(&mut self) -> Result<()> {
        // Both halves of a step measure what they do, one after the other.
        let desk = RefCell::new(&mut self.desk);
        let mut failed = Ok(());
        self.training.step(
            |world, learned, _| of_all(desk.borrow_mut().compute(world, learned)),
            |learned, made| match made {
                Ok(made) => desk.borrow_mut().apply(learned, made),
                Err(error) => failed = Err(error),
            },
        )?;
        failed?;
        self.desk.tell_step(self.training.world(), self.training.state());
        Ok(())
    }

    /// Averages what ranks know of their own samples alone.
    fn average(&mut self) -> Result<()> {
        let plan = self.desk.plan(self.training.state());
        let eval_every = self.desk.job.eval_every;
        self.training.exchange(
            |world, learned| Ok::<_, Error>(average_buffers(world, learned.learner.module().clone())?),
            |learned, network| {
                learned.learner.set_module(network);
                learned.progress.averaged(eval_every, &plan);
            },
        )
    }

    /// Looks at the test samples, if there are any, unless somebody asks to stop before all are looked at.
    fn judge(&mut self) -> Result<()> {
        let desk = &mut self.desk;
        if self.training.state().progress.all.samples == 0.0 {
            desk.voice.say("training was complete already");
        }
        self.training.exchange(
            |world, learned| desk.judge(world, learned),
            |learned, (judgement, was_asked_to_stop)| {
                learned.progress.judged(judgement.as_ref(), was_asked_to_stop);
            },
        )
    }

    /// Tells of the epoch, and keeps a checkpoint.
    fn keep(&mut self) -> Result<()> {
        let desk = &mut self.desk;
        let plan = desk.plan(self.training.state());
        let (mut is_told, mut failed) = (false, Ok(()));
        self.training.exchange(
            |world, learned| {
                desk.follow(world, learned)?;
                // Whoever is rank 0 now: the one that told it may be lost.
                if world.rank() == 0 && !std::mem::replace(&mut is_told, true) {
                    desk.tell_epoch(learned)?;
                }
                of_all(desk.keep(world, learned))
            },
            |learned, kept| {
                learned.progress.kept(&plan);
                failed = kept;
            },
        )?;
        failed
    }

    /// Tells of the whole run.
    fn sum_up(&mut self) -> Result<()> {
        let desk = &mut self.desk;
        let mut is_told = false;
        self.training.exchange(
            |world, learned| {
                desk.follow(world, learned)?;
                let gathered = summary::gather(world, &desk.watch)?;
                if world.rank() == 0 && !std::mem::replace(&mut is_told, true) {
                    desk.sum_up(world, learned, gathered)?;
                }
                Ok::<_, Error>(())
            },
            |learned, ()| learned.progress.stage = Stage::Over,
        )
    }
}

/// Tells what all ranks have found out together, which is an outcome, from what has become of this one alone.
fn of_all<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error @ (Error::Checkpoint(_) | Error::NotFinite { .. } | Error::World(farandole::Error::Overflow(_)))) => {
            Ok(Err(error))
        }
        other => other.map(Ok),
    }
}

/// Limits this process to so many threads of computation. Call it before anything is computed; later it has no effect.
pub fn limit_threads(count: usize) {
    // If something else has made the threads already, there are as many as that one wanted.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count.max(1)).build_global();
}

/// Finds what would keep every rank from training, without starting any: for whoever starts them. Of data in a store
/// only the files are looked for: opening them may mean to read all of it, which the ranks do once together.
///
/// # Errors
/// With what is wrong.
pub fn check(job: &TrainJob) -> Result<()> {
    job.check()?;
    if crate::source::is_remote(job) {
        prepare::architecture(job)?;
        return crate::source::look_for(job);
    }
    let (data, spec) = prepare::subject(job)?;
    crate::source::augment(job, data.as_ref())?;
    let fits = spec.parameters(&Device::flex()).map(|_| ());
    fits.map_err(|error| Error::Model(error.to_string()))
}
