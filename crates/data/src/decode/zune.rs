//! JPEG by `zune-jpeg`, which knows all kinds: progressive ones and those for printers, too.
//!
//! **Invariant:** an image that ends too early is an error; the decoder alone would make up what is missing.
//!
//! What is deliberately not here: parts of an image. All of it is decoded, and the part is taken out of that.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Colours, Picture, Rect, Size, one_line};

/// Scans of an image, at most. Encoders write about ten. A scan of a few bytes passes over all coefficients.
const MAX_SCANS: usize = 200;

fn fail(error: zune_jpeg::errors::DecodeErrors) -> String {
    format!("no whole JPEG: {}", one_line(&error.to_string()))
}

fn decoder(encoded: &[u8]) -> JpegDecoder<ZCursor<&[u8]>> {
    // Strict: what is missing is not made up. Every kind of JPEG can be had as RGB, also those for printers.
    let side = u16::MAX.into();
    let options = DecoderOptions::default().set_max_width(side).set_max_height(side);
    let options = options.set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(encoded), options)
}

pub(super) fn size(encoded: &[u8]) -> Result<Size, String> {
    let mut decoder = decoder(encoded);
    decoder.decode_headers().map_err(fail)?;
    let info = decoder.info().ok_or("a JPEG without size")?;
    Ok(Size { height: info.height.into(), width: info.width.into() })
}

pub(super) fn decode(encoded: &[u8], part: Rect, colours: Colours, picture: &mut Picture) -> Result<(), String> {
    let mut decoder = decoder(encoded);
    decoder.decode_headers().map_err(fail)?;
    let width: usize = decoder.info().ok_or("a JPEG without size")?.width.into();
    let scans = encoded.windows(2).filter(|pair| *pair == [0xff, 0xda]).count();
    if scans > MAX_SCANS {
        return Err(format!("no whole JPEG: it has {scans} scans; {MAX_SCANS} are read at most"));
    }
    if !has_end(encoded) {
        return Err("no whole JPEG: the image ends before its last row".to_owned());
    }
    let bytes = decoder.decode().map_err(fail)?;
    picture.take(&bytes, width, 3, part, colours);
    Ok(())
}

/// Whether an image has its end. The decoder makes up the last pixels where it is missing. Segments are stepped over up
/// to the first with pixels: a preview in them has an end of its own. In pixels no byte 0xff is followed by 0xd9.
fn has_end(encoded: &[u8]) -> bool {
    let mut at = 2;
    while let Some([0xff, kind, high, low]) = encoded.get(at..at + 4) {
        match kind {
            0xff => at += 1,
            0xda => return encoded[at + 4..].windows(2).any(|pair| pair == [0xff, 0xd9]),
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
    false
}
