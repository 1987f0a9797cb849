//! Whole images of a smaller size, for those who write data sets: what is done here is not done in every epoch.

use fast_image_resize::Resizer;

use super::resize::resize;
use super::view::FloatBox;
use crate::decode::{Colours, Decoder, Image, Picture, Rect, Size, Source};

/// Decodes an image to three bands, reduced so that its shorter side has at most `shorter_side` pixels. An image that
/// is small enough keeps its pixels. The error is the cause alone.
pub fn decode_reduced(encoded: &[u8], shorter_side: usize) -> Result<Image, String> {
    let source = Source::new(encoded)?;
    let (size, mut picture) = (source.size(), Picture::default());
    source.decode(Rect::whole(size), 1, Colours::Rgb, &mut Decoder::default(), &mut picture)?;
    let shorter = size.height.min(size.width);
    if shorter > shorter_side {
        let scaled = |side: usize| (side as f64 * shorter_side as f64 / shorter as f64).round().max(1.0) as usize;
        let small = Size { height: scaled(size.height), width: scaled(size.width) };
        let mut to = Picture::default();
        resize(&mut Resizer::new(), &picture, FloatBox::of(Rect::whole(size)), small, &mut to);
        picture = to;
    }
    let Size { height, width } = picture.size();
    let bytes = picture.pixels().iter().flat_map(|&[red, green, blue, _]| [red, green, blue]).collect();
    Ok(Image { height, width, bands: 3, bytes })
}
