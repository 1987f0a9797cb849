//! The steps of a recipe: torchvision's transforms, with its names, parameters and usual values.
//!
//! **Invariant:** a [`Step`] that has passed [`Step::check`] can be carried out on any image; what depends on the image
//! alone (a crop that is larger than the image) is found when it is there.
//!
//! What is deliberately not here: mix-up and CutMix, which need a whole batch.

use crate::decode::Size;

/// To which size images are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// The shorter side becomes so long, and the sides keep their proportions.
    Shorter(usize),
    /// Both sides.
    Exact {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
}

/// What a turned pixel is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// The four pixels around it, by their distances; outside of the image all are black.
    Bilinear,
}

/// What a part that is erased becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// All of it the same number. Before [`Step::Normalize`] it is between 0 (black) and 1 (white).
    Constant(f32),
    /// Each number drawn from the normal distribution.
    Noise,
}

/// One transform. See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Brings images to a size, by a triangle filter that is as wide as reducing needs (bilinear, antialiased).
    Resize {
        /// Which one.
        to: ResizeTo,
    },
    /// Cuts out the middle. What is too small is padded with black.
    CenterCrop {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// Cuts out a part of random area and proportions, and brings it to a size.
    RandomResizedCrop {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// The least and the most of the image's area. Usually 0.08 and 1.
        scale: (f32, f32),
        /// The least and the largest width divided by height. Usually 3/4 and 4/3.
        ratio: (f32, f32),
    },
    /// Pads with black and cuts out a part at a random place.
    RandomCrop {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Pixels that are added on each side before.
        padding: usize,
    },
    /// Mirrors, left to right.
    RandomHorizontalFlip {
        /// How probably. Usually 0.5.
        p: f32,
    },
    /// Mirrors, top to bottom.
    RandomVerticalFlip {
        /// How probably. Usually 0.5.
        p: f32,
    },
    /// Turns around the middle; corners become black.
    RandomRotation {
        /// By up to so many degrees to either side.
        degrees: f32,
        /// Of which pixels a pixel is made.
        interpolation: Interpolation,
    },
    /// Changes colours, in random order. 0 is no change.
    ColorJitter {
        /// Brightness is multiplied by up to 1 more or less than this.
        brightness: f32,
        /// So is the distance from the mean brightness,
        contrast: f32,
        /// and the distance from grey.
        saturation: f32,
        /// Hues are moved by up to this share of the circle to either side; at most 0.5.
        hue: f32,
    },
    /// Makes all bands the brightness.
    Grayscale,
    /// Erases a part of random area and proportions (cut-out).
    RandomErasing {
        /// How probably. Usually 0.5.
        p: f32,
        /// The least and the most of the image's area. Usually 0.02 and 0.33.
        scale: (f32, f32),
        /// The least and the largest height divided by width. Usually 0.3 and 3.3.
        ratio: (f32, f32),
        /// What it becomes.
        fill: Fill,
    },
    /// Brings bytes to 0 up to 1, subtracts the mean and divides by the deviation. One number for all bands, or one for
    /// each.
    Normalize {
        /// Subtracted.
        mean: Vec<f32>,
        /// Divided by.
        std: Vec<f32>,
    },
}

/// The longest side that an image is brought to: as long as a JPEG's can be.
const MAX_SIDE: usize = 65_535;

impl Step {
    /// `RandomResizedCrop` to a square, as usual.
    pub fn random_resized_crop(side: usize) -> Step {
        Step::RandomResizedCrop { height: side, width: side, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
    }

    /// `RandomErasing`, as usual.
    pub fn random_erasing(p: f32) -> Step {
        Step::RandomErasing { p, scale: (0.02, 0.33), ratio: (0.3, 3.3), fill: Fill::Constant(0.0) }
    }

    /// `Normalize` with the mean and deviation of ImageNet.
    pub fn normalize_imagenet() -> Step {
        Step::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }

    /// Whether all parameters make sense, for images of so many bands.
    pub(super) fn check(&self, bands: usize) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("`{self}`: {what}"));
        let ordered = |(low, high): (f32, f32)| low > 0.0 && low <= high && high.is_finite();
        let sides = self.fixed_size().map_or([1, 1], |size| [size.height, size.width]);
        if sides.iter().any(|side| !(1..=MAX_SIDE).contains(side)) {
            return wrong("sides have 1 to 65535 pixels");
        }
        match self {
            Step::Resize { to: ResizeTo::Shorter(side) } if !(1..=MAX_SIDE).contains(side) => {
                wrong("sides have 1 to 65535 pixels")
            }
            Step::RandomCrop { padding, .. } if *padding > MAX_SIDE => wrong("padding is at most 65535 pixels"),
            Step::RandomHorizontalFlip { p } | Step::RandomVerticalFlip { p } | Step::RandomErasing { p, .. }
                if !(0.0..=1.0).contains(p) =>
            {
                wrong("a probability is between 0 and 1")
            }
            Step::RandomResizedCrop { scale, ratio, .. } | Step::RandomErasing { scale, ratio, .. }
                if !ordered(*scale) || !ordered(*ratio) || scale.1 > 1.0 =>
            {
                wrong("scale lies between 0 and 1, ratio above 0, and the lower comes first")
            }
            Step::RandomErasing { fill: Fill::Constant(value), .. } if !value.is_finite() => wrong("no number"),
            Step::RandomRotation { degrees, .. } if !(0.0..=180.0).contains(degrees) => {
                wrong("degrees are between 0 and 180")
            }
            Step::ColorJitter { brightness, contrast, saturation, hue } => {
                let sound = [brightness, contrast, saturation].iter().all(|&&much| much >= 0.0 && much.is_finite());
                if sound && (0.0..=0.5).contains(hue) { Ok(()) } else { wrong("0 or more each; hue at most 0.5") }
            }
            Step::Normalize { mean, std } => {
                let fits = |numbers: &[f32]| numbers.len() == 1 || numbers.len() == bands;
                if !fits(mean) || !fits(std) {
                    return wrong(&format!("one number for all bands, or one for each of {bands}"));
                }
                if mean.iter().all(|mean| mean.is_finite()) && std.iter().all(|&std| std > 0.0 && std.is_finite()) {
                    Ok(())
                } else {
                    wrong("means are numbers, deviations are above 0")
                }
            }
            _ => Ok(()),
        }
    }

    /// The size that every image has afterwards, where it is the same for all.
    pub(super) fn fixed_size(&self) -> Option<Size> {
        match *self {
            Step::Resize { to: ResizeTo::Exact { height, width } }
            | Step::CenterCrop { height, width }
            | Step::RandomResizedCrop { height, width, .. }
            | Step::RandomCrop { height, width, .. } => Some(Size { height, width }),
            _ => None,
        }
    }

    /// What tells the step's own stream of chance from those of others. The numbers decide what is drawn.
    pub(super) fn stream(&self) -> u64 {
        match self {
            Step::Resize { .. } | Step::CenterCrop { .. } | Step::Grayscale | Step::Normalize { .. } => 0,
            Step::RandomResizedCrop { .. } => 1,
            Step::RandomCrop { .. } => 2,
            Step::RandomHorizontalFlip { .. } => 3,
            Step::RandomVerticalFlip { .. } => 4,
            Step::RandomRotation { .. } => 5,
            Step::ColorJitter { .. } => 6,
            Step::RandomErasing { .. } => 7,
        }
    }
}
