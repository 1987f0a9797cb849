//! Images turned, mirrored and moved: what augmentation does to pixels.
//!
//! Every function takes all bands of an image at once, `[bands, height, width]`, and leaves its shape as it was. Where
//! nothing is known of a pixel it becomes zero, which is the brightness of an average one.

use crate::sample::ImageShape;

/// Left becomes right.
pub(super) fn mirror_columns(image: &mut [f32], shape: ImageShape) {
    image.chunks_exact_mut(shape.width).for_each(<[f32]>::reverse);
}

/// Top becomes bottom.
pub(super) fn mirror_rows(image: &mut [f32], shape: ImageShape) {
    for band in image.chunks_exact_mut(shape.height * shape.width) {
        let (upper, lower) = band.split_at_mut(shape.height / 2 * shape.width);
        let rows = upper.chunks_exact_mut(shape.width).zip(lower.chunks_exact_mut(shape.width).rev());
        rows.for_each(|(above, below)| above.swap_with_slice(below));
    }
}

/// Rows become columns; only squares stay what they are.
pub(super) fn transpose(image: &mut [f32], shape: ImageShape) {
    assert_eq!(shape.height, shape.width, "only square images are transposed in place");
    let side = shape.width;
    for band in image.chunks_exact_mut(side * side) {
        for row in 0..side {
            for column in row + 1..side {
                band.swap(row * side + column, column * side + row);
            }
        }
    }
}

/// Moves the image down and to the right by so many pixels.
pub(super) fn shift(image: &mut [f32], shape: ImageShape, down: isize, right: isize) {
    let ImageShape { height, width, .. } = shape;
    if down.unsigned_abs() >= height || right.unsigned_abs() >= width {
        image.fill(0.0);
        return;
    }
    let kept = width - right.unsigned_abs();
    let (from, to) = if right >= 0 { (0, right as usize) } else { (right.unsigned_abs(), 0) };
    for band in image.chunks_exact_mut(height * width) {
        let mut fill = |row: usize| {
            let target = row * width;
            match row.checked_add_signed(-down).filter(|source| *source < height) {
                Some(source) => {
                    band.copy_within(source * width + from..source * width + from + kept, target + to);
                    band[target..target + to].fill(0.0);
                    band[target + to + kept..target + width].fill(0.0);
                }
                None => band[target..target + width].fill(0.0),
            }
        };
        // Rows are read before they are written over.
        if down > 0 { (0..height).rev().for_each(&mut fill) } else { (0..height).for_each(&mut fill) }
    }
}

/// Turns the image around its middle; pixels in between are interpolated from their four neighbours.
pub(super) fn turn(image: &mut [f32], shape: ImageShape, degrees: f32) {
    let ImageShape { height, width, .. } = shape;
    let (sine, cosine) = degrees.to_radians().sin_cos();
    let (middle_y, middle_x) = ((height as f32 - 1.0) / 2.0, (width as f32 - 1.0) / 2.0);
    let mut turned = vec![0.0; height * width];
    for band in image.chunks_exact_mut(height * width) {
        let pixel = |row: i32, column: i32| {
            let inside = row >= 0 && column >= 0 && (row as usize) < height && (column as usize) < width;
            if inside { band[row as usize * width + column as usize] } else { 0.0 }
        };
        for (place, value) in turned.iter_mut().enumerate() {
            let (y, x) = ((place / width) as f32 - middle_y, (place % width) as f32 - middle_x);
            let (from_y, from_x) = (cosine * y - sine * x + middle_y, sine * y + cosine * x + middle_x);
            let (row, column) = (from_y.floor(), from_x.floor());
            let (below, beside) = (from_y - row, from_x - column);
            let (row, column) = (row as i32, column as i32);
            let upper = pixel(row, column) * (1.0 - beside) + pixel(row, column + 1) * beside;
            let lower = pixel(row + 1, column) * (1.0 - beside) + pixel(row + 1, column + 1) * beside;
            *value = upper * (1.0 - below) + lower * below;
        }
        band.copy_from_slice(&turned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: ImageShape = ImageShape { bands: 2, height: 2, width: 3 };

    fn counted(shape: ImageShape) -> Vec<f32> {
        (1..=shape.len()).map(|value| value as f32).collect()
    }

    #[test]
    fn mirrors_act_on_every_band() {
        let mut image = counted(WIDE);
        mirror_columns(&mut image, WIDE);
        assert_eq!(image, [3., 2., 1., 6., 5., 4., 9., 8., 7., 12., 11., 10.]);
        let mut image = counted(WIDE);
        mirror_rows(&mut image, WIDE);
        assert_eq!(image, [4., 5., 6., 1., 2., 3., 10., 11., 12., 7., 8., 9.]);
        let odd = ImageShape { bands: 1, height: 3, width: 1 };
        let mut image = counted(odd);
        mirror_rows(&mut image, odd);
        assert_eq!(image, [3., 2., 1.]);
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        let shape = ImageShape { bands: 1, height: 2, width: 2 };
        let mut image = counted(shape);
        transpose(&mut image, shape);
        assert_eq!(image, [1., 3., 2., 4.]);
    }

    #[test]
    fn shifts_leave_zeros_behind_in_every_direction() {
        let shape = ImageShape { bands: 1, height: 3, width: 3 };
        let shifted = |down, right| {
            let mut image = counted(shape);
            shift(&mut image, shape, down, right);
            image
        };
        assert_eq!(shifted(0, 0), counted(shape));
        assert_eq!(shifted(1, 0), [0., 0., 0., 1., 2., 3., 4., 5., 6.]);
        assert_eq!(shifted(-1, 1), [0., 4., 5., 0., 7., 8., 0., 0., 0.]);
        assert_eq!(shifted(2, -2), [0., 0., 0., 0., 0., 0., 3., 0., 0.]);
        assert_eq!(shifted(3, 0), [0.; 9]);
        assert_eq!(shifted(0, -7), [0.; 9]);
    }

    #[test]
    fn a_turn_by_nothing_changes_nothing_and_by_a_right_angle_moves_corners() {
        let shape = ImageShape { bands: 1, height: 3, width: 3 };
        let mut image = counted(shape);
        turn(&mut image, shape, 0.0);
        assert_eq!(image, counted(shape));
        turn(&mut image, shape, 90.0);
        let expected = [3., 6., 9., 2., 5., 8., 1., 4., 7.];
        let other = [7., 4., 1., 8., 5., 2., 9., 6., 3.];
        let close = |to: &[f32]| image.iter().zip(to).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(close(&expected) || close(&other), "{image:?}");
    }
}
