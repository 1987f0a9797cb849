//! From planes of samples to pixels: colour differences get the resolution of the brightness, and all become RGB.
//!
//! A sample of a plane that has half of the resolution lies between two (or four) pixels. A pixel takes three quarters
//! of the nearer sample and one quarter of the next, in each direction ("fancy upsampling" of libjpeg, with its
//! rounding). Colours are those of JFIF (ITU-R 601), with constants of 16 bits.
//!
//! **Invariant:** at the edges of the image, not of the part that is wanted, samples are their own neighbours; so a
//! part has the same pixels as the same part of the whole image.

use super::super::picture::Pixel;
use super::scan::Plane;

/// How a plane lies in the image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Geometry {
    /// Pixels for each sample, across and down: 1 or 2.
    pub(super) across: usize,
    pub(super) down: usize,
    /// Samples of the whole image.
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Memory for one row.
#[derive(Default)]
pub(super) struct Rows {
    sums: Vec<u16>,
    blue: Vec<u8>,
    red: Vec<u8>,
}

/// A row of a plane, whose first sample is a multiple of the points of a block.
#[inline(always)]
fn row_of(plane: &Plane, row: usize) -> &[u8] {
    let begin = (row - plane.rows.0 * plane.points) * plane.stride;
    &plane.bytes[begin..begin + plane.stride]
}

/// Writes a row of grey pixels from column `left` on.
#[inline(always)]
pub(super) fn grey_row(plane: &Plane, row: usize, left: usize, pixels: &mut [Pixel]) {
    let samples = &row_of(plane, row)[left - plane.columns.0 * plane.points..][..pixels.len()];
    for (pixel, &grey) in pixels.iter_mut().zip(samples) {
        *pixel = [grey, grey, grey, 0];
    }
}

/// Writes a row of pixels from column `left` on.
#[inline(always)]
pub(super) fn rgb_row(
    planes: &[Plane; 3],
    chroma: Geometry,
    row: usize,
    left: usize,
    rows: &mut Rows,
    pixels: &mut [Pixel],
) {
    let [luma, blue, red] = planes;
    let width = pixels.len();
    let y = &row_of(luma, row)[left - luma.columns.0 * luma.points..][..width];
    let Rows { sums, blue: blue_row, red: red_row } = rows;
    let blue = upsample(blue, chroma, row, left, width, sums, blue_row);
    let red = upsample(red, chroma, row, left, width, sums, red_row);
    convert(y, blue, red, pixels);
}

/// A row of colour differences with a sample for each of `width` pixels.
#[inline(always)]
fn upsample<'a>(
    plane: &'a Plane,
    chroma: Geometry,
    row: usize,
    left: usize,
    width: usize,
    sums: &mut Vec<u16>,
    wide: &'a mut Vec<u8>,
) -> &'a [u8] {
    let origin = plane.columns.0 * plane.points;
    // The nearer row, and the next nearest one on the other side of the pixel.
    let (near, far) = if chroma.down == 1 {
        (row, row)
    } else if row.is_multiple_of(2) {
        (row / 2, (row / 2).saturating_sub(1))
    } else {
        (row / 2, (row / 2 + 1).min(chroma.height - 1))
    };
    if chroma.across == 1 {
        let near_row = &row_of(plane, near)[left - origin..][..width];
        let far_row = &row_of(plane, far)[left - origin..][..width];
        if chroma.down == 1 {
            return near_row;
        }
        wide.resize(width, 0);
        let bias = 1 + (row % 2) as u16;
        for ((wide, &near), &far) in wide.iter_mut().zip(near_row).zip(far_row) {
            *wide = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
        }
        return wide;
    }
    // Samples from `first` on, with one more on either side.
    let (first, end) = (left / 2, (left + width).div_ceil(2));
    let count = end - first;
    let from = first.saturating_sub(1);
    let to = (end + 1).min(chroma.width);
    let near_row = &row_of(plane, near)[from - origin..to - origin];
    let far_row = &row_of(plane, far)[from - origin..to - origin];
    sums.resize(count + 2, 0);
    // At the left edge of the image, the first sum is that of the first sample.
    let gap = usize::from(first == 0);
    if chroma.down == 2 {
        for ((sum, &near), &far) in sums[gap..].iter_mut().zip(near_row).zip(far_row) {
            *sum = 3 * u16::from(near) + u16::from(far);
        }
    } else {
        // Four times the sample: both kinds are rounded alike from here on, but for the bias.
        for (sum, &near) in sums[gap..].iter_mut().zip(near_row) {
            *sum = 4 * u16::from(near);
        }
    }
    if gap == 1 {
        sums[0] = sums[1];
    }
    if gap + near_row.len() < count + 2 {
        sums[count + 1] = sums[count];
    }
    wide.resize(2 * count, 0);
    // libjpeg's biases: of 16 parts in both directions, of 4 in one.
    let (even_bias, odd_bias) = if chroma.down == 2 { (8, 7) } else { (4, 8) };
    let (before, here, after) = (&sums[..count], &sums[1..count + 1], &sums[2..count + 2]);
    for (((pair, &before), &here), &after) in wide.as_chunks_mut::<2>().0.iter_mut().zip(before).zip(here).zip(after) {
        let (even, odd) = ((3 * here + before + even_bias) >> 4, (3 * here + after + odd_bias) >> 4);
        *pair = (even | odd << 8).to_le_bytes();
    }
    &wide[left - 2 * first..][..width]
}

/// JFIF's equations: red is Y + 1.402 Cr, green Y - 0.344136 Cb - 0.714136 Cr, blue Y + 1.772 Cb.
#[inline(always)]
fn convert(y: &[u8], blue: &[u8], red: &[u8], pixels: &mut [Pixel]) {
    let half = 1 << 15;
    for (((pixel, &y), &blue), &red) in pixels.iter_mut().zip(y).zip(blue).zip(red) {
        let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
        let cut = |number: i32| number.clamp(0, 255) as u32;
        let r = cut(y + ((91_881 * red + half) >> 16));
        let g = cut(y + ((-22_554 * blue - 46_802 * red + half) >> 16));
        let b = cut(y + ((116_130 * blue + half) >> 16));
        *pixel = (r | g << 8 | b << 16).to_le_bytes();
    }
}
