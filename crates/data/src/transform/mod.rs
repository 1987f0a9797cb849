//! What is done to a sample between its encoded image and its place in a batch.
//!
//! A [`Recipe`] is a list of [`Step`]s with a fixed output shape. It decodes an image, changes it and writes it in the
//! wanted [`Element`]s and [`Layout`]. Crops and resizes at its beginning become one `view`: only the part of the
//! image that is seen is decoded, and it is resized once. In between, pixels are bytes. Mirroring, division by 255,
//! normalisation, order and kind of numbers are one last pass (`store`). Floats without `Normalize` lie between 0 and
//! 1, as `ToTensor` of torchvision makes them.
//!
//! **Reduced decoding.** Where an image is to be reduced to half of its size or less on both axes, a JPEG is decoded at
//! 1/2, 1/4 or 1/8 of its size, but never below the size that is wanted; the resize that follows does the rest. It is
//! what PIL calls draft mode. torchvision does not do this, and results are not bit by bit those of full size;
//! [`Recipe::at_full_size`] switches it off.
//!
//! **Invariant:** the output depends on the recipe, the encoded image and the [`Chance`]; neither on the thread nor on
//! what a [`Scratch`] was used for before. Each step draws from a stream of its own, so a step that is added or left
//! out does not change what others draw.
//!
//! What is deliberately not here: mix-up and CutMix, which need a whole batch.

pub(crate) mod augment;
mod colour;
pub(crate) mod fit;
mod geometry;
mod pixels;
mod reduced;
pub(crate) mod resample;
mod resize;
mod step;
mod store;
mod view;
mod words;

use std::time::Instant;

use fast_image_resize::Resizer;

pub use augment::{AUGMENT_WORDS, Augment};
pub use reduced::decode_reduced;
pub use step::{Fill, Interpolation, ResizeTo, Step};
pub use words::{STEP_WORDS, steps};

use crate::chance::Chance;
use crate::decode::{Colours, Decoder, MAX_PIXELS, Picture, Pixel, Rect, Size, Source};
use crate::sample::ImageShape;
use crate::stage_times::StageTimes;
use colour::Jitter;
use store::{Erasure, Mirror, Target};
use view::View;

/// The kind of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Bytes, 0 to 255.
    U8,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
}

impl Element {
    /// How many bytes a number has.
    pub fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::BF16 => 2,
            Element::F32 => 4,
        }
    }
}

/// The order of the numbers of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Band by band, as PyTorch has it.
    Nchw,
    /// Pixel by pixel, as TensorFlow has it.
    Nhwc,
}

/// Memory that is used again, one for each thread.
#[derive(Default)]
pub struct Scratch {
    decoder: Decoder,
    picture: Picture,
    spare: Picture,
    row: Vec<Pixel>,
    erasures: Vec<Erasure>,
    resizer: Resizer,
    times: StageTimes,
}

impl Scratch {
    /// How long the stages of all samples took since this was last asked.
    pub fn take_times(&mut self) -> StageTimes {
        let colour_ns = self.decoder.take_colour_ns();
        StageTimes { colour_ns, ..std::mem::take(&mut self.times) }
    }
}

/// Steps after decoding, with a fixed output shape. See the module's text.
#[derive(Clone, Debug)]
pub struct Recipe {
    steps: Vec<Step>,
    size: Size,
    colours: Colours,
    target: Target,
    reduced: bool,
}

impl Recipe {
    /// Checks that the steps make sense one by one and together. `bands` is 1 (grey) or 3 (red, green, blue).
    pub fn new(steps: Vec<Step>, bands: usize, element: Element, layout: Layout) -> Result<Recipe, String> {
        if bands != 1 && bands != 3 {
            return Err(format!("images have 1 or 3 bands, not {bands}"));
        }
        steps.iter().try_for_each(|step| step.check(bands))?;
        check_order(&steps, element)?;
        let size = final_size(&steps).ok_or(
            "images have different sizes at the end: one of the steps has to give all the same size, such as \
             resize=HxW, center-crop, random-crop or random-resized-crop",
        )?;
        if size.height * size.width > MAX_PIXELS {
            return Err(format!("{} x {} pixels are too many", size.width, size.height));
        }
        // Colours are needed for three bands, and where they are changed before they become grey.
        let coloured = steps.iter().any(|step| matches!(step, Step::ColorJitter { .. }))
            && steps.iter().any(|step| matches!(step, Step::Grayscale));
        let colours = if bands == 3 || coloured { Colours::Rgb } else { Colours::Grey };
        let (mut scale, mut bias) = ([1.0 / 255.0; 3], [0.0; 3]);
        if let Some(Step::Normalize { mean, std }) = steps.iter().find(|step| matches!(step, Step::Normalize { .. })) {
            for band in 0..bands {
                let (mean, std) = (mean[band.min(mean.len() - 1)], std[band.min(std.len() - 1)]);
                scale[band] = (1.0 / (255.0 * f64::from(std))) as f32;
                bias[band] = (-f64::from(mean) / f64::from(std)) as f32;
            }
        }
        let target = Target { bands, element, layout, scale, bias };
        Ok(Recipe { steps, size, colours, target, reduced: true })
    }

    /// The same recipe without reduced decoding: see the module's text.
    pub fn at_full_size(self) -> Recipe {
        Recipe { reduced: false, ..self }
    }

    /// The shape of every output.
    pub fn shape(&self) -> ImageShape {
        ImageShape { bands: self.target.bands, height: self.size.height, width: self.size.width }
    }

    /// How many bytes every output has.
    pub fn sample_bytes(&self) -> usize {
        self.shape().len() * self.target.element.bytes()
    }

    /// Decodes, changes and writes one sample. `chance` decides what is random, and nothing else does. `out` has
    /// [`Recipe::sample_bytes`] bytes. The error is the cause alone; `out` then has no meaning.
    pub fn apply(
        &self,
        encoded: &[u8],
        chance: &mut Chance,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), String> {
        assert_eq!(out.len(), self.sample_bytes(), "invariant: an output has room for exactly one sample");
        let mut clock = Clock::start();
        let source = Source::new(encoded)?;
        let mut pass = Pass { recipe: self, chance, scratch, mirror: Mirror::default(), next: 0 };
        let stored = source.size();
        let view = pass.view(stored)?;
        let view = pass.decode(&source, view)?;
        let decode_ns = clock.lap();
        pass.finish_view(view);
        while pass.next < self.steps.len() {
            pass.step()?;
        }
        let mirror = pass.mirror;
        let transform_ns = clock.lap();
        let Scratch { picture, row, erasures, times, .. } = scratch;
        assert_eq!(picture.size(), self.size, "invariant: the size at the end is what the recipe has promised");
        store::store(picture, mirror, &self.target, erasures, row, out);
        // The next sample with the same stream draws something else.
        chance.bits();
        times.decode_ns += decode_ns;
        times.stored_pixels += (stored.height * stored.width) as u64;
        times.transform_ns += transform_ns;
        times.store_ns += clock.lap();
        Ok(())
    }

    /// The stream of a step: by its kind, and by how many of the same kind come before it.
    fn stream(&self, number: usize, chance: &Chance) -> Chance {
        let kind = self.steps[number].stream();
        let before = self.steps[..number].iter().filter(|step| step.stream() == kind).count();
        // No recipe has 256 kinds.
        chance.stream(kind | (before as u64) << 8)
    }
}

/// After erasing and normalising there are numbers in place of pixels, and each is done only once.
fn check_order(steps: &[Step], element: Element) -> Result<(), String> {
    let is_normalize = |step: &Step| matches!(step, Step::Normalize { .. });
    let mut numbers = None;
    for step in steps {
        match (step, numbers) {
            (Step::Normalize { .. } | Step::RandomErasing { .. }, _) => numbers = Some(step),
            (Step::RandomHorizontalFlip { .. } | Step::RandomVerticalFlip { .. }, _) | (_, None) => {}
            (_, Some(before)) => {
                return Err(format!("`{step}` stands behind `{before}`: only flips, erase and normalize may do so"));
            }
        }
    }
    if steps.iter().filter(|step| is_normalize(step)).count() > 1 {
        return Err("normalize stands twice".to_owned());
    }
    if element == Element::U8 {
        if let Some(step) = steps.iter().find(|step| is_normalize(step)) {
            return Err(format!("`{step}` makes fractions, and the output has bytes: leave it out, or ask for floats"));
        }
        if let Some(step) = steps.iter().find(|step| matches!(step, Step::RandomErasing { fill: Fill::Noise, .. })) {
            return Err(format!("`{step}` makes fractions, and the output has bytes: fill with a constant"));
        }
    }
    Ok(())
}

/// The size after all steps, where it does not depend on the image.
fn final_size(steps: &[Step]) -> Option<Size> {
    steps.iter().fold(None, |size, step| match step {
        Step::Resize { to } => step.fixed_size().or_else(|| size.map(|size| view::resized(size, *to))),
        _ => step.fixed_size().or(size),
    })
}

/// A clock for stages.
struct Clock(Instant);

impl Clock {
    fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Nanoseconds since the last call.
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let ns = now.duration_since(self.0).as_nanos() as u64;
        self.0 = now;
        ns
    }
}

/// One sample on its way through the steps.
struct Pass<'a> {
    recipe: &'a Recipe,
    chance: &'a Chance,
    scratch: &'a mut Scratch,
    /// What is still to be mirrored. Colours do not care, so it is put off as long as possible.
    mirror: Mirror,
    /// The number of the next step.
    next: usize,
}

impl Pass<'_> {
    /// Takes all next steps that can be one view of an image.
    fn view(&mut self, size: Size) -> Result<View, String> {
        self.scratch.erasures.clear();
        let mut view = View::whole(size);
        while let Some(step) = self.recipe.steps.get(self.next) {
            let chance = || self.recipe.stream(self.next, self.chance);
            let Some(after) = view.after(step, chance) else { break };
            view = after;
            self.next += 1;
        }
        let Size { height, width } = view.size;
        if height * width > MAX_PIXELS {
            return Err(format!("an image of {} x {} pixels becomes too large", size.width, size.height));
        }
        Ok(view)
    }

    /// Decodes what a view needs. Returns the view of the image as it is decoded, which may be a reduced one.
    fn decode(&mut self, source: &Source<'_>, view: View) -> Result<View, String> {
        let (down, across) = view.reduction();
        let reduction = if self.recipe.reduced { source.reduction(down.min(across)) } else { 1 };
        let view = view.reduced(reduction);
        let Scratch { decoder, picture, .. } = &mut *self.scratch;
        source.decode(view.part(), reduction, self.recipe.colours, decoder, picture)?;
        Ok(view)
    }

    /// Brings what was decoded for a view to its size.
    fn finish_view(&mut self, view: View) {
        let Rect { top, left, .. } = view.part();
        let Scratch { picture, spare, resizer, .. } = &mut *self.scratch;
        if picture.size() != view.size || view.reduction() != (1.0, 1.0) {
            let seen = view.seen.moved(top, left);
            resize::resize(resizer, picture, seen, view.size, spare);
            std::mem::swap(picture, spare);
        }
    }

    /// Does the next step, and those that can be one with it.
    fn step(&mut self) -> Result<(), String> {
        let step = &self.recipe.steps[self.next];
        let mut chance = self.recipe.stream(self.next, self.chance);
        match *step {
            Step::Resize { .. } | Step::RandomResizedCrop { .. } => return self.view_again(),
            Step::CenterCrop { height, width } => {
                let size = self.scratch.picture.size();
                if height <= size.height && width <= size.width {
                    return self.view_again();
                }
                self.pad_and_crop(size, Size { height, width });
            }
            Step::RandomCrop { height, width, padding } => {
                let size = self.scratch.picture.size();
                let padded = Size { height: size.height + 2 * padding, width: size.width + 2 * padding };
                if padded.height < height || padded.width < width {
                    let Size { height: high, width: wide } = size;
                    return Err(format!("`{step}` cannot be cut out of {wide} x {high} pixels"));
                }
                let part = view::placed(padded, Size { height, width }, &mut chance);
                let (top, left) = (part.top as isize - padding as isize, part.left as isize - padding as isize);
                self.crop(top, left, Size { height, width });
            }
            Step::RandomHorizontalFlip { p } if chance.happens(p) => self.flip(Mirror { columns: true, rows: false }),
            Step::RandomVerticalFlip { p } if chance.happens(p) => self.flip(Mirror { columns: false, rows: true }),
            Step::RandomRotation { degrees, interpolation } => {
                self.mirror_now();
                let angle = chance.between(-degrees, degrees);
                pixels::turn(&self.scratch.picture, angle, interpolation, &mut self.scratch.spare);
                self.swap();
            }
            Step::ColorJitter { brightness, contrast, saturation, hue } => {
                let grey = self.recipe.colours == Colours::Grey;
                let (saturation, hue) = if grey { (0.0, 0.0) } else { (saturation, hue) };
                let much = Jitter { brightness, contrast, saturation, hue };
                colour::jitter(&mut self.scratch.picture, much, &mut chance);
            }
            Step::Grayscale => colour::grayscale(&mut self.scratch.picture),
            Step::RandomErasing { p, scale, ratio, fill } if chance.happens(p) => {
                self.erase(scale, ratio, fill, chance);
            }
            // What the last pass does, and what does not happen.
            Step::Normalize { .. }
            | Step::RandomHorizontalFlip { .. }
            | Step::RandomVerticalFlip { .. }
            | Step::RandomErasing { .. } => {}
        }
        self.next += 1;
        Ok(())
    }

    /// A view of pixels in place of an encoded image.
    fn view_again(&mut self) -> Result<(), String> {
        self.mirror_now();
        let erasures = std::mem::take(&mut self.scratch.erasures);
        let view = self.view(self.scratch.picture.size())?;
        self.scratch.erasures = erasures;
        let part = view.part();
        if part.size() != self.scratch.picture.size() {
            pixels::crop_within(&self.scratch.picture, part, &mut self.scratch.spare);
            self.swap();
        }
        self.finish_view(view);
        Ok(())
    }

    fn pad_and_crop(&mut self, size: Size, wanted: Size) {
        let offset = |long: usize, short: usize| match long.checked_sub(short) {
            // Python's `round`: halves go to the even number.
            Some(rest) => (rest as f64 / 2.0).round_ties_even() as isize,
            None => -(((short - long) / 2) as isize),
        };
        self.crop(offset(size.height, wanted.height), offset(size.width, wanted.width), wanted);
    }

    fn crop(&mut self, top: isize, left: isize, size: Size) {
        self.mirror_now();
        pixels::crop(&self.scratch.picture, top, left, size, &mut self.scratch.spare);
        self.swap();
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.scratch.picture, &mut self.scratch.spare);
    }

    fn flip(&mut self, which: Mirror) {
        self.mirror.columns ^= which.columns;
        self.mirror.rows ^= which.rows;
        let Size { height, width } = self.recipe.size;
        for Erasure { part, .. } in &mut self.scratch.erasures {
            if which.columns {
                part.left = width - part.right();
            }
            if which.rows {
                part.top = height - part.bottom();
            }
        }
    }

    /// Mirrors pixels before a step for which it matters.
    fn mirror_now(&mut self) {
        if self.mirror.columns {
            pixels::mirror_columns(&mut self.scratch.picture);
        }
        if self.mirror.rows {
            pixels::mirror_rows(&mut self.scratch.picture);
        }
        self.mirror = Mirror::default();
    }

    fn erase(&mut self, scale: (f32, f32), ratio: (f32, f32), fill: Fill, mut chance: Chance) {
        let part = view::random_part(self.recipe.size, scale, ratio, &mut chance);
        let later = &self.recipe.steps[self.next..];
        let before_normalize = later.iter().any(|step| matches!(step, Step::Normalize { .. }));
        self.scratch.erasures.extend(part.map(|part| Erasure { part, fill, chance, before_normalize }));
    }
}

#[cfg(test)]
mod tests;
