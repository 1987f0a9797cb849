//! Which part of an image is seen, and at which size: crops and resizes at the beginning of a recipe, as one.
//!
//! A [`View`] is a box of the encoded image that becomes `size` pixels. Filters may look beyond the box, but not beyond
//! `allowed`: an image that is cropped before it is resized ends at the crop; one that is cropped afterwards goes on.
//! Decoding then needs no more than `part` of the image, and as few rows and columns as filters see are resized.
//!
//! **Invariant:** the box lies within `allowed`, and `allowed` within the image.
//!
//! What is deliberately not here: padding. A crop that needs it ends the view and is done to pixels.

use super::step::{ResizeTo, Step};
use crate::chance::Chance;
use crate::decode::{Rect, Size};

/// A box whose edges may lie between pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FloatBox {
    pub(super) top: f64,
    pub(super) left: f64,
    pub(super) height: f64,
    pub(super) width: f64,
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct View {
    pub(super) allowed: Rect,
    pub(super) seen: FloatBox,
    pub(super) size: Size,
    resized: bool,
}

impl View {
    /// All of an image as it is.
    pub(super) fn whole(size: Size) -> View {
        let allowed = Rect::whole(size);
        View { allowed, seen: FloatBox::of(allowed), size, resized: false }
    }

    /// The view after one more step; nothing where the step cannot be a part of it. A step that takes chance draws it
    /// only if it can.
    pub(super) fn after(&self, step: &Step, chance: impl FnOnce() -> Chance) -> Option<View> {
        match *step {
            Step::Resize { to } if !self.resized => {
                let size = resized(self.size, to);
                Some(View { size, resized: size != self.size, ..*self })
            }
            Step::RandomResizedCrop { height, width, scale, ratio } if !self.resized => {
                let view = self.cropped(random_area(self.size, scale, ratio, &mut chance()));
                let size = Size { height, width };
                Some(View { size, resized: size != view.size, ..view })
            }
            Step::CenterCrop { height, width } if height <= self.size.height && width <= self.size.width => {
                Some(self.cropped(centred(self.size, Size { height, width })))
            }
            Step::RandomCrop { height, width, padding: 0 }
                if height <= self.size.height && width <= self.size.width =>
            {
                Some(self.cropped(placed(self.size, Size { height, width }, &mut chance())))
            }
            _ => None,
        }
    }

    /// A part of what is seen.
    fn cropped(&self, part: Rect) -> View {
        let size = part.size();
        if self.resized {
            let (down, across) = self.reduction();
            let seen = FloatBox {
                top: self.seen.top + part.top as f64 * down,
                left: self.seen.left + part.left as f64 * across,
                height: part.height as f64 * down,
                width: part.width as f64 * across,
            };
            return View { seen, size, ..*self };
        }
        let allowed = Rect { top: self.allowed.top + part.top, left: self.allowed.left + part.left, ..part };
        View { allowed, seen: FloatBox::of(allowed), size, resized: false }
    }

    /// How many pixels of the image become one, downwards and across. Below one is enlarging.
    pub(super) fn reduction(&self) -> (f64, f64) {
        (self.seen.height / self.size.height as f64, self.seen.width / self.size.width as f64)
    }

    /// The same view of the image at `1 / reduction` of its size.
    pub(super) fn reduced(&self, reduction: usize) -> View {
        let (part, by) = (self.allowed, reduction as f64);
        let (top, left) = (part.top / reduction, part.left / reduction);
        let (bottom, right) = (part.bottom().div_ceil(reduction), part.right().div_ceil(reduction));
        let FloatBox { top: y, left: x, height, width } = self.seen;
        View {
            allowed: Rect { top, left, height: bottom - top, width: right - left },
            seen: FloatBox { top: y / by, left: x / by, height: height / by, width: width / by },
            ..*self
        }
    }

    /// All that has to be decoded: what is seen, and what filters look at around it.
    pub(super) fn part(&self) -> Rect {
        if !self.resized {
            return self.allowed;
        }
        let (down, across) = self.reduction();
        let (top, height) = reach(self.seen.top, self.seen.height, down, self.allowed.top, self.allowed.bottom());
        let (left, width) = reach(self.seen.left, self.seen.width, across, self.allowed.left, self.allowed.right());
        Rect { top, left, height, width }
    }
}

impl FloatBox {
    pub(super) fn of(rect: Rect) -> FloatBox {
        let Rect { top, left, height, width } = rect;
        FloatBox { top: top as f64, left: left as f64, height: height as f64, width: width as f64 }
    }

    /// The same box, seen from a place further down and to the right.
    pub(super) fn moved(self, top: usize, left: usize) -> FloatBox {
        FloatBox { top: self.top - top as f64, left: self.left - left as f64, ..self }
    }
}

/// First pixel and number of pixels that a triangle filter looks at along one axis.
fn reach(begin: f64, length: f64, reduction: f64, first: usize, end: usize) -> (usize, usize) {
    // The filter is as wide as a pixel of the coarser grid on either side; one more is for rounding.
    let radius = reduction.max(1.0) + 1.0;
    let from = ((begin - radius).floor().max(0.0) as usize).clamp(first, end - 1);
    let to = ((begin + length + radius).ceil() as usize).clamp(from + 1, end);
    (from, to - from)
}

/// The size after [`Step::Resize`].
pub(super) fn resized(size: Size, to: ResizeTo) -> Size {
    match to {
        ResizeTo::Exact { height, width } => Size { height, width },
        // The longer side is cut to a whole number, as torchvision does.
        ResizeTo::Shorter(side) if size.height <= size.width => {
            Size { height: side, width: side * size.width / size.height }
        }
        ResizeTo::Shorter(side) => Size { height: side * size.height / size.width, width: side },
    }
}

/// The middle of an image that is not smaller.
pub(super) fn centred(size: Size, wanted: Size) -> Rect {
    // Python's `round`, which torchvision uses: halves go to the even number.
    let offset = |long: usize, short: usize| ((long - short) as f64 / 2.0).round_ties_even() as usize;
    let (top, left) = (offset(size.height, wanted.height), offset(size.width, wanted.width));
    Rect { top, left, height: wanted.height, width: wanted.width }
}

/// A part at a random place of an image that is not smaller.
pub(super) fn placed(size: Size, wanted: Size, chance: &mut Chance) -> Rect {
    let top = chance.below(size.height - wanted.height + 1);
    let left = chance.below(size.width - wanted.width + 1);
    Rect { top, left, height: wanted.height, width: wanted.width }
}

/// How often a part is drawn that does not fit before the middle is taken: torchvision's number.
const ATTEMPTS: usize = 10;

/// A part of random area and proportions, as `RandomResizedCrop` draws it.
fn random_area(size: Size, scale: (f32, f32), ratio: (f32, f32), chance: &mut Chance) -> Rect {
    let Size { height, width } = size;
    for _ in 0..ATTEMPTS {
        let area = f64::from(chance.between(scale.0, scale.1)) * (height * width) as f64;
        let ratio = f64::from(chance.between(ratio.0.ln(), ratio.1.ln())).exp();
        let (wide, high) = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        if (1..=width).contains(&wide) && (1..=height).contains(&high) {
            return placed(size, Size { height: high, width: wide }, chance);
        }
    }
    // The whole image, or as much of its middle as has allowed proportions.
    let proportions = width as f64 / height as f64;
    let (low, high) = (f64::from(ratio.0), f64::from(ratio.1));
    let wanted = if proportions < low {
        Size { height: ((width as f64 / low).round() as usize).clamp(1, height), width }
    } else if proportions > high {
        Size { height, width: ((height as f64 * high).round() as usize).clamp(1, width) }
    } else {
        size
    };
    centred(size, wanted)
}

/// A part of random area and proportions that is smaller than the image, as `RandomErasing` draws it; none where no
/// attempt gives one.
pub(super) fn random_part(size: Size, scale: (f32, f32), ratio: (f32, f32), chance: &mut Chance) -> Option<Rect> {
    (0..ATTEMPTS).find_map(|_| {
        let area = f64::from(chance.between(scale.0, scale.1)) * (size.height * size.width) as f64;
        let ratio = f64::from(chance.between(ratio.0.ln(), ratio.1.ln())).exp();
        let (high, wide) = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        let fits = high < size.height && wide < size.width;
        fits.then(|| placed(size, Size { height: high, width: wide }, chance))
    })
}
