//! Pixels brought to another size, by `fast_image_resize`: a triangle filter in two passes, with fixed-point weights.
//!
//! It is the filter of PIL's `BILINEAR` and of torchvision's bilinear with antialiasing: as wide as a pixel of the
//! coarser grid on either side.
//!
//! **Invariant:** the result depends on pixels and boxes alone.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::view::FloatBox;
use crate::decode::{Picture, Size};

/// Brings a box of a picture, which lies within it, to a size.
pub(super) fn resize(resizer: &mut Resizer, from: &Picture, seen: FloatBox, size: Size, to: &mut Picture) {
    let Size { height, width } = from.size();
    // Sums of rounded numbers may lie beyond the edge by the last bit.
    let (top, left) = (seen.top.clamp(0.0, height as f64), seen.left.clamp(0.0, width as f64));
    let (high, wide) = (seen.height.min(height as f64 - top), seen.width.min(width as f64 - left));
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false)
        .crop(left, top, wide, high);
    let source = ImageRef::new(width as u32, height as u32, from.pixels().as_flattened(), PixelType::U8x4);
    let pixels = to.reshape(size).as_flattened_mut();
    let target = Image::from_slice_u8(size.width as u32, size.height as u32, pixels, PixelType::U8x4);
    let done = source
        .map_err(|error| error.to_string())
        .and_then(|source| Ok((source, target.map_err(|error| error.to_string())?)))
        .and_then(|(source, mut target)| {
            resizer.resize(&source, &mut target, &options).map_err(|error| error.to_string())
        });
    done.expect("invariant: boxes lie within pictures, and pictures have all their pixels");
}
