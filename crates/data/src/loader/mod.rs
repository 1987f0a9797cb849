//! Batches in time: a rank's share of each epoch, made ahead of the training loop by worker threads.
//!
//! A [`Loader`] knows what to make, an [`Epoch`] is one walk through it. Workers make parts of batches, as long as no
//! more than `prefetch` batches are made or lie ready; whoever iterates gets them in order (`crew`). What a batch is
//! made of does not depend on who makes it (`maker`), so any number of workers gives the same batches; with none the
//! iterating thread makes them itself.
//!
//! **Invariant:** an epoch that is dropped, also in the middle, has no threads left when the drop returns, and workers
//! look after each sample whether they are still wanted. Whatever goes wrong with a sample, also a panic, becomes an
//! error that names it and ends the epoch; nobody waits for a batch that will not come.
//!
//! What is deliberately not here: memory that is used again. A tensor takes a batch's memory over without a copy, which
//! is worth more than an allocation in each step.

mod maker;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use farandole_trace::Recorder;

use crate::crew::{Shift, Taken};
use crate::sample::{SampleBatch, Split};
use crate::sampler::{Permutation, SampleOrder, Shard};
use crate::transform::augment::Augment;
use crate::{DataSet, SampleError};
use maker::{Maker, Walk};
pub(crate) use maker::{UNREADABLE_IN_A_ROW, misfit, partner};

/// How samples are to be loaded.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Samples of one rank in one step.
    pub batch: usize,
    /// Samples of all ranks in one step, where it is not that times the number of ranks.
    pub global_batch: Option<usize>,
    /// Threads that make batches; with none the thread that asks for them does.
    pub workers: usize,
    /// Batches that are made ahead, at most. At least one for each worker is sensible.
    pub prefetch: usize,
    /// What order and augmentation are made of.
    pub seed: u64,
    /// What is done to samples of [`Split::Train`]; those of [`Split::Test`] stay as they are.
    pub augment: Augment,
    /// In what order samples come.
    pub order: SampleOrder,
    /// Where the work of the worker threads is recorded ("input work"). Without workers nothing is: the thread that
    /// asks waits for input, and says so itself.
    pub recorder: Option<Arc<Recorder>>,
}

impl Default for LoaderConfig {
    fn default() -> LoaderConfig {
        LoaderConfig {
            rank: 0,
            world_size: 1,
            batch: 32,
            global_batch: None,
            workers: 1,
            prefetch: 4,
            seed: 0,
            augment: Augment::none(),
            order: SampleOrder::Shuffled,
            recorder: None,
        }
    }
}

/// Why there are no more batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoaderError {
    /// What was asked for cannot be.
    Config(String),
    /// The data set has made something that does not fit what it says of itself.
    Misfit {
        /// Which sample.
        sample: String,
        /// What does not fit.
        cause: String,
    },
    /// The data set has panicked.
    Panicked {
        /// While making which sample.
        sample: String,
        /// With which words.
        message: String,
    },
    /// A sample cannot be read, and none is to be taken in its stead.
    Broken(SampleError),
    /// So many samples in a row cannot be read that something else must be wrong.
    Unreadable {
        /// How many.
        in_a_row: usize,
        /// The last of them.
        last: SampleError,
    },
    /// The system gives no thread.
    Thread(String),
}

impl std::fmt::Display for LoaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoaderError::Config(what) => f.write_str(what),
            LoaderError::Misfit { sample, cause } => write!(f, "{sample} does not fit the data set: {cause}"),
            LoaderError::Panicked { sample, message } => write!(f, "making {sample} ended in a panic: {message}"),
            LoaderError::Broken(error) => error.fmt(f),
            LoaderError::Unreadable { in_a_row, last } => {
                write!(f, "{in_a_row} samples in a row cannot be read; is the data still there? The last one: {last}")
            }
            LoaderError::Thread(cause) => write!(f, "a loader thread cannot be started: {cause}"),
        }
    }
}

impl std::error::Error for LoaderError {}

/// Samples that are named when they cannot be read; more are only counted, so that a bad disk does not fill a log.
const NOTICES: usize = 20;

/// Which samples could not be read, each once.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    seen: BTreeSet<usize>,
    untold: Vec<String>,
}

impl Complaints {
    pub(crate) fn note(&mut self, index: usize, error: &SampleError, consequence: &str) {
        if self.seen.insert(index) {
            match self.seen.len() {
                ..=NOTICES => self.untold.push(format!("{error}; {consequence}")),
                told if told == NOTICES + 1 => {
                    self.untold.push("further samples that cannot be read are only counted".to_owned())
                }
                _ => {}
            }
        }
    }

    /// What was not told yet.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }
}

/// A rank's batches. See the module's text.
pub struct Loader {
    maker: Arc<Maker>,
    workers: usize,
    prefetch: usize,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("shard", &self.maker.shard)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// A loader of one split of a data set.
    pub fn new(data: Arc<dyn DataSet>, split: Split, config: LoaderConfig) -> Result<Loader, LoaderError> {
        let LoaderConfig { rank, world_size, batch, global_batch, workers, prefetch, seed, augment, order, recorder } =
            config;
        let refuse = |what: String| Err(LoaderError::Config(what));
        if rank >= world_size {
            return refuse(format!("rank {rank} is not one of {world_size} ranks"));
        }
        if batch == 0 {
            return refuse("a batch has at least one sample".to_owned());
        }
        if data.shape().is_empty() {
            return refuse(format!("{} has images without pixels", data.describe()));
        }
        let length = data.len(split);
        let global_batch = global_batch.unwrap_or(batch.saturating_mul(world_size)).max(1);
        let shard = Shard { rank, world_size, global_batch, length };
        let augment = if split == Split::Train { augment } else { Augment::none() };
        let complaints = Mutex::default();
        let maker = Maker { data, split, shard, seed, augment, order, recorder, complaints };
        Ok(Loader { maker: Arc::new(maker), workers, prefetch: prefetch.max(1) })
    }

    /// Steps of an epoch: the same on all ranks.
    pub fn steps(&self) -> usize {
        self.maker.shard.steps()
    }

    /// Samples of all ranks in an epoch.
    pub fn samples(&self) -> usize {
        self.maker.shard.length
    }

    /// The batches of an epoch from a step on. Workers begin at once.
    pub fn epoch(&mut self, epoch: u64, first_step: usize) -> Epoch {
        let maker = Arc::clone(&self.maker);
        let steps = maker.shard.steps();
        let order = Permutation::new(maker.order, maker.seed, epoch, maker.shard.length);
        let left = steps.saturating_sub(first_step);
        let walk = Walk { maker, order, epoch, workers: self.workers };
        // More workers than there are parts would have nothing to do, and parts are at least samples.
        let workers = self.workers.min(left.saturating_mul(self.maker.shard.global_batch));
        Epoch { shift: Shift::begin(Arc::new(walk), first_step..steps, workers, self.prefetch) }
    }

    /// What is to be said about samples that could not be read since this was last asked: each is named once, at most
    /// twenty in all.
    pub fn take_notices(&self) -> Vec<String> {
        self.maker.complaints.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The batches of an epoch, in order. Ends with the first error.
pub struct Epoch {
    shift: Shift<Walk>,
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch")
            .field("next", &self.shift.next_step())
            .field("left", &self.shift.left())
            .finish_non_exhaustive()
    }
}

impl Iterator for Epoch {
    type Item = Result<SampleBatch, LoaderError>;

    fn next(&mut self) -> Option<Result<SampleBatch, LoaderError>> {
        match self.shift.take(None) {
            Taken::Made(made) => Some(made),
            Taken::Over => None,
            Taken::NotYet => unreachable!("nothing limits how long this waits"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.shift.left()))
    }
}

#[cfg(test)]
mod tests;
