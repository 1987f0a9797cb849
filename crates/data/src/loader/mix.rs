//! Two samples made one: mix-up and CutMix.
//!
//! Positions are paired within the global batch, the first with the second and so on, which is a random pairing because
//! the order is; each of a pair gets some of the other. A partner that another rank has is made once more, so mixing is
//! the same for any number of ranks. *Mix-up* lays the other over a sample; *CutMix* pastes a box of it, at a random
//! place, whose area follows from the share. What becomes of a sample is drawn from a stream of its own, so it depends
//! on no rank, no worker and no other setting.
//!
//! **Invariant:** a share of 1 leaves a sample as it is, to the bit. With CutMix the share is that of the pixels.

use std::ops::Range;

use half::{bf16, f16};

use crate::chance::Chance;
use crate::sample::ImageShape;
use crate::transform::{Element, Layout};

/// How samples of a batch are mixed. The default is not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mixing {
    /// Shares of mix-up are from the Beta distribution with this parameter; 0 is never. 0.2 is usual.
    pub mixup_alpha: f32,
    /// Those of CutMix; 1 is usual. Where both are above 0, each sample has one or the other.
    pub cutmix_alpha: f32,
}

impl Mixing {
    /// Whether anything is mixed.
    pub fn is_wanted(&self) -> bool {
        self.mixup_alpha > 0.0 || self.cutmix_alpha > 0.0
    }

    /// Why this cannot be done, if it cannot.
    pub(crate) fn check(&self, element: Element) -> Result<(), String> {
        let sound = |alpha: f32| (0.0..=100.0).contains(&alpha);
        if !sound(self.mixup_alpha) || !sound(self.cutmix_alpha) {
            return Err("the parameter of mix-up or CutMix is a number from 0 to 100".to_owned());
        }
        if self.mixup_alpha > 0.0 && element == Element::U8 {
            return Err("mix-up makes fractions, and the batches have bytes: ask for floats, or for CutMix".to_owned());
        }
        Ok(())
    }

    /// What becomes of a sample.
    pub(crate) fn draw(&self, shape: ImageShape, chance: &mut Chance) -> Mixture {
        let cut = self.cutmix_alpha > 0.0 && (self.mixup_alpha == 0.0 || chance.happens(0.5));
        if cut {
            return Mixture::Paste(CutBox::draw(chance.beta(self.cutmix_alpha), shape, chance));
        }
        let share = chance.beta(self.mixup_alpha);
        // At least a half, so that the second never hides the first.
        Mixture::Blend(share.max(1.0 - share))
    }
}

/// The position whose sample is mixed in, unless the global batch is odd and this is its last.
pub(super) fn partner(global: &Range<usize>, position: usize) -> Option<usize> {
    let partner = global.start + ((position - global.start) ^ 1);
    global.contains(&partner).then_some(partner)
}

/// What becomes of one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mixture {
    /// It stays as it is.
    Whole,
    /// This share of each number is its own.
    Blend(f32),
    /// A box is the other's.
    Paste(CutBox),
}

impl Mixture {
    /// How much of a sample is its own.
    pub(crate) fn share(&self, shape: ImageShape) -> f32 {
        match self {
            Mixture::Whole => 1.0,
            Mixture::Blend(share) => *share,
            Mixture::Paste(cut) => 1.0 - cut.area() as f32 / (shape.height * shape.width) as f32,
        }
    }
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CutBox {
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

impl CutBox {
    /// A box around any pixel, with the image's proportions and the area that leaves the share; what is outside of
    /// the image is cut off.
    fn draw(share: f32, shape: ImageShape, chance: &mut Chance) -> CutBox {
        let side = (1.0 - share).max(0.0).sqrt() / 2.0;
        let mut range = |length: usize| {
            let (middle, half) = (chance.below(length), (side * length as f32) as usize);
            (middle.saturating_sub(half), (middle + half).min(length))
        };
        let ((top, bottom), (left, right)) = (range(shape.height), range(shape.width));
        CutBox { top, bottom, left, right }
    }

    fn area(&self) -> usize {
        (self.bottom - self.top) * (self.right - self.left)
    }

    /// The bytes of its rows, in all bands.
    fn runs(self, format: Format) -> impl Iterator<Item = Range<usize>> {
        let Format { shape, element, layout } = format;
        let (bands, pixel) = match layout {
            Layout::Nchw => (shape.bands, element.bytes()),
            Layout::Nhwc => (1, shape.bands * element.bytes()),
        };
        (0..bands).flat_map(move |band| {
            (self.top..self.bottom).map(move |row| {
                let begin = (band * shape.height + row) * shape.width;
                (begin + self.left) * pixel..(begin + self.right) * pixel
            })
        })
    }
}

/// What the bytes of a sample are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) shape: ImageShape,
    pub(crate) element: Element,
    pub(crate) layout: Layout,
}

/// Mixes some of the other into a sample.
pub(crate) fn mix(own: &mut [u8], other: &[u8], mixture: Mixture, format: Format) {
    match mixture {
        Mixture::Whole => {}
        Mixture::Blend(share) => blend(own, other, share, format.element),
        Mixture::Paste(cut) => cut.runs(format).for_each(|run| own[run.clone()].copy_from_slice(&other[run])),
    }
}

fn blend(own: &mut [u8], other: &[u8], share: f32, element: Element) {
    let mixed = |own: f32, other: f32| share * own + (1.0 - share) * other;
    if share == 1.0 {
        return;
    }
    match element {
        Element::F32 => each(own, other, |own: [u8; 4], other| {
            mixed(f32::from_ne_bytes(own), f32::from_ne_bytes(other)).to_ne_bytes()
        }),
        Element::F16 => each(own, other, |own: [u8; 2], other| {
            f16::from_f32(mixed(f16::from_ne_bytes(own).to_f32(), f16::from_ne_bytes(other).to_f32())).to_ne_bytes()
        }),
        Element::BF16 => each(own, other, |own: [u8; 2], other| {
            bf16::from_f32(mixed(bf16::from_ne_bytes(own).to_f32(), bf16::from_ne_bytes(other).to_f32())).to_ne_bytes()
        }),
        Element::U8 => unreachable!("bytes are refused when a loader is made"),
    }
}

fn each<const N: usize>(own: &mut [u8], other: &[u8], change: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (own, other) = (own.as_chunks_mut::<N>().0, other.as_chunks::<N>().0);
    own.iter_mut().zip(other).for_each(|(own, other)| *own = change(*own, *other));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::StreamPurpose;

    const SHAPE: ImageShape = ImageShape { bands: 3, height: 8, width: 10 };

    fn bytes(value: f32, element: Element) -> Vec<u8> {
        (0..SHAPE.len())
            .flat_map(|_| match element {
                Element::U8 => vec![value as u8],
                Element::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
                Element::BF16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
                Element::F32 => value.to_ne_bytes().to_vec(),
            })
            .collect()
    }

    #[test]
    fn a_blend_has_so_much_of_each() {
        for element in [Element::F16, Element::BF16, Element::F32] {
            let format = Format { shape: SHAPE, element, layout: Layout::Nchw };
            let mut own = bytes(4.0, element);
            mix(&mut own, &bytes(8.0, element), Mixture::Blend(0.75), format);
            assert_eq!(own, bytes(5.0, element), "{element:?}");
            mix(&mut own, &bytes(8.0, element), Mixture::Blend(1.0), format);
            assert_eq!(own, bytes(5.0, element), "all of its own");
        }
    }

    #[test]
    fn a_box_is_the_others_in_every_layout_and_the_share_is_that_of_the_pixels() {
        let mut chance = Chance::new(1, StreamPurpose::Augmentation, 0, 0);
        let mixing = Mixing { cutmix_alpha: 1.0, ..Mixing::default() };
        let mut shares = Vec::new();
        for _ in 0..200 {
            let mixture = mixing.draw(SHAPE, &mut chance);
            let share = mixture.share(SHAPE);
            for (element, layout) in
                [(Element::U8, Layout::Nchw), (Element::F32, Layout::Nhwc), (Element::F16, Layout::Nchw)]
            {
                let format = Format { shape: SHAPE, element, layout };
                let mut own = bytes(1.0, element);
                mix(&mut own, &bytes(2.0, element), mixture, format);
                let (one, two) = (bytes(1.0, element), bytes(2.0, element));
                let size = element.bytes();
                let kept = own.chunks(size).filter(|number| **number == one[..size]).count();
                let pasted = own.chunks(size).filter(|number| **number == two[..size]).count();
                assert_eq!(kept + pasted, SHAPE.len());
                assert!((kept as f32 / SHAPE.len() as f32 - share).abs() < 1e-6);
            }
            shares.push(share);
        }
        let mean = shares.iter().sum::<f32>() / shares.len() as f32;
        assert!((0.5..0.85).contains(&mean), "half, and more because boxes are cut off: {mean}");
    }

    #[test]
    fn where_both_are_wanted_each_sample_has_one() {
        let mut chance = Chance::new(1, StreamPurpose::Augmentation, 0, 0);
        let mixing = Mixing { cutmix_alpha: 1.0, mixup_alpha: 0.2 };
        let pasted = (0..400).filter(|_| matches!(mixing.draw(SHAPE, &mut chance), Mixture::Paste(_))).count();
        assert!((150..250).contains(&pasted), "{pasted}");
        assert!(mixing.check(Element::U8).unwrap_err().contains("ask for floats"));
        assert!(Mixing { mixup_alpha: -1.0, ..mixing }.check(Element::F32).is_err());
    }
}
