//! The pixels of a file.
//!
//! What a file is, its first bytes say, and not its name. Nothing that a file claims is believed before it is compared
//! with limits, so a file of a few kilobytes that pretends to be a wall of pixels costs nothing; decoders that panic
//! over a file that nobody has thought of have failed to read it, and no more. A file that ends too early is not half
//! an image but none. Transparency is dropped, and so is the turn that a camera has noted (EXIF).

use std::io::{Cursor, Read as _};
use std::panic::AssertUnwindSafe;
use std::path::Path;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::super::resample::{Grid, resample};
use super::regular;
use crate::format::pnm;
use crate::sample::{ImageShape, normalised};
use crate::took::{Took, timed};

/// Bytes of a file, at most: more than any camera writes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Pixels of an image, at most: as many as the largest common cameras have. Decoding them takes up to a gigabyte for a
/// moment, in each thread.
const MAX_PIXELS: usize = 100_000_000;

/// How an image is brought to a size. Its sides keep their proportions: what is too much on two sides is cut off
/// evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// As much as possible of the image is seen.
    Resize,
    /// Pixels stay what they are, and the middle is seen; images that are too small are enlarged.
    Cut,
}

/// An image as a decoder gives it: rows of pixels, with one to four bytes each.
struct Raw {
    height: usize,
    width: usize,
    channels: usize,
    bytes: Vec<u8>,
}

/// Reads a file and brings it to a shape with one or three bands. The error is the cause alone.
pub(super) fn read(path: &Path, shape: ImageShape, fit: Fit, took: &mut Took) -> Result<Vec<f32>, String> {
    let bytes = timed(&mut took.read_ns, || bytes_of(path))?;
    decode_timed(&bytes, shape, fit, took)
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let (mut file, length) = regular::open(path).map_err(|error| error.to_string())?;
    if length > MAX_FILE_BYTES {
        return Err(format!("the file has {length} bytes; images may have {MAX_FILE_BYTES}"));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // What grows while it is read is no image, either.
    (&mut file).take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Decodes the contents of a file, and counts them.
pub(crate) fn decode_timed(bytes: &[u8], shape: ImageShape, fit: Fit, took: &mut Took) -> Result<Vec<f32>, String> {
    took.encoded_bytes += bytes.len() as u64;
    let (image, pixels) = timed(&mut took.decode_ns, || decode_counted(bytes, shape, fit))?;
    took.stored_pixels += pixels;
    Ok(image)
}

/// Decodes the contents of a file.
#[cfg(test)]
pub(crate) fn decode(bytes: &[u8], shape: ImageShape, fit: Fit) -> Result<Vec<f32>, String> {
    decode_counted(bytes, shape, fit).map(|(image, _)| image)
}

/// The image, and how many pixels it had before it was brought to the shape.
fn decode_counted(bytes: &[u8], shape: ImageShape, fit: Fit) -> Result<(Vec<f32>, u64), String> {
    let raw = std::panic::catch_unwind(AssertUnwindSafe(|| match bytes {
        [] => Err("the file is empty".to_owned()),
        [0xff, 0xd8, ..] => jpeg(bytes),
        [0x89, b'P', b'N', b'G', ..] => png(bytes),
        [b'P', b'5' | b'6', ..] => pnm(bytes),
        _ => Err("neither a JPEG nor a PNG file".to_owned()),
    }));
    let raw = raw.unwrap_or_else(|_| Err("the decoder has panicked: the file must be damaged".to_owned()))?;
    Ok((bring(&raw, shape, fit), (raw.height * raw.width) as u64))
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    let pixels = width.checked_mul(height).filter(|pixels| (1..=MAX_PIXELS).contains(pixels));
    pixels.map(|_| ()).ok_or_else(|| format!("it claims to have {width} x {height} pixels; 1 to {MAX_PIXELS} are read"))
}

/// What a decoder says, for a line of a log.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn jpeg(bytes: &[u8]) -> Result<Raw, String> {
    // Every kind of JPEG can be had as this, also those for printers.
    let (colours, channels) = (ColorSpace::RGB, 3);
    // Strict: what is missing is not made up.
    let side = u16::MAX.into();
    let options = DecoderOptions::default().set_max_width(side).set_max_height(side);
    let options = options.set_strict_mode(true).jpeg_set_out_colorspace(colours);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let fail = |error: zune_jpeg::errors::DecodeErrors| format!("no whole JPEG: {}", one_line(&error.to_string()));
    decoder.decode_headers().map_err(fail)?;
    let info = decoder.info().ok_or("a JPEG without size")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height)?;
    if !jpeg_ends(bytes) {
        return Err("no whole JPEG: the file ends before the image does".to_owned());
    }
    let bytes = decoder.decode().map_err(fail)?;
    Ok(Raw { height, width, channels, bytes })
}

/// Whether an image has its end. The decoder makes up the last pixels where it is missing. Segments are stepped over up
/// to the first with pixels: a preview in them has an end of its own. In pixels no byte 0xff is followed by 0xd9.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some([0xff, kind, high, low]) = bytes.get(at..at + 4) {
        match kind {
            0xff => at += 1,
            0xda => return bytes[at + 4..].windows(2).any(|pair| pair == [0xff, 0xd9]),
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
    false
}

fn png(bytes: &[u8]) -> Result<Raw, String> {
    let limits = png::Limits { bytes: 4 * MAX_PIXELS };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let fail = |error: png::DecodingError| format!("no whole PNG: {}", one_line(&error.to_string()));
    let header = decoder.read_header_info().map_err(fail)?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(fail)?;
    let size = reader.output_buffer_size().ok_or("its pixels do not fit into memory")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(fail)?;
    pixels.truncate(frame.buffer_size());
    Ok(Raw { height, width, channels: frame.color_type.samples(), bytes: pixels })
}

/// What arrays without a format of their own are handed over as.
fn pnm(bytes: &[u8]) -> Result<Raw, String> {
    let (height, width, channels, pixels) = pnm::decode(bytes).ok_or("no whole PNM of bytes")?;
    check_size(width, height)?;
    Ok(Raw { height, width, channels, bytes: pixels.to_vec() })
}

/// The part of an axis that is seen: where it begins and how many pixels it has.
fn middle(length: usize, seen: usize) -> (usize, usize) {
    let seen = seen.clamp(1, length);
    ((length - seen) / 2, seen)
}

/// Brings decoded pixels to bands of the wanted size.
fn bring(raw: &Raw, shape: ImageShape, fit: Fit) -> Vec<f32> {
    let Raw { height, width, channels, bytes } = raw;
    let (wide, high) = (shape.width as f64 / *width as f64, shape.height as f64 / *height as f64);
    let enough = *width >= shape.width && *height >= shape.height;
    let scale = if fit == Fit::Cut && enough { 1.0 } else { wide.max(high) };
    let (left, columns) = middle(*width, (shape.width as f64 / scale).round() as usize);
    let (top, rows) = middle(*height, (shape.height as f64 / scale).round() as usize);
    let to = Grid { height: shape.height, width: shape.width };
    let mut image = Vec::with_capacity(shape.len());
    let mut band = Vec::with_capacity(rows * columns);
    for number in 0..shape.bands {
        band.clear();
        for row in bytes.chunks_exact(width * channels).skip(top).take(rows) {
            let pixels = row.chunks_exact(*channels).skip(left).take(columns);
            match (shape.bands, channels) {
                // Grey of colours, as the eye weighs them.
                (1, 3 | 4) => band.extend(pixels.map(|pixel| {
                    let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(f32::from);
                    normalised((0.299 * red + 0.587 * green + 0.114 * blue) / 255.0)
                })),
                (_, 3 | 4) => band.extend(pixels.map(|pixel| normalised(f32::from(pixel[number]) / 255.0))),
                _ => band.extend(pixels.map(|pixel| normalised(f32::from(pixel[0]) / 255.0))),
            }
        }
        image.extend(resample(&band, Grid { height: rows, width: columns }, to));
    }
    image
}
