//! Pixels as the pipeline has them: four bytes each.
//!
//! **Invariant:** a [`Picture`] has `height * width` pixels. The first three bytes of a pixel are red, green and blue;
//! all three are the brightness where the image is grey. The fourth has no meaning.
//!
//! What is deliberately not here: any change to pixels (`transform`).

use super::Colours;

/// A pixel: red, green, blue, and a byte that makes it a word.
pub(crate) type Pixel = [u8; 4];

/// How many rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) height: usize,
    pub(crate) width: usize,
}

/// Some rows and columns of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl Rect {
    /// All of an image.
    pub(crate) fn whole(size: Size) -> Rect {
        Rect { top: 0, left: 0, height: size.height, width: size.width }
    }

    pub(crate) fn size(self) -> Size {
        Size { height: self.height, width: self.width }
    }

    pub(crate) fn bottom(self) -> usize {
        self.top + self.height
    }

    pub(crate) fn right(self) -> usize {
        self.left + self.width
    }
}

/// Pixels in memory that is used again. See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Picture {
    height: usize,
    width: usize,
    pixels: Vec<Pixel>,
}

impl Picture {
    pub(crate) fn size(&self) -> Size {
        Size { height: self.height, width: self.width }
    }

    pub(crate) fn pixels(&self) -> &[Pixel] {
        &self.pixels
    }

    pub(crate) fn pixels_mut(&mut self) -> &mut [Pixel] {
        &mut self.pixels
    }

    /// Gives it a size. What its pixels are afterwards is of no meaning; the caller writes all of them.
    pub(crate) fn reshape(&mut self, size: Size) -> &mut [Pixel] {
        (self.height, self.width) = (size.height, size.width);
        self.pixels.resize(size.height * size.width, [0; 4]);
        &mut self.pixels
    }

    pub(crate) fn row(&self, row: usize) -> &[Pixel] {
        &self.pixels[row * self.width..][..self.width]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [Pixel] {
        &mut self.pixels[row * self.width..][..self.width]
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &[Pixel]> {
        // An image without columns has no rows to speak of.
        self.pixels.chunks_exact(self.width.max(1))
    }

    /// Takes a part of an image whose rows have `channels` bytes (1 to 4: grey, grey and alpha, colours, colours and
    /// alpha) for each of `width` pixels. There are enough of them.
    pub(super) fn take(&mut self, bytes: &[u8], width: usize, channels: usize, part: Rect, colours: Colours) {
        let rows = bytes.chunks_exact(width * channels).skip(part.top).take(part.height);
        let target = self.reshape(part.size()).chunks_exact_mut(part.width);
        for (target, row) in target.zip(rows) {
            let row = &row[part.left * channels..][..part.width * channels];
            match (channels, colours) {
                (1, _) => widen::<1>(row, target, |&[grey]| [grey, grey, grey, 0]),
                (2, _) => widen::<2>(row, target, |&[grey, _]| [grey, grey, grey, 0]),
                (3, Colours::Rgb) => widen::<3>(row, target, |&[red, green, blue]| [red, green, blue, 0]),
                (3, Colours::Grey) => widen::<3>(row, target, |&[red, green, blue]| grey_of([red, green, blue, 0])),
                (4, Colours::Rgb) => widen::<4>(row, target, |&[red, green, blue, _]| [red, green, blue, 0]),
                (4, Colours::Grey) => widen::<4>(row, target, |&pixel| grey_of(pixel)),
                _ => unreachable!("invariant: pixels have one to four channels"),
            }
        }
    }
}

#[inline(always)]
fn widen<const CHANNELS: usize>(row: &[u8], target: &mut [Pixel], pixel: impl Fn(&[u8; CHANNELS]) -> Pixel) {
    for (target, bytes) in target.iter_mut().zip(row.as_chunks::<CHANNELS>().0) {
        *target = pixel(bytes);
    }
}

/// The brightness of a pixel in all bands: as the eye weighs colours (ITU-R 601), with the rounding of PIL.
#[inline(always)]
pub(crate) fn grey_of([red, green, blue, _]: Pixel) -> Pixel {
    // 65536 times 0.299, 0.587 and 0.114; they sum to 65536.
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue) + 0x8000;
    let grey = (sum >> 16) as u8;
    [grey, grey, grey, 0]
}
