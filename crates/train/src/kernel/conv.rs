//! Convolution on slices: forward, and the gradients of input and weights.
//!
//! Forward lays a few images out at a time (see `planes`) so that everything stays in the second-level cache,
//! multiplies by the weights tile by tile, and copies the result to where it belongs. The gradient of the input is
//! itself a convolution, of the output's gradient with the mirrored kernel; with a stride it is one convolution for
//! each phase of the stride. The gradient of the weights multiplies pixels with pixels in the same layout.

use std::cell::RefCell;

use pulp::Arch;

use super::mirror::Mirror;
use super::planes::{Geometry, Layout};
use super::tile::{Gather, STRAND, Spread, WIDE, rounded};
use super::{for_each_number, for_each_piece};

/// Numbers of images and channels, and the geometry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub(super) images: usize,
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) geometry: Geometry,
}

/// Pixels that are laid out together for `spread`: enough that tiles are full, few enough for the cache and for all
/// threads.
const SPREAD_PIXELS: usize = 512;
/// For `gather`, whose sums run over pixels.
const GATHER_PIXELS: usize = 1024;

thread_local! {
    /// Laid out images and results before they are copied to their place. Kept for the next layer: fresh memory is
    /// slow.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

impl Convolution {
    fn images_together(&self, pixels: usize) -> usize {
        let [height, width] = self.geometry.output;
        (pixels / (height * width).max(1)).clamp(1, self.images.max(1))
    }

    fn image_size(&self) -> usize {
        self.input * self.geometry.input[0] * self.geometry.input[1]
    }

    fn result_size(&self) -> usize {
        self.output * self.geometry.output[0] * self.geometry.output[1]
    }

    /// `[images, output, …]` from `[images, input, …]`, with `bias` added to each output channel.
    pub(super) fn forward(&self, input: &[f32], weights: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let taps = self.input * self.geometry.kernel[0] * self.geometry.kernel[1];
        let blocks = in_blocks(self.output, taps, |channel, tap| weights[channel * taps + tap]);
        let mut output = vec![0.0; self.images * self.result_size()];
        let whole = Target { size: self.geometry.output, stride: 1, first: [0, 0] };
        self.spread(input, &blocks, bias, whole, &mut output);
        output
    }

    fn spread(&self, input: &[f32], blocks: &[f32], bias: Option<&[f32]>, target: Target, output: &mut [f32]) {
        let together = self.images_together(SPREAD_PIXELS);
        let target_size = self.output * target.size[0] * target.size[1];
        for_each_piece(output, together * target_size, |piece, output| {
            let images = output.len() / target_size;
            let layout = Layout::new(self.geometry, images);
            let offsets = layout.offsets(self.input);
            let length = rounded(layout.outputs());
            let input = &input[piece * together * self.image_size()..][..images * self.image_size()];
            SCRATCH.with_borrow_mut(|[planes, results]| {
                layout.fill(input, self.image_size(), self.input, planes);
                // What was there before is overwritten.
                results.resize(self.output.next_multiple_of(WIDE) * length, 0.0);
                Arch::new().dispatch(Spread {
                    weights: blocks,
                    source: planes,
                    offsets: &offsets,
                    pixels: layout.outputs(),
                    output: results,
                    length,
                });
                for image in 0..images {
                    for channel in 0..self.output {
                        let bias = bias.map_or(0.0, |bias| bias[channel]);
                        let row = &results[channel * length..][..length];
                        let plane = image * self.output + channel;
                        target.write(&layout, image, row, bias, self.geometry.output, plane, output);
                    }
                }
            });
        });
    }

    /// The gradient of the input from that of the output, for a geometry that [`fits`](super::mirror::fits).
    pub(super) fn input_gradient(&self, gradient: &[f32], weights: &[f32]) -> Vec<f32> {
        let mut found = vec![0.0; self.images * self.image_size()];
        let area = self.geometry.kernel[0] * self.geometry.kernel[1];
        for mirror in Mirror::all(self.geometry) {
            let taps = mirror.taps();
            let blocks = in_blocks(self.input, self.output * taps, |to, tap| {
                weights[(tap / taps * self.input + to) * area + mirror.tap(tap % taps)]
            });
            let mirrored =
                Convolution { images: self.images, input: self.output, output: self.input, geometry: mirror.geometry };
            let target = Target { size: self.geometry.input, stride: self.geometry.stride, first: mirror.first };
            mirrored.spread(gradient, &blocks, None, target, &mut found);
        }
        found
    }

    /// The gradient of the weights.
    pub(super) fn weight_gradient(&self, input: &[f32], gradient: &[f32]) -> Vec<f32> {
        let taps = self.input * self.geometry.kernel[0] * self.geometry.kernel[1];
        let mut strands = vec![0.0; self.output.next_multiple_of(STRAND) * taps];
        let together = self.images_together(GATHER_PIXELS);
        // Taken out, not borrowed: a thread that waits for the others may be given a piece of another convolution
        // meanwhile.
        let mut scratch = SCRATCH.take();
        let [planes, gradients] = &mut scratch;
        for first in (0..self.images).step_by(together) {
            let images = together.min(self.images - first);
            let layout = Layout::new(self.geometry, images);
            let offsets = layout.offsets(self.input);
            let pixels = layout.outputs();
            layout.fill(&input[first * self.image_size()..], self.image_size(), self.input, planes);
            layout.fill_strands(&gradient[first * self.result_size()..], self.output, pixels, gradients);
            let (planes, gradients) = (&*planes, &*gradients);
            for_each_piece(&mut strands, 2 * STRAND * taps, |piece, output| {
                let channels = output.len() / taps;
                let gradients = &gradients[piece * 2 * STRAND * pixels..][..channels * pixels];
                Arch::new().dispatch(Gather { gradients, pixels, source: planes, offsets: &offsets, output });
            });
        }
        SCRATCH.set(scratch);
        let mut found = vec![0.0; self.output * taps];
        for (channel, row) in found.chunks_exact_mut(taps).enumerate() {
            let strand = &strands[channel / STRAND * STRAND * taps..][..STRAND * taps];
            for (to, from) in row.iter_mut().zip(strand.chunks_exact(STRAND)) {
                *to = from[channel % STRAND];
            }
        }
        found
    }
}

/// The gradient of the bias: the sum over images and pixels of each channel.
pub(super) fn bias_gradient(gradient: &[f32], images: usize, channels: usize) -> Vec<f32> {
    let pixels = gradient.len() / (images * channels).max(1);
    for_each_number(channels, gradient.len(), |channel| {
        let rows = (0..images).map(|image| &gradient[(image * channels + channel) * pixels..][..pixels]);
        rows.map(|row| row.iter().map(|&g| f64::from(g)).sum::<f64>()).sum::<f64>() as f32
    })
}

/// Where results go: every `stride`-th row and column of images of `size`, from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) size: [usize; 2],
    pub(super) stride: usize,
    pub(super) first: [usize; 2],
}

impl Target {
    /// Writes what a row of results has for `image` into the images' plane with this number.
    pub(super) fn write(
        self,
        layout: &Layout,
        image: usize,
        row: &[f32],
        bias: f32,
        [height, width]: [usize; 2],
        plane: usize,
        output: &mut [f32],
    ) {
        let output = &mut output[plane * self.size[0] * self.size[1]..][..self.size[0] * self.size[1]];
        for y in 0..height {
            let line = &row[layout.line(image, y)..][..width];
            let to = &mut output[(self.first[0] + y * self.stride) * self.size[1]..][..self.size[1]];
            if self.stride == 1 {
                for (to, from) in to.iter_mut().zip(line) {
                    *to = from + bias;
                }
            } else {
                for (to, from) in to[self.first[1]..].iter_mut().step_by(self.stride).zip(line) {
                    *to = from + bias;
                }
            }
        }
    }
}

/// Weights in the order of `Spread`: `[blocks][taps][WIDE]`.
fn in_blocks(channels: usize, taps: usize, weight: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut blocks = vec![0.0; channels.next_multiple_of(WIDE) * taps];
    for channel in 0..channels {
        let block = &mut blocks[channel / WIDE * WIDE * taps..][..WIDE * taps];
        for tap in 0..taps {
            block[tap * WIDE + channel % WIDE] = weight(channel, tap);
        }
    }
    blocks
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
