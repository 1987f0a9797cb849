//! Data sets that are made up as they are needed.
//!
//! Each has the shapes and the task of one that studies of data parallelism use, and can be learned: what a sample
//! shows depends on its label, but no single pixel does. Places, sizes, directions, colours and noise are left to
//! chance, so that averages over many images of a class look alike and a linear model learns next to nothing, while a
//! small convolutional network does well after some ten thousand samples. What sample `i` is depends on the seed, the
//! split and `i` alone: nothing is stored, any size is possible, and no sample takes part in making another.
//!
//! - [`cifar_like`]: shapes of ten kinds, in colour, 32 x 32 (`patterns`).
//! - [`imagenet_like`]: shapes, their textures and pairs of hues: up to a thousand classes, of any size (`patterns`).
//! - [`bigearthnet_like`]: land seen in twelve bands of three resolutions, with 43 labels that keep company (`land`).
//! - [`faces_like`]: faces, whose age is to be told (`faces`).
//! - [`pairs_like`]: images and their coarser selves (`pairs`).

mod faces;
mod land;
mod pairs;
mod patterns;
mod shapes;

use crate::chance::{Chance, StreamPurpose};
use crate::sample::{ImageShape, Sample, Split, Task};
use crate::{DataError, DataSet, SampleError, Unit};

pub use patterns::MAX_CLASSES;

/// How many samples a data set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// To learn from.
    pub train: usize,
    /// To be judged by.
    pub test: usize,
}

/// Standard deviation of the noise on every pixel, in brightness from 0 to 1, unless something else is said. A tenth of
/// the least difference between a shape and its ground: visible, and no obstacle to a network that averages.
pub const USUAL_NOISE: f32 = 0.05;

/// A data set out of a seed. See the module's text.
#[derive(Clone, Debug)]
pub struct Generated {
    name: &'static str,
    seed: u64,
    sizes: Sizes,
    shape: ImageShape,
    task: Task,
    unit: Unit,
    noise: f32,
    subject: Subject,
}

/// What is to be seen.
#[derive(Clone, Debug)]
enum Subject {
    Patterns(patterns::Patterns),
    Land(Box<land::Land>),
    Faces,
    Pairs,
}

/// Pixels on a side, at most: a larger image is a slip of the keyboard, and takes gigabytes.
const MAX_SIDE: usize = 8192;

fn check_side(side: usize, multiple: usize) -> Result<(), DataError> {
    if side == 0 || side > MAX_SIDE || !side.is_multiple_of(multiple) {
        let of = if multiple > 1 { format!(" and a multiple of {multiple}") } else { String::new() };
        return Err(DataError(format!(
            "images of {side} x {side} pixels cannot be made: a side is between 1 and {MAX_SIDE}{of}"
        )));
    }
    Ok(())
}

fn square(bands: usize, side: usize) -> ImageShape {
    ImageShape { bands, height: side, width: side }
}

/// Ten kinds of shapes in any colours, as large as the images of CIFAR-10.
pub fn cifar_like(seed: u64, sizes: Sizes) -> Generated {
    let (classes, side) = (10, 32);
    Generated {
        name: "CIFAR-like",
        seed,
        sizes,
        shape: square(3, side),
        task: Task::SingleLabel { classes },
        unit: Unit::default(),
        noise: USUAL_NOISE,
        subject: Subject::Patterns(patterns::Patterns { classes }),
    }
}

/// Up to a thousand classes of shapes with textures and pairs of hues, as square as the images of ImageNet are cut: 224
/// x 224, or any other size.
pub fn imagenet_like(seed: u64, sizes: Sizes, side: usize, classes: usize) -> Result<Generated, DataError> {
    check_side(side, 1)?;
    if classes == 0 || classes > MAX_CLASSES {
        return Err(DataError(format!("{classes} classes cannot be made: there are 1 to {MAX_CLASSES}")));
    }
    let (task, subject) = (Task::SingleLabel { classes }, Subject::Patterns(patterns::Patterns { classes }));
    Ok(Generated { name: "ImageNet-like", shape: square(3, side), task, subject, ..cifar_like(seed, sizes) })
}

/// Land in the twelve bands of Sentinel-2 that BigEarthNet has, four of 10 m, six of 20 m and two of 60 m, brought to
/// the grid of the finest, with any of its 43 labels. BigEarthNet's images have 120 pixels on a side; here any multiple
/// of 6.
pub fn bigearthnet_like(seed: u64, sizes: Sizes, side: usize) -> Result<Generated, DataError> {
    check_side(side, land::COARSEST)?;
    let (task, subject) = (Task::MultiLabel { labels: land::LABELS }, Subject::Land(Box::new(land::Land::new(seed))));
    Ok(Generated {
        name: "BigEarthNet-like",
        shape: square(land::BANDS, side),
        task,
        subject,
        ..cifar_like(seed, sizes)
    })
}

/// Faces, whose age is to be told.
pub fn faces_like(seed: u64, sizes: Sizes, side: usize) -> Result<Generated, DataError> {
    check_side(side, 1)?;
    let (shape, unit) = (square(3, side), faces::unit());
    Ok(Generated {
        name: "faces-with-age-like",
        shape,
        task: Task::Regression,
        unit,
        subject: Subject::Faces,
        ..cifar_like(seed, sizes)
    })
}

/// Images of `side` x `side` pixels, and the same `scale` times larger.
pub fn pairs_like(seed: u64, sizes: Sizes, side: usize, scale: usize) -> Result<Generated, DataError> {
    check_side(side, 1)?;
    if !(2..=8).contains(&scale) {
        return Err(DataError(format!("images cannot be made {scale} times larger: 2 to 8 times can")));
    }
    check_side(side * scale, 1)?;
    let (shape, task) = (square(3, side), Task::SuperResolution { scale });
    // What is noise in a small image cannot be known of the large one, and what it is in the large one cannot be
    // learned.
    Ok(Generated { name: "pairs", shape, task, noise: 0.0, subject: Subject::Pairs, ..cifar_like(seed, sizes) })
}

impl Generated {
    /// The same with another deviation of the noise on every pixel, in brightness from 0 to 1. Pairs have none.
    pub fn with_noise(self, noise: f32) -> Generated {
        Generated { noise, ..self }
    }
}

impl DataSet for Generated {
    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn task(&self) -> Task {
        self.task
    }

    fn len(&self, split: Split) -> usize {
        match split {
            Split::Train => self.sizes.train,
            Split::Test => self.sizes.test,
        }
    }

    fn sample(&self, split: Split, index: usize) -> Result<Sample, SampleError> {
        let length = self.len(split);
        if index >= length {
            let cause = format!("there are {length}, and they begin with 0");
            return Err(SampleError { sample: self.name(split, index), cause });
        }
        let purpose = if split == Split::Train { StreamPurpose::TrainSample } else { StreamPurpose::TestSample };
        let mut chance = Chance::new(self.seed, purpose, index as u64, 0);
        let side = self.shape.width;
        Ok(match &self.subject {
            Subject::Patterns(patterns) => patterns.sample(index, side, self.noise, &mut chance),
            Subject::Land(land) => land.sample(side, self.noise, &mut chance),
            Subject::Faces => faces::sample(side, self.noise, &mut chance),
            Subject::Pairs => {
                let Task::SuperResolution { scale } = self.task else { unreachable!("pairs are for super-resolution") };
                pairs::sample(side, scale, &mut chance)
            }
        })
    }

    fn unit(&self) -> Unit {
        self.unit.clone()
    }

    fn describe(&self) -> String {
        let ImageShape { bands, height, width } = self.shape;
        let what = match self.task {
            Task::SingleLabel { classes } => format!("{classes} classes"),
            Task::MultiLabel { labels } => format!("any of {labels} labels"),
            Task::Regression => format!("{} to be told", self.unit.name),
            Task::SuperResolution { scale } => format!("to be made {scale} times larger"),
        };
        let Sizes { train, test } = self.sizes;
        format!("{} (generated): {train} + {test} images of {bands} x {height} x {width}, {what}", self.name)
    }
}

#[cfg(test)]
mod tests;
