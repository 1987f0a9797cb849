//! Convolution of each channel with a kernel of its own.
//!
//! There is nothing to multiply matrices with: a channel of an image is laid out, and taps are added up tile by tile
//! while it is in the first-level cache. What is slow about it is memory, not arithmetic.

use std::cell::RefCell;

use pulp::{Arch, Simd, WithSimd};

use super::conv::Target;
use super::mirror::Mirror;
use super::planes::{Geometry, Layout, SLACK};
use super::tile::rounded;
use super::{for_each_number, for_each_piece};

/// Numbers of images and channels, and the geometry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depthwise {
    pub(super) images: usize,
    pub(super) channels: usize,
    pub(super) geometry: Geometry,
}

thread_local! {
    /// A laid out channel and its result. Used by one piece of work at a time, which waits for nobody.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

impl Depthwise {
    fn input_plane(&self) -> usize {
        self.geometry.input[0] * self.geometry.input[1]
    }

    fn output_plane(&self) -> usize {
        self.geometry.output[0] * self.geometry.output[1]
    }

    fn taps(&self) -> usize {
        self.geometry.kernel[0] * self.geometry.kernel[1]
    }

    /// `[images, channels, …]` with `bias` added to each channel. Weights are `[channels, taps]`.
    pub(super) fn forward(&self, input: &[f32], weights: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mut output = vec![0.0; self.images * self.channels * self.output_plane()];
        let target = Target { size: self.geometry.output, stride: 1, first: [0, 0] };
        spread_planes(self.geometry, input, target, &mut output, |plane| {
            let channel = plane % self.channels;
            let taps = weights[channel * self.taps()..][..self.taps()].to_vec();
            (taps, bias.map_or(0.0, |bias| bias[channel]))
        });
        output
    }

    /// The gradient of the input from that of the output.
    pub(super) fn input_gradient(&self, gradient: &[f32], weights: &[f32]) -> Vec<f32> {
        let mut found = vec![0.0; self.images * self.channels * self.input_plane()];
        for mirror in Mirror::all(self.geometry) {
            let target = Target { size: self.geometry.input, stride: self.geometry.stride, first: mirror.first };
            spread_planes(mirror.geometry, gradient, target, &mut found, |plane| {
                let weights = &weights[plane % self.channels * self.taps()..];
                ((0..mirror.taps()).map(|tap| weights[mirror.tap(tap)]).collect(), 0.0)
            });
        }
        found
    }

    /// The gradient of the weights.
    pub(super) fn weight_gradient(&self, input: &[f32], gradient: &[f32]) -> Vec<f32> {
        let layout = Layout::new(self.geometry, 1);
        let offsets = layout.offsets(1);
        let length = rounded(layout.outputs());
        let channels = for_each_number(self.channels, input.len(), |channel| {
            let mut sums = vec![0.0; self.taps()];
            SCRATCH.with_borrow_mut(|[source, row]| {
                for image in 0..self.images {
                    let plane = image * self.channels + channel;
                    layout.fill(&input[plane * self.input_plane()..], 0, 1, source);
                    row.clear();
                    row.resize(length, 0.0);
                    let gradient = &gradient[plane * self.output_plane()..][..self.output_plane()];
                    for (y, line) in gradient.chunks_exact(self.geometry.output[1]).enumerate() {
                        row[layout.line(0, y)..][..line.len()].copy_from_slice(line);
                    }
                    Arch::new().dispatch(Products { source, offsets: &offsets, row, sums: &mut sums });
                }
            });
            sums
        });
        channels.concat()
    }
}

/// Convolves every plane of `input` with the taps that `weights` gives for it, and adds the number that comes with
/// them.
fn spread_planes(
    geometry: Geometry,
    input: &[f32],
    target: Target,
    output: &mut [f32],
    weights: impl Fn(usize) -> (Vec<f32>, f32) + Sync + Send,
) {
    let layout = Layout::new(geometry, 1);
    let offsets = layout.offsets(1);
    let length = rounded(layout.outputs());
    let size = geometry.input[0] * geometry.input[1];
    for_each_piece(output, target.size[0] * target.size[1], |plane, output| {
        let (weights, bias) = weights(plane);
        SCRATCH.with_borrow_mut(|[source, row]| {
            layout.fill(&input[plane * size..][..size], 0, 1, source);
            row.resize(length, 0.0);
            Arch::new().dispatch(Taps { source, offsets: &offsets, weights: &weights, row });
            target.write(&layout, 0, row, bias, geometry.output, 0, output);
        });
    });
}

/// `row[p] = sum over k of weights[k] * source[offsets[k] + p]`.
struct Taps<'a> {
    source: &'a [f32],
    offsets: &'a [usize],
    weights: &'a [f32],
    row: &'a mut [f32],
}

impl WithSimd for Taps<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Three vectors: enough sums to hide how long a product takes is not the point here, loads are.
        let width = 3 * S::F32_LANES;
        for (tile, row) in self.row.chunks_exact_mut(width).enumerate() {
            let mut sums = [simd.splat_f32s(0.0); 3];
            for (weight, offset) in self.weights.iter().zip(self.offsets) {
                let weight = simd.splat_f32s(*weight);
                let source = S::as_simd_f32s(&self.source[offset + tile * width..][..width]).0;
                for (sum, number) in sums.iter_mut().zip(source) {
                    *sum = simd.mul_add_f32s(weight, *number, *sum);
                }
            }
            S::as_mut_simd_f32s(row).0.copy_from_slice(&sums);
        }
    }
}

/// `sums[k] += sum over p of row[p] * source[offsets[k] + p]`.
struct Products<'a> {
    source: &'a [f32],
    offsets: &'a [usize],
    row: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let row = S::as_simd_f32s(self.row).0;
        for (sum, offset) in self.sums.iter_mut().zip(self.offsets) {
            let source = S::as_simd_f32s(&self.source[*offset..][..self.row.len()]).0;
            let mut sums = [simd.splat_f32s(0.0); 3];
            for (row, source) in row.chunks_exact(3).zip(source.chunks_exact(3)) {
                for lane in 0..3 {
                    sums[lane] = simd.mul_add_f32s(row[lane], source[lane], sums[lane]);
                }
            }
            let [a, b, c] = sums;
            *sum += simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), c));
        }
    }
}

// A tile of three vectors divides a rounded row, however many lanes there are.
const _: () = assert!(SLACK.is_multiple_of(3 * 16));
