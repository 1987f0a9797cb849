//! PNG by the crate `png`: all kinds, brought to 8 bits and without a palette.
//!
//! **Invariant:** no more memory is taken than an image of the largest allowed size needs.
//!
//! What is deliberately not here: animation; its first frame is the image.

use std::io::Cursor;

use super::{Colours, MAX_PIXELS, Picture, Rect, Size, one_line};
use crate::limit::Limit;

fn fail(error: png::DecodingError) -> String {
    format!("no whole PNG: {}", one_line(&error.to_string()))
}

fn decoder(encoded: &[u8]) -> png::Decoder<Cursor<&[u8]>> {
    let limit = usize::try_from(Limit::of_process().bytes()).unwrap_or(usize::MAX);
    let limits = png::Limits { bytes: limit.min(4 * MAX_PIXELS) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(encoded), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder
}

pub(super) fn size(encoded: &[u8]) -> Result<Size, String> {
    let mut decoder = decoder(encoded);
    let header = decoder.read_header_info().map_err(fail)?;
    Ok(Size { height: header.height as usize, width: header.width as usize })
}

pub(super) fn decode(encoded: &[u8], part: Rect, colours: Colours, picture: &mut Picture) -> Result<(), String> {
    let mut reader = decoder(encoded).read_info().map_err(fail)?;
    let size = reader.output_buffer_size().ok_or("its pixels do not fit into memory")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(fail)?;
    let (width, channels) = (frame.width as usize, frame.color_type.samples());
    if (frame.height as usize) < part.bottom() || width < part.right() {
        return Err("its first frame is smaller than the image".to_owned());
    }
    picture.take(&pixels[..frame.buffer_size()], width, channels, part, colours);
    Ok(())
}
