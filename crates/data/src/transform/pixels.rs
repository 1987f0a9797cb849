//! Changes of place: pixels that are cropped, padded, mirrored and turned.
//!
//! **Invariant:** every function gives the picture all its pixels; what lies outside of the source is black.
//!
//! What is deliberately not here: mirroring at the end of a recipe, which `store` does on the way.

use super::step::Interpolation;
use crate::decode::{Picture, Pixel, Rect, Size};

/// Cuts out a box that may begin before the picture and end behind it.
pub(super) fn crop(from: &Picture, top: isize, left: isize, size: Size, to: &mut Picture) {
    let whole = from.size();
    let pixels = to.reshape(size);
    pixels.fill([0; 4]);
    let inside = overlap(top, size.height, whole.height);
    let columns = overlap(left, size.width, whole.width);
    for row in inside {
        let source = from.row((row as isize + top) as usize);
        let target = &mut to.row_mut(row)[columns.clone()];
        let first = (columns.start as isize + left).max(0) as usize;
        target.copy_from_slice(&source[first..first + target.len()]);
    }
}

/// Which of `length` pixels from `begin` on lie within `whole`.
fn overlap(begin: isize, length: usize, whole: usize) -> std::ops::Range<usize> {
    let first = (-begin).clamp(0, length as isize) as usize;
    let end = (whole as isize - begin).clamp(first as isize, length as isize) as usize;
    first..end
}

/// Keeps a part of a picture.
pub(super) fn crop_within(from: &Picture, part: Rect, to: &mut Picture) {
    crop(from, part.top as isize, part.left as isize, part.size(), to);
}

/// Left to right.
pub(super) fn mirror_columns(picture: &mut Picture) {
    for row in 0..picture.size().height {
        picture.row_mut(row).reverse();
    }
}

/// Top to bottom.
pub(super) fn mirror_rows(picture: &mut Picture) {
    let Size { height, width } = picture.size();
    let pixels = picture.pixels_mut();
    for row in 0..height / 2 {
        let (upper, lower) = pixels.split_at_mut((height - 1 - row) * width);
        upper[row * width..][..width].swap_with_slice(&mut lower[..width]);
    }
}

/// Turns counter-clockwise around the middle.
pub(super) fn turn(from: &Picture, degrees: f32, interpolation: Interpolation, to: &mut Picture) {
    let size = from.size();
    let (sine, cosine) = f64::from(degrees).to_radians().sin_cos();
    let (middle_row, middle_column) = ((size.height as f64 - 1.0) / 2.0, (size.width as f64 - 1.0) / 2.0);
    to.reshape(size);
    for row in 0..size.height {
        let y = row as f64 - middle_row;
        for (column, pixel) in to.row_mut(row).iter_mut().enumerate() {
            let x = column as f64 - middle_column;
            let source_column = cosine * x - sine * y + middle_column;
            let source_row = sine * x + cosine * y + middle_row;
            *pixel = match interpolation {
                Interpolation::Nearest => at(from, source_row.round_ties_even(), source_column.round_ties_even()),
                Interpolation::Bilinear => between(from, source_row, source_column),
            };
        }
    }
}

/// The pixel at a place of whole numbers; black outside.
fn at(from: &Picture, row: f64, column: f64) -> Pixel {
    let Size { height, width } = from.size();
    let inside = (0.0..width as f64).contains(&column) && (0.0..height as f64).contains(&row);
    if inside { from.row(row as usize)[column as usize] } else { [0; 4] }
}

/// The mean of the four pixels around a place, weighed by how near they are.
fn between(from: &Picture, row: f64, column: f64) -> Pixel {
    let (top, left) = (row.floor(), column.floor());
    let (down, right) = ((row - top) as f32, (column - left) as f32);
    let corners = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)].map(|(y, x)| at(from, top + y, left + x));
    let weights = [(1.0 - down) * (1.0 - right), (1.0 - down) * right, down * (1.0 - right), down * right];
    std::array::from_fn(|band| {
        let sum: f32 = corners.iter().zip(weights).map(|(pixel, weight)| f32::from(pixel[band]) * weight).sum();
        sum.round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pixels that name their place.
    fn numbered(height: usize, width: usize) -> Picture {
        let mut picture = Picture::default();
        for (number, pixel) in picture.reshape(Size { height, width }).iter_mut().enumerate() {
            *pixel = [(number / width) as u8 + 1, (number % width) as u8 + 1, 7, 0];
        }
        picture
    }

    fn places(picture: &Picture) -> Vec<(u8, u8)> {
        picture.pixels().iter().map(|pixel| (pixel[0], pixel[1])).collect()
    }

    #[test]
    fn a_crop_beyond_the_edge_is_black_there() {
        let mut cut = Picture::default();
        crop(&numbered(2, 2), -1, 1, Size { height: 4, width: 2 }, &mut cut);
        assert_eq!(places(&cut), [(0, 0), (0, 0), (1, 2), (0, 0), (2, 2), (0, 0), (0, 0), (0, 0)]);
        crop(&numbered(2, 2), 5, -9, Size { height: 1, width: 2 }, &mut cut);
        assert_eq!(places(&cut), [(0, 0), (0, 0)]);
        crop_within(&numbered(3, 3), Rect { top: 1, left: 1, height: 2, width: 1 }, &mut cut);
        assert_eq!(places(&cut), [(2, 2), (3, 2)]);
    }

    #[test]
    fn mirrors_and_turns_move_every_pixel_to_its_place() {
        let mut picture = numbered(2, 2);
        mirror_columns(&mut picture);
        assert_eq!(places(&picture), [(1, 2), (1, 1), (2, 2), (2, 1)]);
        mirror_rows(&mut picture);
        assert_eq!(places(&picture), [(2, 2), (2, 1), (1, 2), (1, 1)]);
        let mut turned = Picture::default();
        turn(&numbered(3, 3), 90.0, Interpolation::Nearest, &mut turned);
        let expected = [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2), (3, 2), (1, 1), (2, 1), (3, 1)];
        assert_eq!(places(&turned), expected);
        turn(&numbered(2, 2), 45.0, Interpolation::Nearest, &mut turned);
        assert_eq!(turned.size(), Size { height: 2, width: 2 });
    }

    #[test]
    fn pixels_between_others_are_their_means_and_quarter_turns_are_exact() {
        let (mut near, mut smooth) = (Picture::default(), Picture::default());
        for degrees in [0.0, 180.0] {
            turn(&numbered(4, 5), degrees, Interpolation::Nearest, &mut near);
            turn(&numbered(4, 5), degrees, Interpolation::Bilinear, &mut smooth);
            assert_eq!(places(&near), places(&smooth), "{degrees}");
        }
        let two = {
            let mut picture = Picture::default();
            picture.reshape(Size { height: 1, width: 2 }).copy_from_slice(&[[10, 0, 0, 0], [20, 0, 0, 0]]);
            picture
        };
        assert_eq!(between(&two, 0.0, 0.5)[0], 15);
        assert_eq!(between(&two, 0.5, 0.0)[0], 5, "half of it is black");
        assert_eq!(between(&two, 0.0, -1.0)[0], 0);
    }
}
