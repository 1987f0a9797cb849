//! Images of files as the trainer has them: of one shape, with the middle of the image in it.
//!
//! What is decoded, and what is refused, is the business of `decode`; of a JPEG only the part that is seen is decoded.
//!
//! **Invariant:** an image comes out in the shape that was asked for, or not at all.
//!
//! What is deliberately not here: changes by chance (`augment`), and the recipes of front ends, which
//! resizes bytes and not numbers.

use std::io::Read as _;
use std::path::Path;

use super::resample::{Grid, coarsen, resample};
use crate::decode::{Colours, Decoder, MAX_ENCODED_BYTES, Picture, Rect, Size, Source};
use crate::sample::{ImageShape, Label, Sample, Task, normalised};
use crate::stage_times::{StageTimes, timed};
use crate::storage::regular;

/// How an image is brought to a size. Its sides keep their proportions: what is too much on two sides is cut off
/// evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// As much as possible of the image is seen.
    Resize,
    /// Pixels stay what they are, and the middle is seen; images that are too small are enlarged.
    Cut,
}

/// A sample of an encoded image: the image in a shape, or, to learn how to enlarge, a pair whose larger image is its
/// middle. The error is the cause alone.
pub(crate) fn sample(
    encoded: &[u8],
    shape: ImageShape,
    task: Task,
    label: impl FnOnce() -> Label,
    times: &mut StageTimes,
) -> Result<Sample, String> {
    if let Task::SuperResolution { scale } = task {
        let fine = Grid { height: shape.height * scale, width: shape.width * scale };
        let larger = ImageShape { bands: shape.bands, height: fine.height, width: fine.width };
        let larger = decode_timed(encoded, larger, Fit::Cut, times)?;
        return Ok(Sample { image: coarsen(&larger, fine, scale), label: Label::Image(larger) });
    }
    Ok(Sample { image: decode_timed(encoded, shape, Fit::Resize, times)?, label: label() })
}

/// The bytes of an image file. The error is the cause alone.
pub(crate) fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let (mut file, length) = regular::open(path).map_err(|error| error.to_string())?;
    if length > MAX_ENCODED_BYTES as u64 {
        return Err(format!("it has {length} bytes; images may have {MAX_ENCODED_BYTES}"));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // What grows while it is read is no image, either.
    (&mut file).take(MAX_ENCODED_BYTES as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Decodes the contents of a file, and counts them.
fn decode_timed(bytes: &[u8], shape: ImageShape, fit: Fit, times: &mut StageTimes) -> Result<Vec<f32>, String> {
    times.encoded_bytes += bytes.len() as u64;
    let (image, pixels) = timed(&mut times.decode_ns, || decode_counted(bytes, shape, fit))?;
    times.stored_pixels += pixels;
    Ok(image)
}

/// Decodes the contents of a file.
#[cfg(test)]
pub(crate) fn decode(bytes: &[u8], shape: ImageShape, fit: Fit) -> Result<Vec<f32>, String> {
    decode_counted(bytes, shape, fit).map(|(image, _)| image)
}

/// The image, and how many pixels it had before it was brought to the shape.
fn decode_counted(encoded: &[u8], shape: ImageShape, fit: Fit) -> Result<(Vec<f32>, u64), String> {
    let source = Source::new(encoded)?;
    let (size, part) = (source.size(), seen(source.size(), shape, fit));
    let colours = if shape.bands == 1 { Colours::Grey } else { Colours::Rgb };
    let mut picture = Picture::default();
    source.decode(part, 1, colours, &mut Decoder::default(), &mut picture)?;
    let (from, to) =
        (Grid { height: part.height, width: part.width }, Grid { height: shape.height, width: shape.width });
    let mut image = Vec::with_capacity(shape.len());
    let mut band = Vec::with_capacity(part.height * part.width);
    for number in 0..shape.bands {
        band.clear();
        band.extend(picture.pixels().iter().map(|pixel| normalised(f32::from(pixel[number]) / 255.0)));
        image.extend(resample(&band, from, to));
    }
    Ok((image, (size.height * size.width) as u64))
}

/// The part of an image that is seen.
fn seen(Size { height, width }: Size, shape: ImageShape, fit: Fit) -> Rect {
    let (wide, high) = (shape.width as f64 / width as f64, shape.height as f64 / height as f64);
    let enough = width >= shape.width && height >= shape.height;
    let scale = if fit == Fit::Cut && enough { 1.0 } else { wide.max(high) };
    let (left, columns) = middle(width, (shape.width as f64 / scale).round() as usize);
    let (top, rows) = middle(height, (shape.height as f64 / scale).round() as usize);
    Rect { top, left, height: rows, width: columns }
}

/// The part of an axis that is seen: where it begins and how many pixels it has.
fn middle(length: usize, seen: usize) -> (usize, usize) {
    let seen = seen.clamp(1, length);
    ((length - seen) / 2, seen)
}
