//! Data to learn from: where samples come from, how they are changed, who gets which, and how they become batches in
//! time.
//!
//! A [`source`] says which samples there are: records of a [`storage`], whose files are of a [`mod@format`], or images
//! of a folder; [`synthetic`] makes them of a seed. [`decode`] makes pixels of encoded images and [`transform`] changes
//! them. A [`sampler`] says which rank takes which sample when, and a [`loader`] makes batches ahead of time, in order.
//! Everything random comes from [`chance`], named by a seed, so that neither the number of ranks nor of threads changes
//! what is learned from.
//!
//! [`sample`] has the vocabulary; [`limit`] says how much memory decoding one item may take.
//!
//! What is deliberately not here: tensors, and any communication between ranks. Ranks know each other's share by the
//! same law.

#![forbid(unsafe_code)]

pub mod chance;
pub mod convert;
pub mod decode;
pub mod format;
pub mod limit;
pub mod loader;
pub mod sample;
pub mod sampler;
pub mod source;
mod stage_times;
pub mod synthetic;
pub mod transform;

/// Where bytes lie: a crate of its own.
pub use farandole_storage as storage;
pub use loader::{Epoch, Loader, LoaderConfig, LoaderError};
pub use sampler::SampleOrder;
pub use stage_times::StageTimes;
pub use transform::Augment;

use crate::sample::{ImageShape, Sample, Split, Task};

/// Samples by their number.
pub trait DataSet: Send + Sync {
    /// The shape of each image; of the smaller one where there are pairs.
    fn shape(&self) -> ImageShape;

    /// What is to be learned.
    fn task(&self) -> Task;

    /// Number of samples of a split.
    fn len(&self, split: Split) -> usize;

    /// Whether a split has no samples.
    fn is_empty(&self, split: Split) -> bool {
        self.len(split) == 0
    }

    /// One sample. The same number gives the same sample, whatever was asked for before.
    fn sample(&self, split: Split, index: usize) -> Result<Sample, SampleError>;

    /// The same, with the time that its stages took. A data set that neither reads nor decodes has changed pixels all
    /// the time.
    fn sample_timed(&self, split: Split, index: usize, times: &mut StageTimes) -> Result<Sample, SampleError> {
        stage_times::timed(&mut times.transform_ns, || self.sample(split, index))
    }

    /// What people call a sample: the path of its file, where it has one.
    fn name(&self, split: Split, index: usize) -> String {
        let part = if split == Split::Train { "training" } else { "test" };
        format!("{part} sample {index}")
    }

    /// What the numbers of a regression mean.
    fn unit(&self) -> Unit {
        Unit::default()
    }

    /// The names of classes or labels, by number; empty where they have none.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// One line for people: what it is and how much of it.
    fn describe(&self) -> String;

    /// A number that is another one where samples have other names or labels, or come in another order: hosts that have
    /// copies of a data set find out by it whether these are the same.
    fn fingerprint(&self) -> u64 {
        0
    }
}

/// What the values of a regression mean to people: `value * deviation + mean` is in their unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// In the unit; zero as a value.
    pub mean: f32,
    /// In the unit; one as a value.
    pub deviation: f32,
    /// Its name, in the plural; may be empty.
    pub name: String,
}

impl Default for Unit {
    fn default() -> Unit {
        Unit { mean: 0.0, deviation: 1.0, name: String::new() }
    }
}

/// Why a sample cannot be had. A loader goes on with another one, and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleError {
    /// Which sample, as people call it.
    pub sample: String,
    /// Why not.
    pub cause: String,
}

impl std::fmt::Display for SampleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cannot be read: {}", self.sample, self.cause)
    }
}

impl std::error::Error for SampleError {}

/// Why there is no data set as it was asked for. Says what the user can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError(pub String);

impl std::fmt::Display for DataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DataError {}
