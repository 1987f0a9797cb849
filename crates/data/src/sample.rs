//! What is learned from: one image, what is known about it, and many of both as a batch.
//!
//! The vocabulary that models, data and trainer share. Images are `f32`, band by band, row by row (the layout
//! `[bands, height, width]`), of about zero mean and unit deviation; a brightness between 0 and 1 lies between -2 and 2
//! ([`PEAK`]). Numbers to be found are of that kind, too; the data set knows their unit. There is no tensor here:
//! batches are made by loader threads that know no tensor library.

/// From black to white: how far apart the darkest and the brightest pixel can be, which is what a peak signal-to-noise
/// ratio is about.
pub const PEAK: f32 = 4.0;

/// A brightness between 0 and 1 as a number of an image: the brightness of an average pixel becomes zero, its usual
/// deviation about one.
pub fn normalised(brightness: f32) -> f32 {
    (brightness - 0.5) * PEAK
}

/// Height, width and number of bands of an image. Colour images have three bands, satellites more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Colours, or wave lengths.
    pub bands: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// How many numbers an image of this shape has.
    pub fn len(self) -> usize {
        self.bands * self.height * self.width
    }

    /// Whether an image of this shape has no pixel at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// What is to be learned, and with how many outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One of several classes: cross entropy, judged by accuracy.
    SingleLabel {
        /// Number of classes.
        classes: usize,
    },
    /// Any of several labels at once: binary cross entropy, judged by F1.
    MultiLabel {
        /// Number of labels.
        labels: usize,
    },
    /// A number, such as an age: squared error, judged by mean absolute error.
    Regression,
    /// The same image, larger: L1, judged by peak signal-to-noise ratio.
    SuperResolution {
        /// How many times larger.
        scale: usize,
    },
}

/// What is known about one image.
#[derive(Clone, Debug, PartialEq)]
pub enum Label {
    /// The number of its class.
    Class(u32),
    /// For each label 1 where it applies, else 0.
    Labels(Vec<f32>),
    /// The number to be found.
    Value(f32),
    /// The larger image, `[bands, height * scale, width * scale]`.
    Image(Vec<f32>),
}

/// One image and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `[bands, height, width]`.
    pub image: Vec<f32>,
    /// What is known about it.
    pub label: Label,
}

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Learned from.
    Train,
    /// Judged by.
    Test,
}

/// Samples of one step of one rank, in one piece of memory for each kind.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleBatch {
    /// How many samples. May be zero where ranks have uneven shares.
    pub count: usize,
    /// `[count, bands, height, width]`.
    pub images: Vec<f32>,
    /// What is known about them.
    pub labels: Labels,
    /// How many samples all ranks have in this step together; known to every rank without asking.
    pub global_count: usize,
    /// How many samples could not be read and were replaced by others, or left out where [`Split::Test`] is read.
    pub replaced: usize,
}

/// The labels of a batch, one kind for all of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// `[count]`.
    Classes(Vec<u32>),
    /// Images of classes that were mixed with others: each is `share` of the class `first` and the rest of the class
    /// `second`. The loss is mixed alike. `[count]` each.
    Mixed {
        /// The class of the image itself.
        first: Vec<u32>,
        /// The class of the one that was mixed in.
        second: Vec<u32>,
        /// How much of the image is its own, from 0 to 1.
        share: Vec<f32>,
    },
    /// `[count, labels]`.
    Labels(Vec<f32>),
    /// `[count]`.
    Values(Vec<f32>),
    /// `[count, bands, height * scale, width * scale]`.
    Images(Vec<f32>),
}

impl Labels {
    /// No labels, with room for so many of a task, and of samples that are mixed with others or not.
    pub(crate) fn for_task(task: Task, count: usize, mixed: bool) -> Labels {
        match task {
            Task::SingleLabel { .. } if mixed => Labels::Mixed {
                first: Vec::with_capacity(count),
                second: Vec::with_capacity(count),
                share: Vec::with_capacity(count),
            },
            Task::SingleLabel { .. } => Labels::Classes(Vec::with_capacity(count)),
            Task::MultiLabel { labels } => Labels::Labels(Vec::with_capacity(count * labels)),
            Task::Regression => Labels::Values(Vec::with_capacity(count)),
            Task::SuperResolution { .. } => Labels::Images(Vec::new()),
        }
    }

    /// Adds the label of a sample that has another laid over it. The whole of a label (`own_share` 1) comes out to the
    /// bit. Both are of the kind that the task has.
    pub(crate) fn push_mixed(&mut self, own: &Label, other: &Label, own_share: f32) {
        match (self, own, other) {
            (Labels::Classes(classes), Label::Class(class), _) => classes.push(*class),
            (Labels::Mixed { first, second, share }, Label::Class(own), Label::Class(other)) => {
                first.push(*own);
                second.push(*other);
                share.push(own_share);
            }
            (Labels::Labels(all), Label::Labels(own), Label::Labels(other)) => mix_into(all, own, other, own_share),
            (Labels::Values(all), Label::Value(own), Label::Value(other)) => {
                mix_into(all, &[*own], &[*other], own_share)
            }
            (Labels::Images(all), Label::Image(own), Label::Image(other)) => mix_into(all, own, other, own_share),
            _ => unreachable!("every sample was checked to have a label of its task's kind"),
        }
    }

    /// Adds more of the same kind.
    pub(crate) fn append(&mut self, more: Labels) {
        match (self, more) {
            (Labels::Classes(all), Labels::Classes(more)) => all.extend(more),
            (Labels::Labels(all), Labels::Labels(more))
            | (Labels::Values(all), Labels::Values(more))
            | (Labels::Images(all), Labels::Images(more)) => all.extend(more),
            (Labels::Mixed { first, second, share }, Labels::Mixed { first: f, second: s, share: h }) => {
                first.extend(f);
                second.extend(s);
                share.extend(h);
            }
            _ => unreachable!("all labels of a batch are of one kind"),
        }
    }
}

/// Adds numbers with others laid over them.
pub(crate) fn mix_into(to: &mut Vec<f32>, own: &[f32], other: &[f32], own_share: f32) {
    if own_share == 1.0 {
        to.extend_from_slice(own);
    } else {
        to.extend(own.iter().zip(other).map(|(own, other)| own_share * own + (1.0 - own_share) * other));
    }
}
