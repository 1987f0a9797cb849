//! What a loader makes batches of, and how one sample becomes numbers.
//!
//! [`Input::Records`] are encoded images, which a recipe decodes and changes, or their bytes as they are.
//! [`Input::Samples`] are those of a data set: any number of bands, and pairs of images; they are 32-bit floats.
//!
//! **Invariant:** a sample depends on the input, its number and the stream of chance alone.

use std::sync::Arc;

use super::mix::{Format, Mixing};
use crate::chance::Chance;
use crate::sample::{ImageShape, Label, Split, Task};
use crate::source::Records;
use crate::stage_times::{StageTimes, timed};
use crate::transform::{Augment, Element, Layout, Recipe, Scratch, Step};
use crate::{DataSet, SampleError};

/// The least and the most samples of a part. A data set may make a sample in microseconds: fewer are not worth a lock.
const PART_SAMPLES: (usize, usize) = (8, usize::MAX);

/// The same for images. One takes a millisecond or more, so even one is worth a lock; eight make a tenth of the events
/// in a trace.
const PART_IMAGES: (usize, usize) = (1, 8);

/// The same for records that are not decoded, which take microseconds.
const PART_RECORDS: (usize, usize) = (1, 64);

/// What batches are made of. See the module's text.
#[derive(Clone)]
pub enum Input {
    /// Records.
    Records {
        /// Where they come from.
        records: Arc<dyn Records>,
        /// What becomes of them.
        content: Content,
    },
    /// Samples of a data set.
    Samples {
        /// The data set.
        data: Arc<dyn DataSet>,
        /// Which part of it.
        split: Split,
        /// How samples of [`Split::Train`] are changed; those of [`Split::Test`] stay as they are.
        augment: Augment,
    },
}

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

    /// The order of its numbers.
    pub fn layout(&self) -> Layout {
        self.layout
    }
}

/// Why a sample was not made.
pub(super) enum Failed {
    /// It cannot be read.
    Unreadable(SampleError),
    /// It is not what the input says of itself; the cause alone.
    Misfit(String),
}

/// Memory for making samples that is reused.
#[derive(Default)]
pub(super) struct SampleScratch {
    /// The record, as it was read.
    pub(super) encoded: Vec<u8>,
    transform: Scratch,
    times: StageTimes,
}

impl SampleScratch {
    /// What was made since this was last asked took.
    pub(super) fn take_times(&mut self) -> StageTimes {
        let mut times = std::mem::take(&mut self.times);
        times.add(self.transform.take_times());
        times
    }
}

impl Input {
    /// The number of samples.
    pub(super) fn len(&self) -> usize {
        match self {
            Input::Records { records, .. } => records.len(),
            Input::Samples { data, split, .. } => data.len(*split),
        }
    }

    /// What is to be learned.
    pub fn task(&self) -> Task {
        match self {
            Input::Records { records, .. } => records.task(),
            Input::Samples { data, .. } => data.task(),
        }
    }

    /// What people call a sample.
    pub(super) fn name(&self, index: usize) -> String {
        match self {
            Input::Records { records, .. } => records.name(index),
            Input::Samples { data, split, .. } => data.name(*split, index),
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Input::Records { records, .. } => records.describe(),
            Input::Samples { data, .. } => data.describe(),
        }
    }

    /// What the numbers of a sample are; nothing where records stay encoded.
    pub(super) fn format(&self) -> Option<Format> {
        match self {
            Input::Records { content: Content::Encoded, .. } => None,
            Input::Records { content: Content::Images(Pixels { recipe, element, layout }), .. } => {
                Some(Format { shape: recipe.shape(), element: *element, layout: *layout })
            }
            Input::Samples { data, .. } => {
                Some(Format { shape: data.shape(), element: Element::F32, layout: Layout::Nchw })
            }
        }
    }

    /// How samples are mixed, where this is asked for. Those of a test are not, and a data set's augmentation has a
    /// word for mix-up.
    pub(super) fn mixing(&self, asked: Mixing) -> Mixing {
        match self {
            Input::Records { .. } => asked,
            Input::Samples { split: Split::Test, .. } => Mixing::default(),
            Input::Samples { augment, .. } => Mixing { mixup_alpha: augment.mixup_alpha, ..asked },
        }
    }

    /// The least and the most samples of a part.
    pub(super) fn part_limits(&self) -> (usize, usize) {
        match self {
            Input::Records { content: Content::Encoded, .. } => PART_RECORDS,
            Input::Records { .. } => PART_IMAGES,
            Input::Samples { .. } => PART_SAMPLES,
        }
    }

    /// Whether samples are learned from. What is judged by is made at other times, and would be mixed with it in a
    /// trace.
    pub(super) fn is_learned_from(&self) -> bool {
        !matches!(self, Input::Samples { split: Split::Test, .. })
    }

    /// Makes one sample: writes its numbers to `out`, or leaves a record in the scratch memory.
    pub(super) fn make(
        &self,
        index: usize,
        chance: &mut Chance,
        out: &mut [u8],
        scratch: &mut SampleScratch,
    ) -> Result<Label, Failed> {
        let SampleScratch { encoded, transform, times } = scratch;
        let label = match self {
            Input::Records { records, content } => {
                let label = timed(&mut times.read_ns, || records.read(index, encoded)).map_err(Failed::Unreadable)?;
                if let Content::Images(pixels) = content {
                    let done = pixels.recipe.apply(encoded, chance, out, transform);
                    let fail = |cause| Failed::Unreadable(SampleError { sample: records.name(index), cause });
                    done.map_err(fail)?;
                }
                times.encoded_bytes += encoded.len() as u64;
                self.check(&label)?;
                label
            }
            Input::Samples { data, split, augment } => {
                let mut sample = data.sample_timed(*split, index, times).map_err(Failed::Unreadable)?;
                let (shape, task) = (data.shape(), data.task());
                if sample.image.len() != shape.len() {
                    let (found, wanted) = (sample.image.len(), shape.len());
                    return Err(Failed::Misfit(format!("its image has {found} numbers instead of {wanted}")));
                }
                self.check(&sample.label)?;
                if *split == Split::Train {
                    timed(&mut times.transform_ns, || augment.apply(&mut sample, shape, task, chance));
                }
                timed(&mut times.store_ns, || {
                    let numbers = out.as_chunks_mut().0.iter_mut().zip(&sample.image);
                    numbers.for_each(|(bytes, number)| *bytes = number.to_ne_bytes());
                });
                sample.label
            }
        };
        times.samples += 1;
        times.made_pixels += self.format().map_or(0, |format| (format.shape.height * format.shape.width) as u64);
        Ok(label)
    }

    /// Whether a label is of the kind that the input says.
    fn check(&self, label: &Label) -> Result<(), Failed> {
        let cause = match (self.task(), label) {
            (Task::SingleLabel { classes }, Label::Class(class)) => {
                (*class as usize >= classes).then(|| format!("class {class} is none of {classes}, which begin with 0"))
            }
            (Task::MultiLabel { labels }, Label::Labels(given)) => {
                (given.len() != labels).then(|| format!("it has {} labels instead of {labels}", given.len()))
            }
            (Task::Regression, Label::Value(value)) => (!value.is_finite()).then(|| format!("its value is {value}")),
            (Task::SuperResolution { scale }, Label::Image(larger)) => {
                let expected = self.format().map_or(0, |format| format.shape.len() * scale * scale);
                let misfit = larger.len() != expected;
                misfit.then(|| format!("its larger image has {} numbers instead of {expected}", larger.len()))
            }
            _ => Some("its label is of another kind than the task".to_owned()),
        };
        cause.map_or(Ok(()), |cause| Err(Failed::Misfit(cause)))
    }
}
