//! Images brought to another size.
//!
//! Each axis is resampled on its own with a triangle as filter, as wide as a pixel of the coarser of the two grids:
//! enlarging interpolates linearly between neighbours, reducing averages over all that a new pixel covers, so that
//! nothing finer than the new grid is left to turn into false patterns. Pixels are areas; the edges of both grids lie
//! on each other.

/// For one pixel of the new grid: the first old pixel that it looks at, and the weights from there on. They sum to one.
struct Reach {
    first: usize,
    weights: Vec<f32>,
}

/// How an axis of `from` pixels becomes one of `to`.
fn reaches(from: usize, to: usize) -> Vec<Reach> {
    let step = from as f32 / to as f32;
    let radius = step.max(1.0);
    let reach = |pixel: usize| {
        let middle = (pixel as f32 + 0.5) * step;
        let first = (middle - radius).floor().max(0.0) as usize;
        let last = ((middle + radius).ceil() as usize).clamp(first + 1, from.max(first + 1));
        let weight = |old: usize| (1.0 - (old as f32 + 0.5 - middle).abs() / radius).max(0.0);
        let mut weights: Vec<f32> = (first..last).map(weight).collect();
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Reach { first, weights }
    };
    (0..to).map(reach).collect()
}

/// A grid of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub height: usize,
    pub width: usize,
}

/// One band, brought from one grid to another. Neither has a side without pixels.
pub(crate) fn resample(band: &[f32], from: Grid, to: Grid) -> Vec<f32> {
    assert_eq!(band.len(), from.height * from.width, "a band has as many numbers as its grid");
    if from == to {
        return band.to_vec();
    }
    let columns = reaches(from.width, to.width);
    let mut narrow = Vec::with_capacity(from.height * to.width);
    for row in band.chunks_exact(from.width) {
        narrow.extend(columns.iter().map(|reach| {
            row[reach.first..].iter().zip(&reach.weights).map(|(value, weight)| value * weight).sum::<f32>()
        }));
    }
    let mut result = vec![0.0; to.height * to.width];
    for (row, reach) in result.chunks_exact_mut(to.width).zip(reaches(from.height, to.height)) {
        let old_rows = narrow[reach.first * to.width..].chunks_exact(to.width);
        for (old, weight) in old_rows.zip(reach.weights) {
            row.iter_mut().zip(old).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    result
}

/// All bands of an image, each the mean over squares of `scale` pixels: what a coarser camera would have seen. Sides
/// are multiples of `scale`.
pub(crate) fn coarsen(image: &[f32], fine: Grid, scale: usize) -> Vec<f32> {
    let width = fine.width / scale;
    let share = 1.0 / (scale * scale) as f32;
    let mut coarse = Vec::with_capacity(image.len() / (scale * scale));
    for strip in image.chunks_exact(fine.width * scale) {
        let begin = coarse.len();
        coarse.resize(begin + width, 0.0);
        for row in strip.chunks_exact(fine.width) {
            let squares = row.chunks_exact(scale).map(|pixels| pixels.iter().sum::<f32>() * share);
            coarse[begin..].iter_mut().zip(squares).for_each(|(sum, mean)| *sum += mean);
        }
    }
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(height: usize, width: usize) -> Grid {
        Grid { height, width }
    }

    #[test]
    fn what_is_flat_stays_flat_at_any_size() {
        for (from, to) in [
            (grid(1, 1), grid(5, 3)),
            (grid(7, 5), grid(3, 2)),
            (grid(20, 20), grid(120, 120)),
            (grid(9, 4), grid(4, 9)),
        ] {
            let result = resample(&vec![0.7; from.height * from.width], from, to);
            assert_eq!(result.len(), to.height * to.width);
            assert!(result.iter().all(|value| (value - 0.7).abs() < 1e-5), "{from:?} {to:?}");
        }
    }

    #[test]
    fn enlarging_interpolates_and_reducing_averages() {
        let larger = resample(&[0.0, 1.0], grid(1, 2), grid(1, 4));
        assert_eq!(larger, [0.0, 0.25, 0.75, 1.0]);
        // Stripes as fine as pixels become grey, and no moire.
        let stripes: Vec<f32> = (0..64).map(|column| (column % 2) as f32).collect();
        let smaller = resample(&stripes, grid(1, 64), grid(1, 8));
        assert!(smaller[1..7].iter().all(|value| (value - 0.5).abs() < 0.02), "{smaller:?}");
    }

    #[test]
    fn coarse_pixels_are_means() {
        let image: Vec<f32> = (0..16).map(|value| value as f32).collect();
        assert_eq!(coarsen(&image, grid(4, 4), 2), [2.5, 4.5, 10.5, 12.5]);
        let two_bands = [1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 2.0, 2.0];
        assert_eq!(coarsen(&two_bands, grid(2, 2), 2), [4.0, 2.0]);
    }
}
