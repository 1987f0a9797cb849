//! The two innermost loops, over tiles that fit into a processor's vector registers.
//!
//! Both take rows by their offsets into one slice: that is all that a convolution asks for beyond a matrix product.
//! `spread` is the product of weights with rows: every output channel is a weighted sum of rows. `gather` is the
//! product of rows with gradients: every weight's gradient is a sum over pixels.

#![allow(clippy::needless_range_loop, reason = "loops over registers are unrolled, and read best as the sums they are")]

use pulp::{Simd, WithSimd};

use super::planes::SLACK;

/// Vectors of pixels in a tile of `spread`. With 16 lanes, 48 pixels.
const SPREAD_VECTORS: usize = 3;

/// Output channels in a tile, by the number of lanes: 24 sums where there are 32 registers, 12 where there are 16.
pub(super) const WIDE: usize = 8;
const NARROW: usize = 4;

/// `output[m][p] = sum over k of weights[m][k] * source[offsets[k] + p]` for all p below `pixels`.
pub(super) struct Spread<'a> {
    /// In blocks of `WIDE` output channels: `[blocks][k][WIDE]`, zeros where there is no such channel.
    pub(super) weights: &'a [f32],
    pub(super) source: &'a [f32],
    pub(super) offsets: &'a [usize],
    pub(super) pixels: usize,
    /// `[blocks * WIDE][length]`.
    pub(super) output: &'a mut [f32],
    /// `pixels` rounded up to whole tiles.
    pub(super) length: usize,
}

/// Numbers of weights that stay in the second-level cache while all pixels pass: 256 KiB.
const CACHED_WEIGHTS: usize = 64 * 1024;

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let block = self.offsets.len() * WIDE;
        if block == 0 {
            self.output.fill(0.0);
            return;
        }
        let together = (CACHED_WEIGHTS / block).max(1);
        let step = SPREAD_VECTORS * S::F32_LANES;
        let chunks = self.weights.chunks(block * together);
        for (weights, output) in chunks.zip(self.output.chunks_mut(self.length * WIDE * together)) {
            let mut pixel = 0;
            while pixel < self.pixels {
                let blocks = weights.chunks_exact(block).zip(output.chunks_exact_mut(self.length * WIDE));
                for (weights, output) in blocks {
                    if S::F32_LANES >= 16 {
                        spread_tile::<S, WIDE>(simd, weights, 0, self.source, self.offsets, pixel, output, self.length);
                    } else {
                        for first in [0, NARROW] {
                            let (offsets, length) = (self.offsets, self.length);
                            spread_tile::<S, NARROW>(simd, weights, first, self.source, offsets, pixel, output, length);
                        }
                    }
                }
                pixel += step;
            }
        }
    }
}

#[inline(always)]
fn spread_tile<S: Simd, const M: usize>(
    simd: S,
    weights: &[f32],
    first: usize,
    source: &[f32],
    offsets: &[usize],
    pixel: usize,
    output: &mut [f32],
    length: usize,
) {
    let width = SPREAD_VECTORS * S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); SPREAD_VECTORS]; M];
    for (weights, &offset) in weights.as_chunks::<WIDE>().0.iter().zip(offsets) {
        let row = S::as_simd_f32s(&source[offset + pixel..][..width]).0;
        let row: &[S::f32s; SPREAD_VECTORS] = row.first_chunk().expect("the slice has as many vectors");
        for m in 0..M {
            let weight = simd.splat_f32s(weights[first + m]);
            for v in 0..SPREAD_VECTORS {
                sums[m][v] = simd.mul_add_f32s(weight, row[v], sums[m][v]);
            }
        }
    }
    for m in 0..M {
        let row = &mut output[(first + m) * length + pixel..][..width];
        for (to, sum) in S::as_mut_simd_f32s(row).0.iter_mut().zip(sums[m]) {
            *to = sum;
        }
    }
}

/// Output channels that lie next to each other in what `gather` reads and writes: as many as the widest vector has
/// lanes.
pub(super) const STRAND: usize = 16;

/// `output[k][m] += sum over p of gradients[p][m] * source[offsets[k] + p]` for all output channels m.
pub(super) struct Gather<'a> {
    /// `[strands][pixels][STRAND]`, zero where there is no pixel or no channel.
    pub(super) gradients: &'a [f32],
    pub(super) pixels: usize,
    pub(super) source: &'a [f32],
    pub(super) offsets: &'a [usize],
    /// `[strands][offsets][STRAND]`.
    pub(super) output: &'a mut [f32],
}

/// Rows in a tile of `gather`. With two strands sixteen sums, which hide how long a product takes.
const GATHER_ROWS: usize = 8;

impl WithSimd for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut strands = self.gradients.chunks_exact(self.pixels * STRAND);
        let mut outputs = self.output.chunks_exact_mut(self.offsets.len() * STRAND);
        let rows = Rows { source: self.source, offsets: self.offsets, pixels: self.pixels };
        if S::F32_LANES == STRAND {
            while strands.len() >= 2 {
                let gradients = [strands.next(), strands.next()].map(|strand| strand.unwrap_or_default());
                let outputs = [outputs.next(), outputs.next()].map(|output| output.unwrap_or_default());
                let (gradients, outputs) = (
                    gradients.map(|strand| S::as_simd_f32s(strand).0),
                    outputs.map(|output| S::as_mut_simd_f32s(output).0),
                );
                gather::<S, 2>(simd, gradients, 1, rows, outputs);
            }
        }
        let vectors = (STRAND / S::F32_LANES).max(1);
        for (gradients, output) in strands.zip(outputs) {
            let (gradients, output) = (S::as_simd_f32s(gradients).0, S::as_mut_simd_f32s(output).0);
            for vector in 0..vectors {
                gather::<S, 1>(simd, [&gradients[vector..]], vectors, rows, [&mut output[vector..]]);
            }
        }
    }
}

/// The rows of a source.
#[derive(Clone, Copy)]
struct Rows<'a> {
    source: &'a [f32],
    offsets: &'a [usize],
    pixels: usize,
}

/// Adds to every `stride`-th vector of `outputs` what every `stride`-th vector of `gradients` gives.
#[inline(always)]
fn gather<S: Simd, const V: usize>(
    simd: S,
    gradients: [&[S::f32s]; V],
    stride: usize,
    rows: Rows<'_>,
    outputs: [&mut [S::f32s]; V],
) {
    let count = rows.offsets.len();
    for first in (0..count).step_by(GATHER_ROWS) {
        let here: [&[f32]; GATHER_ROWS] = std::array::from_fn(|row| {
            // A row that is missing in the last tile is computed from the last one there is, and thrown away.
            &rows.source[rows.offsets[(first + row).min(count - 1)]..][..rows.pixels]
        });
        let mut sums = [[simd.splat_f32s(0.0); V]; GATHER_ROWS];
        for pixel in 0..rows.pixels {
            let gradient: [S::f32s; V] = std::array::from_fn(|v| gradients[v][pixel * stride]);
            for row in 0..GATHER_ROWS {
                let number = simd.splat_f32s(here[row][pixel]);
                for v in 0..V {
                    sums[row][v] = simd.mul_add_f32s(number, gradient[v], sums[row][v]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate().take(count - first) {
            for v in 0..V {
                let to = &mut outputs[v][(first + row) * stride];
                *to = simd.add_f32s(*to, sums[v]);
            }
        }
    }
}

/// So many pixels rounded up to whole tiles, however many lanes there are.
pub(super) fn rounded(pixels: usize) -> usize {
    pixels.next_multiple_of(SLACK)
}
