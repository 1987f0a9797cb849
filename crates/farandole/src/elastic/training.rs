//! Steps that count on all ranks or on none, in a plain loop: [`Training`].
//!
//! ```
//! use farandole::ReduceOp;
//! use farandole::elastic::{Samples, Training};
//!
//! let samples = Samples::for_each_rank(1000, 32).shuffled(1);
//! let mut training = Training::new(vec![0.0f32; 8]).samples(samples).begin()?;
//! while training.epoch() < 3 {
//!     training.step(
//!         |world, weights, batch| {
//!             let mut gradient = vec![0.0f32; weights.len()];    // … of batch.samples, by the weights …
//!             world.allreduce(&mut gradient, ReduceOp::Average)?;
//!             Ok::<_, farandole::Error>(gradient)
//!         },
//!         |weights, gradient| weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope),
//!     )?;
//! }
//! let weights = training.finish()?;
//! # assert_eq!(weights, vec![0.0; 8]);
//! # Ok::<(), farandole::Error>(())
//! ```
//!
//! The state is what ranks have in memory ([`ElasticState`]). Nothing is copied as long as nothing happens.
//!
//! **What a step is.** A *block* is one call of [`Training::step`] or [`Training::exchange`]. It has two halves. The
//! first one *computes*, together with the other ranks: it has the world, and may look at the state. The second one
//! *applies* what came of it to the state: it has no world, and cannot fail. A block counts on a rank when its second
//! half has run, and the samples of a step are used in the same moment. In the first half of every block ranks wait for
//! each other at least once, as they do for gradients.
//!
//! **Why ranks agree.** Every rank applies what all have computed, or nothing. When a rank is lost, some survivors may
//! have everything of the block under way, and apply it, while others hear of the loss before. Both come to the next
//! generation, at their next collective call at the latest, and compare how many blocks they have completed
//! (`standing`). Those differ by one at most, because nobody completes two blocks without the others. Whoever is ahead
//! sends its state to those behind, for whom the block is done. If nobody is ahead, all states have the same bits and
//! nothing is sent; a step is then *repeated* with its samples dealt anew, or *dropped* and its samples passed over.
//!
//! Who has just started has completed nothing, and gets everything. So a training begins with a broadcast from rank 0,
//! and a process that joins needs no code of its own, if what its loop does next follows from the state and from
//! [`Training::epoch`], [`Training::position`] and [`Training::steps`] alone.
//!
//! With [`Builder::streamed`] most of it comes before that, while the others go on (`joining`).
//!
//! **Who wants to join** is asked once for every step, in a collective that is begun after one step and looked at after
//! the next: it costs no wait, and all ranks see the same answer after the same step.
//!
//! Invariant: after every block all ranks have completed the same blocks and have the same state, and the place in the
//! samples is behind exactly those that are in the state (and those that were dropped).
//!
//! In a job of a fixed size, and in a world of one, all of it works the same; an error of a lost rank is returned.

use std::time::Instant;

use farandole_plan::ReduceOp;
use farandole_trace::event::{RecoveryStage, StepFate};

use super::joining::Streams;
use super::samples::{SamplePlace, Samples, StepBatch};
use super::standing::{Decision, Standing, decide, pause_before_retry};
use super::state::{ElasticState, WorldChange};
use super::streamed::Replay;
use super::{candidates, is_enabled, leave};
use crate::error::{Error, Result};
use crate::named::Pending;
use crate::setup::Setup;
use crate::world::World;

/// What becomes of a step during which a rank was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossPolicy {
    /// Its samples are dealt to the ranks that are left, and it is made again.
    #[default]
    Repeat,
    /// Its samples are passed over.
    Drop,
}

/// How a step came to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// This rank has made it.
    Made,
    /// A rank was lost before this one had everything; another one had, and has sent its state.
    Received,
    /// A rank was lost, and the step was dropped ([`LossPolicy::Drop`]).
    Dropped,
}

/// A training that is about to begin. See [`Training`].
#[derive(Debug)]
pub struct Builder<S> {
    pub(super) state: S,
    samples: Option<Samples>,
    on_loss: LossPolicy,
    check_every: u64,
    pub(super) setup: Setup,
    place: SamplePlace,
    /// If the state is streamed.
    pub(super) replay: Option<Replay<S>>,
}

/// A training that goes on when ranks leave or join. See the module's text.
#[derive(Debug)]
pub struct Training<S> {
    /// Always there, except while a generation is left for the next one.
    world: Option<World>,
    pub(super) state: S,
    samples: Option<Samples>,
    on_loss: LossPolicy,
    check_every: u64,
    setup: Setup,
    /// What this rank brings to the next generation.
    pub(super) standing: Standing,
    /// If the state is streamed, from this process or to it.
    pub(super) streams: Option<Streams<S>>,
    /// The order of an epoch.
    order: (u64, Vec<usize>),
    /// Whether somebody wants to join: asked after the last step.
    check: Option<Pending<Vec<u64>>>,
    /// Whether no step was made in this generation yet.
    is_fresh: bool,
}

impl<S: ElasticState> Builder<S> {
    /// What is learned from. Without it, batches have no samples, and steps are counted alone.
    pub fn samples(self, samples: Samples) -> Builder<S> {
        Builder { samples: Some(samples), ..self }
    }

    /// What becomes of a step during which a rank was lost; it is repeated by default.
    pub fn on_loss(self, on_loss: LossPolicy) -> Builder<S> {
        Builder { on_loss, ..self }
    }

    /// Looks after every so many steps whether processes want to join; after each by default.
    pub fn check_every(self, steps: u64) -> Builder<S> {
        Builder { check_every: steps.max(1), ..self }
    }

    /// How worlds are set up.
    pub fn setup(self, setup: Setup) -> Builder<S> {
        Builder { setup, ..self }
    }

    /// Where it begins: what a checkpoint says. That of rank 0 counts, with its state.
    pub fn starting_at(self, place: SamplePlace) -> Builder<S> {
        Builder { place, ..self }
    }

    /// Makes this process a rank of its job, and gets the state of the others, or of rank 0 if the job begins.
    ///
    /// # Errors
    /// If the others cannot be found, or their state does not fit.
    pub fn begin(self) -> Result<Training<S>> {
        match self.replay.filter(|_| is_enabled()) {
            Some(replay) => self.begin_streamed(replay),
            None => {
                let world = self.setup.clone().init()?;
                self.begin_in(world)
            }
        }
    }

    /// The same in a world that there is already. In an elastic job nobody has made a collective call in it: a process
    /// that joins would make it while the others train.
    ///
    /// # Errors
    /// As [`Builder::begin`].
    pub fn begin_in(self, world: World) -> Result<Training<S>> {
        let streams = self.replay.filter(|_| is_enabled()).map(Streams::new);
        self.begin_with(world, streams)
    }

    pub(super) fn begin_with(self, world: World, streams: Option<Streams<S>>) -> Result<Training<S>> {
        let Builder { state, samples, on_loss, check_every, setup, place, replay: _ } = self;
        samples.as_ref().map_or(Ok(()), Samples::check)?;
        let mut training = Training {
            world: Some(world),
            state,
            samples,
            on_loss,
            check_every,
            setup,
            standing: Standing::of_nobody(place),
            streams,
            order: (u64::MAX, Vec::new()),
            check: None,
            is_fresh: true,
        };
        training.agree_at_last()?;
        Ok(training)
    }
}

impl<S: ElasticState> Training<S> {
    /// A training of this state; [`Builder::begin`] begins it.
    #[expect(clippy::new_ret_no_self, reason = "what is not begun is no training yet")]
    pub fn new(state: S) -> Builder<S> {
        let (samples, on_loss, setup) = (None, LossPolicy::default(), Setup::default());
        Builder { state, samples, on_loss, check_every: 1, setup, place: SamplePlace::default(), replay: None }
    }

    /// The state, the same on all ranks.
    pub fn state(&self) -> &S {
        &self.state
    }

    pub(super) fn world_mut(&mut self) -> &mut World {
        self.world.as_mut().expect(HERE)
    }

    /// The job as it is now. Collective calls belong into [`Training::step`] and [`Training::exchange`].
    pub fn world(&self) -> &World {
        self.world.as_ref().expect(HERE)
    }

    /// How many steps count, since the training began.
    pub fn steps(&self) -> u64 {
        self.standing.steps
    }

    /// Epochs that are complete.
    pub fn epoch(&self) -> u64 {
        self.standing.place.epoch
    }

    /// Samples of the epoch that are used.
    pub fn position(&self) -> usize {
        self.standing.place.position
    }

    /// Makes a step. `compute` may be called several times, with other ranks and samples; what it changes besides the
    /// world is its own affair. `apply` is called once at most, and not if another rank's state is taken over.
    ///
    /// # Errors
    /// With that of `compute`, unless the world has ended with it and the job is elastic; or if the job cannot go on.
    /// What all ranks find out together (a loss that is not finite) is better a value than an error: whoever ends
    /// first with an error is a lost rank for the others.
    pub fn step<T, E: From<Error>>(
        &mut self,
        compute: impl FnMut(&mut World, &S, &StepBatch) -> std::result::Result<T, E>,
        apply: impl FnOnce(&mut S, T),
    ) -> std::result::Result<StepOutcome, E> {
        self.step_told(compute, |_| None, apply)
    }

    /// A step of which followers of this state are told what they need to make it, too.
    pub(super) fn step_told<T, E: From<Error>>(
        &mut self,
        mut compute: impl FnMut(&mut World, &S, &StepBatch) -> std::result::Result<T, E>,
        tell: impl FnOnce(&T) -> Option<Vec<u8>>,
        apply: impl FnOnce(&mut S, T),
    ) -> std::result::Result<StepOutcome, E> {
        let before = self.standing.completed;
        let made = loop {
            let batch = self.batch();
            let world = self.world.as_mut().expect(HERE);
            match compute(world, &self.state, &batch) {
                Ok(made) => break made,
                Err(error) => self.recover_from(error, self.on_loss)?,
            }
            if self.standing.completed > before {
                return Ok(StepOutcome::Received);
            }
            if self.on_loss == LossPolicy::Drop {
                self.world().mark_step_lost(StepFate::Dropped);
                return Ok(StepOutcome::Dropped);
            }
            self.world().mark_step_lost(StepFate::Repeated);
        };
        self.standing.steps += 1;
        self.pass_over();
        self.count();
        // Nothing keeps the step from being made any more. It is on its way to followers while it is made here.
        let is_told = self.tell_followers(tell(&made));
        apply(&mut self.state, made);
        self.serve_followers(is_told);
        if std::mem::take(&mut self.is_fresh) {
            self.world().mark_recovery(RecoveryStage::Stepped);
        }
        self.look_around()?;
        Ok(StepOutcome::Made)
    }

    /// Does something else together: evaluates, say, or averages statistics. What comes of it is applied to the state,
    /// from which a rank that missed the end gets it. It is computed again if ranks are lost meanwhile, and counts as
    /// no step.
    ///
    /// # Errors
    /// As [`Training::step`].
    pub fn exchange<T, E: From<Error>>(
        &mut self,
        mut compute: impl FnMut(&mut World, &S) -> std::result::Result<T, E>,
        apply: impl FnOnce(&mut S, T),
    ) -> std::result::Result<(), E> {
        let before = self.standing.completed;
        let made = loop {
            let world = self.world.as_mut().expect(HERE);
            // Nobody is ahead by two blocks, also where the function makes no collective call.
            let made = compute(world, &self.state).and_then(|made| Ok((made, world.barrier()?)));
            match made {
                Ok((made, ())) => break made,
                Err(error) => self.recover_from(error, LossPolicy::Repeat)?,
            }
            if self.standing.completed > before {
                return Ok(());
            }
        };
        apply(&mut self.state, made);
        self.count();
        self.serve_followers(false);
        Ok(())
    }

    /// Ends the training, when all ranks have come so far, and leaves the job in order.
    ///
    /// # Errors
    /// If the job cannot go on.
    pub fn finish(mut self) -> Result<S> {
        // Nobody leaves while another one may still need its state.
        self.exchange(|_, _| Ok::<_, Error>(()), |_, ()| ())?;
        self.check = None;
        drop(self.world.take());
        leave();
        Ok(self.state)
    }

    /// The state and the world, for programs that go on by themselves.
    pub fn into_parts(mut self) -> (S, World) {
        (self.state, self.world.take().expect(HERE))
    }

    /// What this rank works on now.
    fn batch(&mut self) -> StepBatch {
        let Standing { place, steps, founders, .. } = self.standing;
        if let Some(samples) = &self.samples
            && self.order.0 != place.epoch
        {
            self.order = (place.epoch, samples.order(place.epoch));
        }
        let world = self.world();
        let who = (world.rank(), world.size(), founders);
        StepBatch::of(self.samples.as_ref(), &self.order.1, who, (steps, place))
    }

    /// The samples of the step under way are used, or dropped.
    fn pass_over(&mut self) {
        if let Some(samples) = &self.samples {
            self.standing.place = samples.after(self.standing.place, self.standing.ranks);
        }
    }

    fn count(&mut self) {
        self.standing.completed = self.standing.completed.map(|completed| completed + 1);
        self.standing.attempts = 0;
    }

    /// After a step: does anybody want to join?
    fn look_around(&mut self) -> Result<()> {
        if !is_enabled() {
            return Ok(());
        }
        match self.ask() {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.next_generation()?;
                self.agree_at_last()
            }
            Err(error) => self.recover_from(error, LossPolicy::Repeat),
        }
    }

    /// Whether somebody wanted to join a step ago. Asks again.
    fn ask(&mut self) -> Result<bool> {
        let wanted = self.check.take().map_or(Ok(Vec::new()), Pending::wait)?;
        if self.standing.steps.is_multiple_of(self.check_every) {
            let named = self.world().named("farandole.elastic.candidates");
            self.check = Some(named.allreduce(vec![candidates() as u64], ReduceOp::Max)?);
        }
        Ok(wanted.iter().any(|candidates| *candidates > 0))
    }

    /// Goes on with the ranks that are left, if the error is the loss of one.
    fn recover_from<E: From<Error>>(&mut self, error: E, on_loss: LossPolicy) -> std::result::Result<(), E> {
        let pause = pause_before_retry(self.standing.attempts);
        let Some(pause) = pause.filter(|_| is_enabled() && self.world().has_ended()) else { return Err(error) };
        self.standing.attempts += 1;
        if on_loss == LossPolicy::Drop {
            self.pass_over();
        }
        std::thread::sleep(pause);
        self.next_generation()?;
        Ok(self.agree_at_last()?)
    }

    /// Leaves the world and becomes a rank of the next one.
    fn next_generation(&mut self) -> Result<()> {
        self.check = None;
        self.note_boundary();
        // What was still under way fails, and nobody wants to know: a failure is why this rank is here.
        drop(self.world.take());
        self.world = Some(self.setup.clone().init()?);
        Ok(())
    }

    /// Agrees with the ranks of this generation, or of a later one if more are lost meanwhile.
    fn agree_at_last(&mut self) -> Result<()> {
        while let Err(error) = self.agree() {
            let may_repeat = pause_before_retry(self.standing.attempts).is_some();
            if !is_enabled() || !self.world().has_ended() || !may_repeat {
                return Err(error);
            }
            self.next_generation()?;
        }
        self.world().mark_recovery(RecoveryStage::Synchronised);
        self.note_training();
        self.is_fresh = true;
        Ok(())
    }

    fn agree(&mut self) -> Result<()> {
        let began = Instant::now();
        self.standing = self.streamed_standing().unwrap_or(self.standing);
        let world = self.world.as_mut().expect(HERE);
        let rows = world.allgather(&self.standing.encode())?;
        let standings: Vec<Standing> = rows.chunks(Standing::LENGTH).map(Standing::decode).collect();
        let decision = decide(&standings);
        let Decision { source, completed, steps, place, attempts, founders, .. } = decision;
        let differing = if decision.is_to_compare { self.compare(source, completed)? } else { 0 };
        let world = self.world.as_mut().expect(HERE);
        let is_source = world.rank() == source;
        if decision.is_sent || differing > 0 {
            let saved = if is_source { self.state.save()? } else { Vec::new() };
            let saved = world.broadcast_vec(saved, source)?;
            if !is_source {
                self.state.restore(&saved)?;
                self.streams.iter().for_each(Streams::begin_anew);
            }
        }
        let (before, ranks) = (self.standing.ranks, world.size());
        let was_here = !self.standing.is_new();
        // The state is the source's from here on, also if the rest of this comes to nothing.
        let (completed, is_streamed) = (Some(completed), false);
        self.standing = Standing { completed, steps, place, attempts, ranks: before, founders, is_streamed };
        self.streams.iter_mut().for_each(Streams::stop_following);
        let joined = standings.iter().filter(|standing| standing.is_new()).count();
        let streamed = standings.iter().filter(|standing| standing.is_streamed).count();
        let streamed = if decision.is_sent { 0 } else { streamed - differing };
        let change = WorldChange { steps, before: was_here.then_some(before), ranks, joined, founders };
        self.state.on_change(world, &change)?;
        self.standing.ranks = ranks;
        if world.rank() == 0 && joined < ranks {
            let took = began.elapsed().as_secs_f64();
            log::info!(
                "the training goes on after step {steps} with {ranks} rank(s), {joined} new, {streamed} of them with a \
                 streamed state; it took {took:.3} s"
            );
        }
        Ok(())
    }
}

/// Between calls there is a world; one that could not be made has ended the training with its error.
const HERE: &str = "invariant: a training that has not failed has a world";

#[cfg(test)]
mod tests {
    use super::*;

    fn training(samples: usize) -> Training<Vec<u64>> {
        Training::new(vec![0; 2]).samples(Samples::for_each_rank(samples, 4)).begin().unwrap()
    }

    #[test]
    fn a_world_of_one_makes_every_step_and_uses_every_sample() {
        let mut training = training(10);
        let mut used = Vec::new();
        while training.epoch() < 2 {
            let outcome = training.step(
                |_, state, batch| {
                    assert_eq!(state[0], batch.step);
                    Ok::<_, Error>(batch.samples.clone())
                },
                |state, samples| {
                    state[0] += 1;
                    used.extend(samples);
                },
            );
            assert_eq!(outcome.unwrap(), StepOutcome::Made);
        }
        training.exchange(|world, _| Ok::<_, Error>(world.size()), |state, size| state[1] = size as u64).unwrap();
        assert_eq!(training.steps(), 6);
        assert_eq!(training.finish().unwrap(), [6, 1]);
        used.sort_unstable();
        assert_eq!(used, (0..10).flat_map(|sample| [sample, sample]).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_program_is_returned_and_changes_nothing() {
        let mut training = training(10);
        let outcome = training.step(|_, _, _| Err::<(), _>(Error::WrongElement), |state, ()| state[0] = 9);
        assert!(matches!(outcome, Err(Error::WrongElement)));
        assert_eq!((training.steps(), training.position(), training.state()), (0, 0, &vec![0, 0]));
    }

    #[test]
    fn a_training_goes_on_from_where_a_checkpoint_was() {
        let place = SamplePlace { epoch: 3, position: 8 };
        let samples = Samples::for_each_rank(10, 4);
        let mut training = Training::new(vec![0u8]).samples(samples).starting_at(place).begin().unwrap();
        let batch = |_: &mut World, _: &Vec<u8>, batch: &StepBatch| Ok::<_, Error>((batch.epoch, batch.total));
        training.step(batch, |_, found| assert_eq!(found, (3, 2))).unwrap();
        assert_eq!((training.epoch(), training.position()), (4, 0));
        assert!(Training::new(vec![0u8]).samples(Samples::for_each_rank(0, 4)).begin().is_err());
    }
}
