//! Encoded images become pixels: JPEG, PNG, and raw pixels as PNM (P5 and P6 with 8 bits).
//!
//! What an encoded image is, its first bytes say, and not its name. [`decode`] gives a whole image as bytes of one or
//! three bands. `Picture` is what the pipeline works on: four bytes for each pixel, whatever the number of bands,
//! because a pixel is then one word, which vector units take apart without shuffling.
//!
//! **Invariant:** nothing that an encoded image claims is believed before it is compared with limits, so a few
//! kilobytes that pretend to be a wall of pixels cost nothing. An image that ends too early is not half an image but
//! none. A decoder that panics over bytes that nobody has thought of has failed to read them, and no more.
//!
//! What is deliberately not here: transparency, colour profiles, and the turn that a camera has noted (EXIF). All are
//! dropped, as `torchvision.io.decode_image` does.

mod jpeg;
mod picture;
mod png;
mod pnm;
mod zune;

use std::panic::AssertUnwindSafe;

use crate::limit::Limit;
pub(crate) use picture::{Picture, Pixel, Rect, Size, grey_of};

/// Bytes of an encoded image, at most: more than any camera writes.
pub(crate) const MAX_ENCODED_BYTES: usize = 256 << 20;

/// Pixels of an image, at most: as many as the largest common cameras have. Decoding them takes up to a gigabyte for a
/// moment, in each thread.
pub(crate) const MAX_PIXELS: usize = 100_000_000;

/// Bytes that decoding takes for each pixel: a picture, and the samples of three bands or the buffers of a library.
const PIXEL_BYTES: usize = 8;

/// Which bands are wanted of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    /// Brightness alone.
    Grey,
    /// Red, green and blue; all the same where the image is grey.
    Rgb,
}

/// A whole image, pixel by pixel and row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Bytes for each pixel: 1 (grey) or 3 (red, green, blue).
    pub bands: usize,
    /// `height * width * bands` of them.
    pub bytes: Vec<u8>,
}

/// Decodes a whole image to one or three bands. The error is the cause alone.
pub fn decode(encoded: &[u8], bands: usize) -> Result<Image, String> {
    let colours = match bands {
        1 => Colours::Grey,
        3 => Colours::Rgb,
        _ => return Err(format!("images are decoded to 1 or 3 bands, not {bands}")),
    };
    let source = Source::new(encoded)?;
    let mut picture = Picture::default();
    source.decode(Rect::whole(source.size()), 1, colours, &mut Decoder::default(), &mut picture)?;
    let Size { height, width } = picture.size();
    let bytes = match colours {
        Colours::Grey => picture.pixels().iter().map(|pixel| pixel[0]).collect(),
        Colours::Rgb => picture.pixels().iter().flat_map(|&[red, green, blue, _]| [red, green, blue]).collect(),
    };
    Ok(Image { height, width, bands, bytes })
}

/// The rows and columns of an encoded image; no pixel is decoded.
pub fn size(encoded: &[u8]) -> Result<(usize, usize), String> {
    let Size { height, width } = Source::new(encoded)?.size();
    Ok((height, width))
}

/// An encoded image whose beginning has been read: its size is known and within the limits.
pub(crate) struct Source<'a> {
    encoded: &'a [u8],
    format: Format,
    size: Size,
}

enum Format {
    /// Of the usual kind.
    Jpeg(Box<jpeg::Header>),
    OtherJpeg,
    Png,
    Pnm(pnm::Header),
}

impl<'a> Source<'a> {
    /// Reads as much as tells the size.
    pub(crate) fn new(encoded: &'a [u8]) -> Result<Source<'a>, String> {
        if encoded.len() > MAX_ENCODED_BYTES {
            return Err(format!("it has {} bytes; images may have {MAX_ENCODED_BYTES}", encoded.len()));
        }
        let (format, size) = tame(|| match encoded {
            [] => Err("it is empty".to_owned()),
            [0xff, 0xd8, ..] => match jpeg::Header::parse(encoded) {
                Some(header) => {
                    let size = header.size;
                    Ok((Format::Jpeg(Box::new(header)), size))
                }
                None => Ok((Format::OtherJpeg, zune::size(encoded)?)),
            },
            [0x89, b'P', b'N', b'G', ..] => Ok((Format::Png, png::size(encoded)?)),
            [b'P', b'5' | b'6', ..] => {
                let header = pnm::Header::parse(encoded)?;
                let size = header.size;
                Ok((Format::Pnm(header), size))
            }
            _ => Err("neither a JPEG, a PNG nor a PNM (P5, P6) image".to_owned()),
        })?;
        let Size { height, width } = size;
        let pixels = height.checked_mul(width).filter(|pixels| (1..=MAX_PIXELS).contains(pixels));
        let pixels =
            pixels.ok_or_else(|| format!("it claims to have {width} x {height} pixels; 1 to {MAX_PIXELS} are read"))?;
        let limit = Limit::of_process().check_all(pixels as u64, PIXEL_BYTES);
        limit.map_err(|error| format!("{width} x {height} pixels: {error}"))?;
        Ok(Source { encoded, format, size })
    }

    /// Of the whole image.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// By how much images of this kind can be reduced while they are decoded: 1, 2, 4 or 8, and not by more than
    /// `most`.
    pub(crate) fn reduction(&self, most: f64) -> usize {
        let known: &[usize] = if matches!(self.format, Format::Jpeg(_)) { &[8, 4, 2] } else { &[] };
        known.iter().copied().find(|&reduction| reduction as f64 <= most).unwrap_or(1)
    }

    /// Decodes a part of the image at `1 / reduction` of its size. The part is in pixels of the reduced image, which
    /// has as many as the whole one divided by the reduction, rounded up; it lies within it.
    pub(crate) fn decode(
        &self,
        part: Rect,
        reduction: usize,
        colours: Colours,
        decoder: &mut Decoder,
        picture: &mut Picture,
    ) -> Result<(), String> {
        tame(|| match &self.format {
            Format::Jpeg(header) => decoder.jpeg.decode(header, self.encoded, part, reduction, colours, picture),
            Format::OtherJpeg => zune::decode(self.encoded, part, colours, picture),
            Format::Png => png::decode(self.encoded, part, colours, picture),
            Format::Pnm(header) => header.decode(self.encoded, part, colours, picture),
        })
    }
}

/// Memory of decoders that is used again, and tables that the next image may need as well.
#[derive(Default)]
pub(crate) struct Decoder {
    jpeg: jpeg::Decoder,
}

impl Decoder {
    /// Nanoseconds that went to colours since this was last asked, as far as a decoder tells.
    pub(crate) fn take_colour_ns(&mut self) -> u64 {
        std::mem::take(&mut self.jpeg.colour_ns)
    }
}

/// Runs a decoder that may panic.
fn tame<T>(decoder: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(decoder))
        .unwrap_or_else(|_| Err("the decoder has panicked: the image must be damaged".to_owned()))
}

/// What a decoder says, for a line of a log.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) mod tests;
