//! Trainings whose state is streamed: what [`Training`] does before a process joins, in each step, and when it is let
//! in.
//!
//! **Before.** A process that is about to join follows a member (`follower`), while another thread waits in
//! [`Setup::init`](crate::Setup::init) for its turn; when little is left, that thread makes it a candidate, and this
//! one goes on making the members' steps until they have let it in.
//!
//! **In each step** a member that is followed hands its update over, and a copy of its state to those who want one.
//!
//! **When it is let in** the ranks compare: the process gets the last updates from its stream, and then its state has
//! the digest of the source's, or it gets the whole state.

use std::sync::mpsc;
use std::time::Duration;

use farandole_cluster::streaming::StateSource;

use super::follower::Follower;
use super::sources::Sources;
use super::standing::Standing;
use super::state::ElasticState;
use super::streamed::{self, Replay, StateUpdate as _, StreamedState, Streaming};
use super::training::{Builder, StepOutcome, Training};
use super::{StepBatch, is_full};
use crate::error::{Error, Result};
use crate::world::World;

/// How long a process that waits to be let in takes over updates before it looks whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Streams of a training's state.
#[derive(Debug)]
pub(super) struct Streams<S> {
    /// From this process.
    source: StateSource,
    /// To this process, until it has joined.
    follower: Option<Follower<S>>,
}

impl<S> Streams<S> {
    pub(super) fn new(replay: Replay<S>) -> Streams<S> {
        Streams { source: streamed::source(replay.streaming), follower: None }
    }

    /// The state has changed without an update.
    pub(super) fn begin_anew(&self) {
        self.source.begin_anew();
    }

    /// This process is a member, and has the state of all.
    pub(super) fn stop_following(&mut self) {
        self.follower = None;
    }
}

impl<S> Drop for Streams<S> {
    /// The training is over: no step is made with what others wait for.
    fn drop(&mut self) {
        self.source.note_boundary();
    }
}

impl<S: StreamedState> Builder<S> {
    /// Lets processes that join get the state before they do, while the others go on ([`StreamedState`]). Steps are
    /// made with [`Training::streamed_step`]; others, and exchanges, make streams begin anew.
    ///
    /// Takes effect in an elastic job. It costs the members a copy of the state for each process that joins, and a copy
    /// of each update meanwhile. Worth while where a step takes longer than to send its update.
    pub fn streamed(self) -> Builder<S> {
        self.streamed_with(Streaming::default())
    }

    /// As [`Builder::streamed`], with limits. Those of the first training of a process count.
    pub fn streamed_with(mut self, streaming: Streaming) -> Builder<S> {
        self.replay = Some(Replay::new(streaming));
        self
    }
}

impl<S: ElasticState> Builder<S> {
    /// Makes this process a rank of its job, after it has got the state of a member if it is one that joins.
    pub(super) fn begin_streamed(mut self, replay: Replay<S>) -> Result<Training<S>> {
        let mut streams = Streams::new(replay);
        let setup = self.setup.clone();
        let state = &mut self.state;
        let world = std::thread::scope(|scope| {
            let (teller, told) = mpsc::channel::<(Sources, mpsc::Sender<()>)>();
            let init = move || {
                setup.init_after(move |sources| {
                    let (go, wait) = mpsc::channel();
                    // It goes on when the other end is dropped.
                    if teller.send((sources, go)).is_ok() {
                        let _ = wait.recv();
                    }
                })
            };
            let thread = std::thread::Builder::new().name("init".into()).spawn_scoped(scope, init);
            let init = thread.map_err(|error| farandole_cluster::Error::local("starting a thread", error))?;
            if let Ok((sources, go)) = told.recv() {
                streams.follower = Follower::follow(&sources, replay, state);
                drop(go);
            }
            while let Some(follower) = &mut streams.follower
                && !init.is_finished()
            {
                follower.take_for(state, LOOK_EVERY);
            }
            init.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        self.begin_with(world, Some(streams))
    }
}

impl<S: StreamedState> Training<S> {
    /// As [`Training::step`]; the second half is [`StreamedState::apply`], so that processes that follow this one make
    /// the step, too.
    ///
    /// # Errors
    /// As [`Training::step`].
    pub fn streamed_step<E: From<Error>>(
        &mut self,
        compute: impl FnMut(&mut World, &S, &StepBatch) -> std::result::Result<S::Update, E>,
    ) -> std::result::Result<StepOutcome, E> {
        let is_followed = self.streams.as_ref().is_some_and(|streams| streams.source.is_followed());
        self.step_told(compute, |update| is_followed.then(|| update.encode()), S::apply)
    }
}

impl<S: ElasticState> Training<S> {
    /// A step is going to be made: whoever follows gets its update. Whether there is one.
    pub(super) fn tell_followers(&self, update: Option<Vec<u8>>) -> bool {
        let (Some(Streams { source, .. }), Some(update)) = (&self.streams, update) else { return false };
        source.give_update(&self.standing.note(), update);
        true
    }

    /// A block is completed: whoever wants a copy of the state gets it, and whoever was not told of the block needs
    /// one.
    pub(super) fn serve_followers(&self, is_told: bool) {
        let Some(Streams { source, .. }) = &self.streams else { return };
        if !is_told {
            source.begin_anew();
        }
        if !source.wants_snapshot() {
            return;
        }
        if is_full(self.world().size()) {
            return source.refuse("the job has as many ranks as it may have");
        }
        match self.state.save() {
            Ok(saved) => source.give_snapshot(&self.standing.note(), saved),
            Err(error) => source.refuse(&error.to_string()),
        }
    }

    /// No steps are made until [`Training::note_training`].
    pub(super) fn note_boundary(&self) {
        self.streams.iter().for_each(|streams| streams.source.note_boundary());
    }

    pub(super) fn note_training(&self) {
        self.streams.iter().for_each(|streams| streams.source.note_training());
    }

    /// What this process stands for, if its state was streamed to it.
    pub(super) fn streamed_standing(&self) -> Option<Standing> {
        self.streams.as_ref()?.follower.as_ref()?.standing()
    }

    /// Gets the last updates, if the state is streamed to this process, and compares digests with the rank `source`,
    /// whose state has seen so many blocks. All ranks call this; says how many of them differ.
    pub(super) fn compare(&mut self, source: usize, completed: u64) -> Result<usize> {
        let is_streamed = self.standing.is_streamed;
        let mut own = [0, 0];
        if is_streamed {
            let follower = self.streams.as_mut().and_then(|streams| streams.follower.as_mut());
            let is_there = follower.is_some_and(|one| one.catch_up(&mut self.state, Some(completed)));
            own = [1, if is_there { self.state.digest()? | 1 } else { 0 }];
        } else if self.world().rank() == source {
            own = [0, self.state.digest()? | 1];
        }
        let rows = self.world_mut().allgather(&own)?;
        let wanted = rows[2 * source + 1];
        let differing = rows.chunks(2).filter(|row| row[0] == 1 && row[1] != wanted).count();
        if is_streamed && own[1] != wanted {
            match own[1] {
                0 => log::info!("the whole state is sent to this process: not all of it has come before it joined"),
                _ => log::warn!(
                    "the whole state is sent to this process: what came before it joined is not the state of rank \
                     {source}. Steps depend on something else than the state and its updates (a clock, a variable of \
                     the program?)"
                ),
            }
        }
        Ok(differing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StreamedState for Vec<u64> {
        type Update = Vec<u64>;

        fn apply(&mut self, update: Vec<u64>) {
            self.iter_mut().zip(update).for_each(|(own, more)| *own += more);
        }
    }

    #[test]
    fn a_streamed_training_works_in_a_world_of_one() {
        let mut training = Training::new(vec![0u64; 2]).streamed().begin().unwrap();
        while training.steps() < 3 {
            let outcome = training.streamed_step(|_, _, batch| Ok::<_, Error>(vec![1, batch.step])).unwrap();
            assert_eq!(outcome, StepOutcome::Made);
        }
        assert!(training.streams.is_none(), "nobody joins a job of a fixed size");
        assert_eq!(training.finish().unwrap(), [3, 3]);
    }
}
