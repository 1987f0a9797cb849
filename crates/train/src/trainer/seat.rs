//! A rank's place among the others, as long as these are the same: its share of every batch, and its loaders.
//!
//! When ranks have changed, the seat is made anew: shares are others, and batches that were made ahead are for nobody.

use std::sync::Arc;

use farandole::World;

use super::learned::Place;
use crate::error::{Error, Result};
use crate::job::TrainJob;
use farandole_data::loader::{Broken, Input, LoadedBatch};
use farandole_data::sample::{SampleBatch, Split};
use farandole_data::sampler::Shard;
use farandole_data::{Augment, DataSet, Epoch, Loader, LoaderConfig, SampleOrder};

/// See the module's text.
pub(super) struct Seat {
    /// Generation, rank and number of ranks.
    who: (Option<u64>, usize, usize),
    /// The law by which batches are cut.
    pub(super) shard: Shard,
    pub(super) passes: usize,
    train: Loader,
    pub(super) test: Option<Loader>,
    /// The batches of an epoch, and the place of the next one.
    batches: Option<(Place, Epoch)>,
}

impl Seat {
    /// The seat of a rank in a world, where all ranks together take `global_batch` samples in a step.
    pub(super) fn new(
        world: &World,
        job: &TrainJob,
        data: &Arc<dyn DataSet>,
        augment: Augment,
        (global_batch, passes): (usize, usize),
    ) -> Result<Seat> {
        let (rank, world_size) = (world.rank(), world.size());
        let config = LoaderConfig {
            rank,
            world_size,
            batch: job.batch,
            global_batch: Some(global_batch),
            workers: job.workers,
            prefetch: job.prefetch,
            seed: job.seed,
            broken: Broken::Replaced,
            recorder: Some(Arc::clone(world.recorder())),
            ..LoaderConfig::default()
        };
        let loader = |split, config| {
            let input = Input::Samples { data: Arc::clone(data), split, augment: augment.clone() };
            Loader::new(input, config).map_err(|error| Error::Data(error.to_string()))
        };
        let train = loader(Split::Train, config.clone())?;
        let test = match data.is_empty(Split::Test) || job.eval_every == 0 {
            true => None,
            false => {
                let order = SampleOrder::InOrder;
                let config = LoaderConfig { order, global_batch: None, broken: Broken::LeftOut, ..config };
                Some(loader(Split::Test, config)?)
            }
        };
        let shard = Shard { rank, world_size, global_batch, length: data.len(Split::Train) };
        Ok(Seat { who: who(world), shard, passes, train, test, batches: None })
    }

    /// Whether it is the seat of this rank in this world.
    pub(super) fn is_in(&self, world: &World) -> bool {
        self.who == who(world)
    }

    /// The batch of a step.
    pub(super) fn batch(&mut self, at: Place) -> Result<SampleBatch> {
        let mut batches = match self.batches.take() {
            Some((next, batches)) if next == at => batches,
            _ => self.train.epoch(at.epoch, at.step as usize),
        };
        let batch = batches.next().expect("invariant: an epoch has as many batches as it says");
        self.batches = Some((Place { step: at.step + 1, ..at }, batches));
        batch.map(LoadedBatch::into_samples).map_err(|error| Error::Data(error.to_string()))
    }

    /// What is to be said about samples that could not be read.
    pub(super) fn take_notices(&self) -> Vec<String> {
        let mut notices = self.train.take_notices();
        notices.extend(self.test.iter().flat_map(Loader::take_notices));
        notices
    }
}

fn who(world: &World) -> (Option<u64>, usize, usize) {
    (farandole::elastic::generation(), world.rank(), world.size())
}
