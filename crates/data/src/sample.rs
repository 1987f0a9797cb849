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
