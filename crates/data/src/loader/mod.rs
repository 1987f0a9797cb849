//! Batches in time: a rank's share of each epoch, made ahead of the training loop by worker threads.
//!
//! A [`Loader`] has an [`Input`], an order and the share of a rank; an [`Epoch`] is one walk through it and may begin
//! at any step. Worker threads (`worker_pool`) make parts of batches (`task`, `batch`) in memory that is reused
//! (`memory`), mix samples where this is asked for (`mix`), and join the parts in order (`reorder`, `prefetch`).
//!
//! **Invariant:** a batch depends on the input, seed, epoch, step and global batch; neither on the number of ranks or
//! workers nor on where the epoch was begun. At most `prefetch` batches are being made or ready. Whatever is wrong with
//! a sample, also a panic, becomes an error that names it and ends the epoch, unless the configuration says otherwise.
//! An epoch that is dropped, also in the middle, has no threads left when the drop returns.
//!
//! What is deliberately not here: tensors and devices.

mod batch;
mod input;
mod memory;
mod mix;
mod notices;
mod prefetch;
mod reorder;
mod stats;
mod task;
mod worker_pool;

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use farandole_trace::Recorder;

pub use input::{Content, Input, Pixels};
pub use memory::{BatchMemory, MemoryBytes};
pub use mix::Mixing;
pub use stats::LoaderStats;

use crate::SampleError;
use crate::sample::{Labels, SampleBatch, Task};
use crate::sampler::{Permutation, SampleOrder, Shard};
use batch::{BatchMaker, EpochTask};
use memory::{Ledger, Pool};
use prefetch::{Prefetcher, Taken};

/// What is done about samples that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// They end the epoch with an error.
    Refused,
    /// The next one by number is taken in its stead, and counted.
    Replaced,
    /// The batch is made without them, and they are counted.
    LeftOut,
}

/// How samples are to be loaded.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Samples of one rank in one step.
    pub batch: usize,
    /// Samples of all ranks in one step, where it is not that times the number of ranks.
    pub global_batch: Option<usize>,
    /// Whether an epoch ends before a global batch that is not full.
    pub drop_last: bool,
    /// Threads; with none the thread that asks makes batches itself.
    pub workers: usize,
    /// Batches that are made ahead, at most. All workers make each of them together, so two or three do, unless there
    /// are more workers than samples in a batch.
    pub prefetch: usize,
    /// Seed of order, augmentation and mixing.
    pub seed: u64,
    /// The order of samples.
    pub order: SampleOrder,
    /// What is done about samples that cannot be read.
    pub broken: Broken,
    /// How samples are mixed with each other. Mix-up of a data set's samples is part of its augmentation.
    pub mixing: Mixing,
    /// Where the work of the worker threads is recorded ("input work"). Without workers nothing is: the thread that
    /// asks waits for input, and records that itself.
    pub recorder: Option<Arc<Recorder>>,
}

impl Default for LoaderConfig {
    fn default() -> LoaderConfig {
        LoaderConfig {
            rank: 0,
            world_size: 1,
            batch: 32,
            global_batch: None,
            drop_last: false,
            workers: 1,
            prefetch: 2,
            seed: 0,
            order: SampleOrder::Shuffled,
            broken: Broken::Refused,
            mixing: Mixing::default(),
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
        /// The message of the panic.
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

/// Samples of one step of one rank.
#[derive(Debug)]
pub struct LoadedBatch {
    /// Which step of the epoch.
    pub step: usize,
    /// The number of samples. May be zero where ranks have uneven shares.
    pub count: usize,
    /// The number of samples of all ranks in this step; known to every rank without asking.
    pub global_count: usize,
    /// The samples.
    pub images: Images,
    /// What is known about them.
    pub labels: Labels,
    /// Their numbers.
    pub indices: Vec<usize>,
    /// The number of samples that could not be read and were replaced by others, or left out.
    pub replaced: usize,
}

impl LoadedBatch {
    /// As the trainer has them.
    ///
    /// # Panics
    /// If the loader has another input than [`Input::Samples`].
    pub fn into_samples(self) -> SampleBatch {
        let LoadedBatch { count, global_count, images, labels, replaced, .. } = self;
        let Images::Floats(images) = images else { panic!("invariant: samples of data sets are floats") };
        SampleBatch { count, images, labels, global_count, replaced }
    }
}

/// The samples of a batch.
#[derive(Debug)]
pub enum Images {
    /// Decoded records, side by side, in the element and layout that were asked for.
    Pixels(BatchMemory),
    /// Records as they are.
    Encoded(Encoded),
    /// Samples of a data set, `[count, bands, height, width]`: memory that a tensor takes over without a copy.
    Floats(Vec<f32>),
}

impl Images {
    /// The number of bytes.
    fn bytes(&self) -> usize {
        match self {
            Images::Pixels(memory) => memory.len(),
            Images::Encoded(encoded) => encoded.bytes.len(),
            Images::Floats(numbers) => size_of_val(numbers.as_slice()),
        }
    }
}

/// Records of a batch, as they are.
#[derive(Debug)]
pub struct Encoded {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    _charge: memory::Charge,
}

impl Encoded {
    /// The bytes of each record.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end])
    }
}

/// A rank's batches. See the module's text.
pub struct Loader {
    maker: Arc<BatchMaker>,
    workers: usize,
    prefetch: usize,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Loader { maker, workers, .. } = self;
        f.debug_struct("Loader").field("shard", &maker.shard).field("workers", workers).finish_non_exhaustive()
    }
}

impl Loader {
    /// A loader of all samples of an input.
    pub fn new(input: Input, config: LoaderConfig) -> Result<Loader, LoaderError> {
        let config = LoaderConfig { mixing: input.mixing(config.mixing), ..config };
        check(&input, &config).map_err(LoaderError::Config)?;
        let LoaderConfig { rank, world_size, batch, global_batch, drop_last, workers, prefetch, .. } = config;
        let global_batch = global_batch.unwrap_or(batch.saturating_mul(world_size)).max(1);
        let length = input.len();
        let length = if drop_last { length - length % global_batch } else { length };
        let shard = Shard { rank, world_size, global_batch, length };
        let sample_bytes = input.format().map_or(0, |format| format.shape.len() * format.element.bytes());
        // The most samples of a global batch that a rank has.
        let largest = global_batch.min(length).div_ceil(world_size);
        let Some(size_bytes) = largest.checked_mul(sample_bytes).filter(|bytes| *bytes < isize::MAX as usize / 2)
        else {
            return Err(LoaderError::Config(format!("a batch of {largest} samples is larger than memory can be")));
        };
        let prefetch = prefetch.max(1);
        let ledger = Arc::new(Ledger::default());
        // What is made ahead, what the consumer works on, and what it has just asked for.
        let pool = Arc::new(Pool::new(&ledger, size_bytes, prefetch + 2));
        let maker = BatchMaker {
            input,
            shard,
            seed: config.seed,
            order: config.order,
            broken: config.broken,
            mixing: config.mixing,
            recorder: config.recorder,
            sample_bytes,
            ledger,
            pool,
            stats: Mutex::default(),
            notices: Mutex::default(),
        };
        Ok(Loader { maker: Arc::new(maker), workers, prefetch })
    }

    /// Steps of an epoch: the same on all ranks.
    pub fn steps(&self) -> usize {
        self.maker.shard.steps()
    }

    /// Samples of all ranks in an epoch.
    pub fn samples(&self) -> usize {
        self.maker.shard.length
    }

    /// Samples of all ranks in a step.
    pub fn global_batch(&self) -> usize {
        self.maker.shard.global_batch
    }

    /// What batches are made of.
    pub fn input(&self) -> &Input {
        &self.maker.input
    }

    /// The batches of an epoch from a step on. Workers begin at once.
    pub fn epoch(&self, epoch: u64, first_step: usize) -> Epoch {
        let maker = Arc::clone(&self.maker);
        let order = Permutation::new(maker.order, maker.seed, epoch, maker.input.len());
        let steps = maker.shard.steps();
        let left = steps.saturating_sub(first_step);
        // More workers than parts would have nothing to do, and a part has at least one sample.
        let workers = self.workers.min(left.saturating_mul(maker.shard.global_batch));
        let task = EpochTask { maker, order, epoch, workers: self.workers };
        let batches = Prefetcher::start(Arc::new(task), first_step..steps, workers, self.prefetch);
        Epoch { batches, maker: Arc::clone(&self.maker) }
    }

    /// How much memory there is for batches. Decoders have their own, for one image each.
    pub fn memory_bytes(&self) -> MemoryBytes {
        self.maker.ledger.read()
    }

    /// What making batches took so far.
    pub fn stats(&self) -> LoaderStats {
        *self.maker.stats()
    }

    /// Messages about samples that could not be read since this was last asked: each is named once, at most twenty in
    /// all.
    pub fn take_notices(&self) -> Vec<String> {
        self.maker.notices().take()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A consumer that keeps a batch keeps its memory, and not that of all others.
        self.maker.pool.close();
    }
}

/// Why such a loader cannot be, if it cannot.
fn check(input: &Input, config: &LoaderConfig) -> Result<(), String> {
    let LoaderConfig { rank, world_size, batch, mixing, .. } = config;
    if rank >= world_size {
        return Err(format!("rank {rank} is not one of {world_size} ranks"));
    }
    if *batch == 0 {
        return Err("a batch has at least one sample".to_owned());
    }
    if let SampleOrder::ShuffledNearby { block: 0, .. } | SampleOrder::ShuffledNearby { window: 0, .. } = config.order {
        return Err("blocks and windows of an order have at least one sample".to_owned());
    }
    if mixing.is_wanted() && config.broken == Broken::LeftOut {
        return Err("samples that are mixed cannot be left out".to_owned());
    }
    if mixing.cutmix_alpha > 0.0 && matches!(input.task(), Task::SuperResolution { .. }) {
        return Err("CutMix is for images with labels, not for pairs of images".to_owned());
    }
    match input.format() {
        Some(format) if format.shape.is_empty() => Err(format!("{} has images without pixels", input.describe())),
        Some(format) => mixing.check(format.element),
        None if mixing.is_wanted() => Err("only decoded images can be mixed".to_owned()),
        None => Ok(()),
    }
}

/// The batches of an epoch, in order. Ends with the first error.
pub struct Epoch {
    batches: Prefetcher<EpochTask>,
    maker: Arc<BatchMaker>,
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (next, left) = (self.next_step(), self.batches.left());
        f.debug_struct("Epoch").field("next", &next).field("left", &left).finish_non_exhaustive()
    }
}

impl Epoch {
    /// The step of the batch that comes next.
    pub fn next_step(&self) -> usize {
        self.batches.next_step()
    }

    /// Waits for the next batch for at most this time, and returns [`Poll::Pending`] if there will be one, but not yet.
    /// Without workers it is made here, however long that takes.
    pub fn next_within(&mut self, limit: Duration) -> Poll<Option<Result<LoadedBatch, LoaderError>>> {
        self.take(Some(limit))
    }

    fn take(&mut self, limit: Option<Duration>) -> Poll<Option<Result<LoadedBatch, LoaderError>>> {
        let began = Instant::now();
        let taken = self.batches.take(limit);
        let mut stats = self.maker.stats();
        stats.consumer_waited_ns += began.elapsed().as_nanos() as u64;
        match taken {
            Taken::Made(made) => {
                stats.batches += u64::from(made.is_ok());
                Poll::Ready(Some(made))
            }
            Taken::NotYet => Poll::Pending,
            Taken::Over => Poll::Ready(None),
        }
    }
}

impl Iterator for Epoch {
    type Item = Result<LoadedBatch, LoaderError>;

    fn next(&mut self) -> Option<Result<LoadedBatch, LoaderError>> {
        match self.take(None) {
            Poll::Ready(batch) => batch,
            Poll::Pending => unreachable!("invariant: without a limit this waits for the batch"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.batches.left()))
    }
}

#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod sample_tests;
