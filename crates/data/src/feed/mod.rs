//! Typed batches for front ends: records, read, decoded, changed and laid side by side ahead of time.
//!
//! A [`Feed`] is [`Records`], what becomes of them ([`Content`]), an order and the share of a rank; a [`FeedEpoch`] is
//! one walk through it, and may begin at any step. Threads make parts of batches (`crew`) of what `maker` says, in
//! memory that is used again (`memory`); samples may be mixed (`mix`). What the stages take is counted (`times`).
//!
//! **Invariant:** a batch depends on the records, the content, seed, epoch, step and global batch; neither on the
//! number of ranks or workers nor on where the epoch was begun. At most `prefetch` batches are being made or lie ready.
//! A sample that cannot be read is an error that names it, unless the configuration says otherwise.
//!
//! What is deliberately not here: any front end's tensors, and devices.

mod maker;
mod memory;
mod mix;
mod times;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use farandole_trace::Recorder;

pub use memory::{BatchMemory, MemoryBytes};
pub use mix::Mixing;
pub use times::FeedTimes;

use crate::crew::{Shift, Taken};
use crate::loader::LoaderError;
use crate::sample::{ImageShape, Labels, Task};
use crate::sampler::{Permutation, SampleOrder, Shard};
use crate::source::Records;
use crate::transform::{Element, Layout, Recipe, Step};
use maker::{Maker, Walk};
use memory::{Ledger, Pool};

/// What becomes of records.
#[derive(Clone, Debug)]
pub enum Content {
    /// Images, decoded and changed.
    Images(Pixels),
    /// Their bytes as they are.
    Encoded,
}

/// A recipe, and what its numbers are.
#[derive(Clone, Debug)]
pub struct Pixels {
    recipe: Recipe,
    element: Element,
    layout: Layout,
}

impl Pixels {
    /// See [`Recipe::new`].
    pub fn new(steps: Vec<Step>, bands: usize, element: Element, layout: Layout) -> Result<Pixels, String> {
        Ok(Pixels { recipe: Recipe::new(steps, bands, element, layout)?, element, layout })
    }

    /// The shape of every image.
    pub fn shape(&self) -> ImageShape {
        self.recipe.shape()
    }

    /// What its numbers are.
    pub fn element(&self) -> Element {
        self.element
    }

    /// In what order they lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }
}

/// What is done about samples that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// They end the epoch with an error.
    Refused,
    /// The next one by number is taken in its stead, and counted.
    Replaced,
}

/// How batches are to be made.
#[derive(Clone, Debug)]
pub struct FeedConfig {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
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
    /// What order and augmentation are made of.
    pub seed: u64,
    /// In what order samples come.
    pub order: SampleOrder,
    /// What is done about samples that cannot be read.
    pub broken: Broken,
    /// How samples are mixed with each other.
    pub mixing: Mixing,
    /// Where the work of the worker threads is recorded ("input work").
    pub recorder: Option<Arc<Recorder>>,
}

impl Default for FeedConfig {
    fn default() -> FeedConfig {
        FeedConfig {
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

/// Samples of one step of one rank.
#[derive(Debug)]
pub struct FeedBatch {
    /// Which step of the epoch.
    pub step: usize,
    /// How many samples. May be zero where ranks have uneven shares.
    pub count: usize,
    /// How many samples all ranks have in this step together; known to every rank without asking.
    pub global_count: usize,
    /// The samples.
    pub images: Images,
    /// What is known about them.
    pub labels: Labels,
    /// The numbers of their records.
    pub indices: Vec<usize>,
    /// How many could not be read and were replaced by others.
    pub replaced: usize,
}

/// The samples of a batch.
#[derive(Debug)]
pub enum Images {
    /// Side by side, in the element and layout that were asked for.
    Pixels(BatchMemory),
    /// Records as they are.
    Encoded(Encoded),
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
pub struct Feed {
    maker: Arc<Maker>,
    workers: usize,
    prefetch: usize,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("shard", &self.maker.shard).field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Feed {
    /// A feed of all records.
    pub fn new(records: Arc<dyn Records>, content: Content, config: FeedConfig) -> Result<Feed, LoaderError> {
        let FeedConfig { rank, world_size, batch, global_batch, drop_last, workers, prefetch, .. } = config;
        check(&*records, &content, &config).map_err(LoaderError::Config)?;
        let global_batch = global_batch.unwrap_or(batch.saturating_mul(world_size)).max(1);
        let length = records.len();
        let length = if drop_last { length - length % global_batch } else { length };
        let shard = Shard { rank, world_size, global_batch, length };
        let sample_bytes = match &content {
            Content::Images(pixels) => pixels.recipe.sample_bytes(),
            Content::Encoded => 0,
        };
        // A rank has at most so many samples of a global batch.
        let largest = global_batch.min(length).div_ceil(world_size);
        let Some(size_bytes) = largest.checked_mul(sample_bytes).filter(|bytes| *bytes < isize::MAX as usize / 2)
        else {
            return Err(LoaderError::Config(format!("a batch of {largest} samples is larger than memory can be")));
        };
        let prefetch = prefetch.max(1);
        let ledger = Arc::new(Ledger::default());
        // What is made ahead, what the consumer works on, and what it has just asked for.
        let pool = Arc::new(Pool::new(&ledger, size_bytes, prefetch + 2));
        let maker = Maker {
            records,
            content,
            shard,
            seed: config.seed,
            order: config.order,
            broken: config.broken,
            mixing: config.mixing,
            recorder: config.recorder,
            sample_bytes,
            ledger,
            pool,
            tally: times::Tally::default(),
            complaints: Mutex::default(),
        };
        Ok(Feed { maker: Arc::new(maker), workers, prefetch })
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

    /// Where its samples come from.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.maker.records
    }

    /// What becomes of records.
    pub fn content(&self) -> &Content {
        &self.maker.content
    }

    /// The batches of an epoch from a step on. Workers begin at once.
    pub fn epoch(&self, epoch: u64, first_step: usize) -> FeedEpoch {
        let maker = Arc::clone(&self.maker);
        let order = Permutation::new(maker.order, maker.seed, epoch, maker.records.len());
        let steps = maker.shard.steps();
        let left = steps.saturating_sub(first_step);
        let walk = Walk { maker, order, epoch, workers: self.workers };
        let workers = self.workers.min(left.saturating_mul(self.maker.shard.global_batch));
        FeedEpoch {
            shift: Shift::begin(Arc::new(walk), first_step..steps, workers, self.prefetch),
            maker: Arc::clone(&self.maker),
        }
    }

    /// How much memory there is for batches. Decoders have their own, for one image each.
    pub fn memory_bytes(&self) -> MemoryBytes {
        self.maker.ledger.read()
    }

    /// What making batches took so far.
    pub fn times(&self) -> FeedTimes {
        self.maker.tally.read()
    }

    /// What is to be said about samples that could not be read since this was last asked: each is named once, at most
    /// twenty in all.
    pub fn take_notices(&self) -> Vec<String> {
        self.maker.complaints.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // Whoever keeps a batch keeps its memory, and not that of all others.
        self.maker.pool.close();
    }
}

/// Why such a feed cannot be, if it cannot.
fn check(records: &dyn Records, content: &Content, config: &FeedConfig) -> Result<(), String> {
    let FeedConfig { rank, world_size, batch, .. } = config;
    if rank >= world_size {
        return Err(format!("rank {rank} is not one of {world_size} ranks"));
    }
    if *batch == 0 {
        return Err("a batch has at least one sample".to_owned());
    }
    if let SampleOrder::ShuffledNearby { block: 0, .. } | SampleOrder::ShuffledNearby { window: 0, .. } = config.order {
        return Err("blocks and windows of an order have at least one sample".to_owned());
    }
    if matches!(records.task(), Task::SuperResolution { .. }) {
        return Err(format!("{}: pairs of images are for the trainer", records.describe()));
    }
    match content {
        Content::Images(pixels) => config.mixing.check(pixels.element),
        Content::Encoded if config.mixing.is_wanted() => Err("only decoded images can be mixed".to_owned()),
        Content::Encoded => Ok(()),
    }
}

/// The batches of an epoch, in order. Ends with the first error.
pub struct FeedEpoch {
    shift: Shift<Walk>,
    maker: Arc<Maker>,
}

impl std::fmt::Debug for FeedEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FeedEpoch").field("next", &self.next_step()).finish_non_exhaustive()
    }
}

impl FeedEpoch {
    /// The step of the batch that comes next.
    pub fn next_step(&self) -> usize {
        self.shift.next_step()
    }

    /// Waits for the next batch for at most so long, and says [`Poll::Pending`] if there will be one, but not yet.
    /// Without workers it is made here, however long that takes.
    pub fn next_within(&mut self, limit: Duration) -> Poll<Option<Result<FeedBatch, LoaderError>>> {
        self.take(Some(limit))
    }

    fn take(&mut self, limit: Option<Duration>) -> Poll<Option<Result<FeedBatch, LoaderError>>> {
        let began = Instant::now();
        let taken = self.shift.take(limit);
        times::add_time(&self.maker.tally.consumer_waited_ns, began.elapsed());
        match taken {
            Taken::Made(made) => {
                times::add(&self.maker.tally.batches, u64::from(made.is_ok()));
                Poll::Ready(Some(made))
            }
            Taken::NotYet => Poll::Pending,
            Taken::Over => Poll::Ready(None),
        }
    }
}

impl Iterator for FeedEpoch {
    type Item = Result<FeedBatch, LoaderError>;

    fn next(&mut self) -> Option<Result<FeedBatch, LoaderError>> {
        match self.take(None) {
            Poll::Ready(batch) => batch,
            Poll::Pending => unreachable!("nothing limits how long this waits"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.shift.left()))
    }
}

#[cfg(test)]
mod tests;
