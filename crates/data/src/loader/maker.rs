//! One batch, made of its samples: read, replaced where need be, changed, mixed, and laid side by side.
//!
//! Mix-up takes its second samples from the same global batch: positions are paired there, the first with the second
//! and so on, which is a random pairing because the order is. A partner that another rank has is made once more here.
//! So a batch's mixing is the same for any number of ranks; where ranks have even batches nothing is made twice.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use farandole_trace::Recorder;

use super::{Complaints, LoaderError};
use crate::chance::{Chance, StreamPurpose};
use crate::crew::{Craft, guarded, part_samples};
use crate::sample::{Label, Labels, Sample, SampleBatch, Split, Task, mix_into};
use crate::sampler::{Permutation, SampleOrder, Shard};
use crate::took::{Took, timed};
use crate::{Augment, DataSet};

/// Samples in a row that may be unreadable before the data as a whole is taken to be gone.
pub(crate) const UNREADABLE_IN_A_ROW: usize = 1_000;

/// Samples of the trainer's sets are made in microseconds, some of them: fewer are no part of a batch.
const PART_SAMPLES: usize = 8;

/// What a loader makes batches of.
pub(super) struct Maker {
    pub(super) data: Arc<dyn DataSet>,
    pub(super) split: Split,
    pub(super) shard: Shard,
    pub(super) seed: u64,
    pub(super) augment: Augment,
    pub(super) order: SampleOrder,
    pub(super) recorder: Option<Arc<Recorder>>,
    /// Taken by workers when a sample cannot be read, and by whoever asks for notices.
    pub(super) complaints: Mutex<Complaints>,
}

/// Everything that is needed to make any batch of an epoch.
pub(super) struct Walk {
    pub(super) maker: Arc<Maker>,
    pub(super) order: Permutation,
    pub(super) epoch: u64,
    pub(super) workers: usize,
}

/// Of the epoch that a batch belongs to.
struct Place<'a> {
    order: &'a Permutation,
    epoch: u64,
}

/// Some samples of a batch, and how many of them could not be read.
pub(super) struct Made {
    samples: Vec<Option<Sample>>,
    replaced: usize,
    took: Took,
}

impl Walk {
    /// Does something about a step; a panic becomes an error that names the sample, which is `current` meanwhile.
    fn guarded<T>(
        &self,
        step: usize,
        work: impl FnOnce(&Place<'_>, &mut Option<usize>) -> Result<T, LoaderError>,
    ) -> Result<T, LoaderError> {
        let mut current = None;
        // Nothing that a panic could leave half done is used afterwards: the samples are dropped.
        let made = guarded(|| work(&Place { order: &self.order, epoch: self.epoch }, &mut current));
        made.unwrap_or_else(|message| {
            // Whoever panics over a sample may do so over its name, and then its number has to do.
            let name = |index| {
                guarded(|| self.maker.data.name(self.maker.split, index)).unwrap_or_else(|_| format!("sample {index}"))
            };
            let sample = current.map_or_else(|| format!("the batch of step {step}"), name);
            Err(LoaderError::Panicked { sample, message })
        })
    }
}

impl Craft for Walk {
    type Desk = ();
    type Part = Range<usize>;
    type Piece = Made;
    type Made = SampleBatch;
    type Error = LoaderError;

    fn cut(&self, step: usize) -> Vec<Range<usize>> {
        let positions = self.maker.shard.positions(step);
        let samples = part_samples(positions.len(), self.workers, PART_SAMPLES, usize::MAX);
        let begins = positions.clone().step_by(samples);
        let parts: Vec<_> = begins.map(|begin| begin..begin.saturating_add(samples).min(positions.end)).collect();
        if parts.is_empty() { vec![positions] } else { parts }
    }

    fn make(
        &self,
        step: usize,
        positions: Range<usize>,
        (): &mut (),
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Made>, LoaderError> {
        self.guarded(step, |place, current| {
            let mut made = Made { samples: Vec::with_capacity(positions.len()), replaced: 0, took: Took::default() };
            for position in positions {
                if !wanted() {
                    return Ok(None);
                }
                let (sample, unreadable) = self.maker.sample(place, position, current, &mut made.took)?;
                made.replaced += usize::from(unreadable);
                made.samples.push(sample);
            }
            Ok(Some(made))
        })
    }

    fn join(&self, step: usize, pieces: Vec<Made>) -> Result<SampleBatch, LoaderError> {
        let replaced = pieces.iter().map(|piece| piece.replaced).sum();
        let mut took = Took::default();
        pieces.iter().for_each(|piece| took.add(&piece.took));
        let samples: Vec<Option<Sample>> = pieces.into_iter().flat_map(|piece| piece.samples).collect();
        let mut laying_ns = 0;
        let lay = || self.guarded(step, |place, current| self.maker.lay(place, step, &samples, replaced, current));
        let laid = timed(&mut laying_ns, lay);
        took.change_ns += laying_ns;
        // What is judged by is made at other times than what is learned from.
        if let Some(recorder) = self.maker.recorder.as_ref().filter(|_| self.maker.split == Split::Train) {
            took.record(recorder, self.workers);
        }
        laid
    }

    fn thread_name(&self) -> &'static str {
        "loader"
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.maker.recorder.as_ref()
    }

    fn no_thread(&self, cause: String) -> LoaderError {
        LoaderError::Thread(cause)
    }
}

impl Maker {
    /// Lays the samples of a step side by side.
    fn lay(
        &self,
        place: &Place<'_>,
        step: usize,
        samples: &[Option<Sample>],
        replaced: usize,
        current: &mut Option<usize>,
    ) -> Result<SampleBatch, LoaderError> {
        let positions = self.shard.positions(step);
        let (shape, task) = (self.data.shape(), self.data.task());
        let mut laid = Laid::new(task, samples.len(), self.augment.mixup_alpha > 0.0);
        laid.images.reserve_exact(samples.len() * shape.len());
        for (position, sample) in positions.clone().zip(samples) {
            let Some(sample) = sample else { continue };
            if self.augment.mixup_alpha > 0.0 {
                let partner = partner(&self.shard.global_positions(step), position);
                let (share, partner) = (self.own_share(place, position), partner.unwrap_or(position));
                if positions.contains(&partner) {
                    laid.push_mixed(sample, samples[partner - positions.start].as_ref().unwrap_or(sample), share);
                } else {
                    let (other, _) = self.sample(place, partner, current, &mut Took::default())?;
                    laid.push_mixed(sample, other.as_ref().unwrap_or(sample), share);
                }
            } else {
                laid.push(sample);
            }
        }
        let global_count = self.shard.global_positions(step).len();
        let Laid { images, labels, .. } = laid;
        let count = images.len() / shape.len();
        Ok(SampleBatch { count, images, labels, global_count, replaced })
    }

    /// From a stream of its own: what is done to a sample's pixels does not depend on whether it is mixed.
    fn own_share(&self, place: &Place<'_>, position: usize) -> f32 {
        let index = place.order.at(position) as u64;
        let mut chance = Chance::new(self.seed, StreamPurpose::Augmentation, !place.epoch, index);
        self.augment.own_share(&mut chance)
    }

    /// The sample at a position, changed, and whether it could not be read. In its stead comes the next that can be, by
    /// number; where the data is judged by, none.
    fn sample(
        &self,
        place: &Place<'_>,
        position: usize,
        current: &mut Option<usize>,
        took: &mut Took,
    ) -> Result<(Option<Sample>, bool), LoaderError> {
        let first = place.order.at(position);
        let (shape, task) = (self.data.shape(), self.data.task());
        let attempts = self.shard.length.min(UNREADABLE_IN_A_ROW);
        let mut last = None;
        for attempt in 0..attempts {
            let index = (first + attempt) % self.shard.length;
            *current = Some(index);
            match self.data.sample_timed(self.split, index, took) {
                Ok(mut sample) => {
                    self.check(index, &sample)?;
                    let mut chance = Chance::new(self.seed, StreamPurpose::Augmentation, place.epoch, first as u64);
                    timed(&mut took.change_ns, || self.augment.apply(&mut sample, shape, task, &mut chance));
                    took.samples += 1;
                    took.made_pixels += (shape.height * shape.width) as u64;
                    return Ok((Some(sample), attempt > 0));
                }
                Err(error) => {
                    let (consequence, replace) = match self.split {
                        Split::Train => ("the next one is taken in its stead", true),
                        Split::Test => ("it is left out", false),
                    };
                    self.complaints.lock().unwrap_or_else(PoisonError::into_inner).note(index, &error, consequence);
                    if !replace {
                        return Ok((None, true));
                    }
                    last = Some(error);
                }
            }
        }
        let last = last.expect("a position has at least one sample to be tried");
        Err(LoaderError::Unreadable { in_a_row: attempts, last })
    }

    /// Whether a sample is what the data set says its samples are.
    fn check(&self, index: usize, sample: &Sample) -> Result<(), LoaderError> {
        let (shape, task) = (self.data.shape(), self.data.task());
        let cause = match (task, &sample.label) {
            _ if sample.image.len() != shape.len() => {
                Some(format!("its image has {} numbers instead of {}", sample.image.len(), shape.len()))
            }
            (Task::SuperResolution { scale }, Label::Image(larger)) => {
                let expected = shape.len() * scale * scale;
                let misfit = larger.len() != expected;
                misfit.then(|| format!("its larger image has {} numbers instead of {expected}", larger.len()))
            }
            (task, label) => misfit(task, label),
        };
        let name = || self.data.name(self.split, index);
        cause.map_or(Ok(()), |cause| Err(LoaderError::Misfit { sample: name(), cause }))
    }
}

/// The position whose sample is mixed in, unless the global batch is odd and this is its last.
pub(crate) fn partner(global: &Range<usize>, position: usize) -> Option<usize> {
    let partner = global.start + ((position - global.start) ^ 1);
    global.contains(&partner).then_some(partner)
}

/// What does not fit in a label, for a task without images as labels.
pub(crate) fn misfit(task: Task, label: &Label) -> Option<String> {
    match (task, label) {
        (Task::SingleLabel { classes }, Label::Class(class)) => {
            (*class as usize >= classes).then(|| format!("class {class} is none of {classes}, which begin with 0"))
        }
        (Task::MultiLabel { labels }, Label::Labels(given)) => {
            (given.len() != labels).then(|| format!("it has {} labels instead of {labels}", given.len()))
        }
        (Task::Regression, Label::Value(value)) => (!value.is_finite()).then(|| format!("its value is {value}")),
        _ => Some("its label is of another kind than the task".to_owned()),
    }
}

/// A batch while it grows.
struct Laid {
    images: Vec<f32>,
    labels: Labels,
}

impl Laid {
    fn new(task: Task, count: usize, mixed: bool) -> Laid {
        Laid { images: Vec::new(), labels: Labels::for_task(task, count, mixed) }
    }

    fn push(&mut self, sample: &Sample) {
        self.push_mixed(sample, sample, 1.0);
    }

    /// Adds a sample with another laid over it. The whole of a sample (`share` 1) comes out to the bit.
    fn push_mixed(&mut self, own: &Sample, other: &Sample, own_share: f32) {
        mix_into(&mut self.images, &own.image, &other.image, own_share);
        self.labels.push_mixed(&own.label, &other.label, own_share);
    }
}
