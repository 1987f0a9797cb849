//! Samples changed by chance, so that a network cannot learn them by heart.
//!
//! What is done to a sample is decided by the seed, the epoch and the sample's number, and by nothing else: neither
//! ranks nor threads change it. Of a pair both images are changed together, and neither is interpolated, for its finest
//! detail is what is to be learned. *Mix-up* lays a second sample over the first and mixes what is known about them
//! alike; whoever makes batches chooses the second, because it has to come from the same global batch.

use std::str::FromStr;

use super::geometry;
use crate::chance::Chance;
use crate::sample::{ImageShape, Label, Sample, Task};

/// What may be done to samples. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augment {
    /// Half of the images are mirrored, left to right.
    pub flip: bool,
    /// Half of the images are mirrored, top to bottom. For images without an up, such as those of satellites.
    pub flip_rows: bool,
    /// Images are turned by a multiple of 90 degrees; those that are not square by 0 or 180.
    pub quarter_turns: bool,
    /// Images are turned by up to so many degrees to either side. Not done to pairs.
    pub angle_degrees: f32,
    /// Images are padded by so many pixels on each side and cut out at any place.
    pub crop_padding: usize,
    /// Samples are mixed with a share from the Beta distribution with this parameter; 0 is never. 0.2 is usual.
    pub mixup_alpha: f32,
}

/// The words of [`Augment::from_str`], for messages and help texts.
pub const AUGMENT_WORDS: &str = "none, flip, flip-rows, turn, rotate=DEGREES (10), crop=PIXELS (4), mixup=ALPHA (0.2)";

impl Augment {
    /// Nothing at all.
    pub fn none() -> Augment {
        Augment::default()
    }

    /// What is usual for a task: photographs are mirrored and moved a little, satellite images mirrored and turned,
    /// faces mirrored, pairs mirrored and turned.
    pub fn usual(task: Task) -> Augment {
        match task {
            Task::SingleLabel { .. } => Augment { flip: true, crop_padding: 4, ..Augment::none() },
            Task::MultiLabel { .. } | Task::SuperResolution { .. } => {
                Augment { flip: true, flip_rows: true, quarter_turns: true, ..Augment::none() }
            }
            Task::Regression => Augment { flip: true, ..Augment::none() },
        }
    }

    /// Changes one sample.
    pub fn apply(&self, sample: &mut Sample, shape: ImageShape, task: Task, chance: &mut Chance) {
        // Everything is drawn whether it is wanted or not, so that one setting does not change what another does.
        let (flip, flip_rows) = (chance.happens(0.5) && self.flip, chance.happens(0.5) && self.flip_rows);
        let quarters = chance.below(4);
        let angle = chance.between(-self.angle_degrees, self.angle_degrees);
        let (down, right) = (self.offset(chance), self.offset(chance));
        let scale = if let Task::SuperResolution { scale } = task { scale } else { 1 };
        let quarters = match (self.quarter_turns, shape.height == shape.width) {
            (false, _) => 0,
            (true, true) => quarters,
            (true, false) => quarters / 2 * 2,
        };
        let change = |image: &mut [f32], scale: usize| {
            let shape = ImageShape { bands: shape.bands, height: shape.height * scale, width: shape.width * scale };
            if flip != (quarters == 2) {
                geometry::mirror_columns(image, shape);
            }
            if flip_rows != (quarters == 2) {
                geometry::mirror_rows(image, shape);
            }
            if quarters % 2 == 1 {
                geometry::transpose(image, shape);
                if quarters == 1 { geometry::mirror_columns(image, shape) } else { geometry::mirror_rows(image, shape) }
            }
            if (down, right) != (0, 0) {
                geometry::shift(image, shape, down * scale as isize, right * scale as isize);
            }
        };
        if let Label::Image(larger) = &mut sample.label {
            change(larger, scale);
        } else if angle != 0.0 {
            geometry::turn(&mut sample.image, shape, angle);
        }
        change(&mut sample.image, 1);
    }

    fn offset(&self, chance: &mut Chance) -> isize {
        chance.below(2 * self.crop_padding + 1) as isize - self.crop_padding as isize
    }

    /// How much of a sample stays its own when it is mixed with another; 1 without mix-up. At least a half, so that the
    /// second never hides the first.
    pub fn own_share(&self, chance: &mut Chance) -> f32 {
        if self.mixup_alpha > 0.0 {
            let share = chance.beta(self.mixup_alpha);
            share.max(1.0 - share)
        } else {
            1.0
        }
    }
}

/// A number behind `=`, or the usual one where there is none.
fn number(word: &str, value: Option<&str>, usual: f32, range: std::ops::RangeInclusive<f32>) -> Result<f32, String> {
    let Some(text) = value else { return Ok(usual) };
    let parsed = text.parse::<f32>().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| {
        format!("`{word}={text}` is no augmentation: {word} takes a number from {} to {}", range.start(), range.end())
    })
}

impl FromStr for Augment {
    type Err = String;

    /// Words with commas between them, such as `flip,crop=4,mixup=0.2`.
    fn from_str(text: &str) -> Result<Augment, String> {
        let mut augment = Augment::none();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (word, value) = part.split_once('=').map_or((part, None), |(word, value)| (word, Some(value)));
            match (word, value) {
                ("none", None) => {}
                ("flip", None) => augment.flip = true,
                ("flip-rows", None) => augment.flip_rows = true,
                ("turn", None) => augment.quarter_turns = true,
                ("rotate", value) => augment.angle_degrees = number(word, value, 10.0, 0.0..=180.0)?,
                ("crop", value) => {
                    let pixels = number(word, value, 4.0, 0.0..=4096.0)?;
                    if pixels.fract() != 0.0 {
                        return Err(format!("`{part}` is no augmentation: there are no parts of pixels"));
                    }
                    augment.crop_padding = pixels as usize;
                }
                ("mixup", value) => augment.mixup_alpha = number(word, value, 0.2, 0.0..=100.0)?,
                _ => return Err(format!("`{part}` is no augmentation; there are: {AUGMENT_WORDS}")),
            }
        }
        Ok(augment)
    }
}

impl std::fmt::Display for Augment {
    /// In the words that [`Augment::from_str`] reads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words = Vec::new();
        words.extend(self.flip.then(|| "flip".to_owned()));
        words.extend(self.flip_rows.then(|| "flip-rows".to_owned()));
        words.extend(self.quarter_turns.then(|| "turn".to_owned()));
        words.extend((self.angle_degrees > 0.0).then(|| format!("rotate={}", self.angle_degrees)));
        words.extend((self.crop_padding > 0).then(|| format!("crop={}", self.crop_padding)));
        words.extend((self.mixup_alpha > 0.0).then(|| format!("mixup={}", self.mixup_alpha)));
        f.write_str(&if words.is_empty() { "none".to_owned() } else { words.join(",") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::resample::{Grid, coarsen};
    use super::*;
    use crate::chance::StreamPurpose;

    const SHAPE: ImageShape = ImageShape { bands: 2, height: 6, width: 6 };

    fn chance(index: u64) -> Chance {
        Chance::new(9, StreamPurpose::Augmentation, 0, index)
    }

    fn counted(shape: ImageShape) -> Vec<f32> {
        (0..shape.len()).map(|value| (value as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn nothing_wanted_is_nothing_done() {
        let before = Sample { image: counted(SHAPE), label: Label::Class(3) };
        for index in 0..20 {
            let mut after = before.clone();
            Augment::none().apply(&mut after, SHAPE, Task::SingleLabel { classes: 10 }, &mut chance(index));
            assert_eq!(after, before);
        }
    }

    #[test]
    fn pairs_are_changed_together() {
        let scale = 2;
        let large = ImageShape { bands: 2, height: 12, width: 12 };
        let all: Augment = "flip,flip-rows,turn,crop=2,rotate=30".parse().unwrap();
        let mut changed = 0;
        for index in 0..40 {
            let image = counted(large);
            let mut pair = Sample {
                image: coarsen(&image, Grid { height: 12, width: 12 }, scale),
                label: Label::Image(image.clone()),
            };
            all.apply(&mut pair, SHAPE, Task::SuperResolution { scale }, &mut chance(index));
            let Label::Image(larger) = &pair.label else { panic!("a pair stays a pair") };
            let again = coarsen(larger, Grid { height: 12, width: 12 }, scale);
            assert!(again.iter().zip(&pair.image).all(|(a, b)| (a - b).abs() < 1e-5), "the two came apart");
            changed += usize::from(*larger != image);
        }
        assert!(changed > 30);
    }

    #[test]
    fn turns_and_mirrors_reach_all_eight_positions_of_a_square() {
        let augment: Augment = "flip,flip-rows,turn".parse().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..200 {
            let mut sample = Sample { image: counted(SHAPE), label: Label::Class(0) };
            augment.apply(&mut sample, SHAPE, Task::SingleLabel { classes: 2 }, &mut chance(index));
            seen.insert(sample.image.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn images_that_are_not_square_are_turned_by_half_only() {
        let shape = ImageShape { bands: 1, height: 2, width: 3 };
        let augment: Augment = "turn".parse().unwrap();
        for index in 0..50 {
            let mut sample = Sample { image: vec![1., 2., 3., 4., 5., 6.], label: Label::Class(0) };
            augment.apply(&mut sample, shape, Task::SingleLabel { classes: 2 }, &mut chance(index));
            assert!(sample.image == [1., 2., 3., 4., 5., 6.] || sample.image == [6., 5., 4., 3., 2., 1.]);
        }
    }

    #[test]
    fn words_are_read_and_written_alike() {
        for text in ["none", "flip,crop=4", "flip,flip-rows,turn,rotate=7.5,crop=2,mixup=0.4"] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        assert_eq!("rotate, crop ,mixup".parse::<Augment>().unwrap().to_string(), "rotate=10,crop=4,mixup=0.2");
        for (wrong, says) in [
            ("flop", "there are: none, flip"),
            ("flip=2", "there are"),
            ("crop=-1", "from 0 to 4096"),
            ("crop=1.5", "parts of pixels"),
            ("mixup=NaN", "from 0 to 100"),
        ] {
            let error = wrong.parse::<Augment>().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_mixed_sample_is_mostly_itself() {
        let augment: Augment = "mixup=0.5".parse().unwrap();
        let mut chance = chance(0);
        assert!((0..1_000).all(|_| (0.5..=1.0).contains(&augment.own_share(&mut chance))));
        assert_eq!(Augment::none().own_share(&mut chance), 1.0);
    }
}
