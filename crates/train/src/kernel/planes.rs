//! Images laid out so that a convolution is a matrix product without anybody building the matrix.
//!
//! All pixels of a channel of several images lie in one row, with zeros between image rows and between images that
//! stand for what is beyond their edges. Output pixels are numbered in the same layout, so for a given tap of the
//! kernel the input of output number p is at p plus an offset that is the same for all p: what a tap sees of a channel
//! is a contiguous piece of the row. The numbers computed between image rows and between images are waste; there are
//! few of them, because the zeros after one row are those before the next.
//!
//! With a stride s, the pixels of a channel are first sorted by their row and column modulo s into s times s such rows,
//! and each tap looks at one of them; again all offsets are constant.

use super::tile::STRAND;

/// A convolution's geometry. Padding is only at the top and the left; beyond the other edges there are as many zeros as
/// the output's size asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Height and width of an input image.
    pub(super) input: [usize; 2],
    /// Height and width of an output image.
    pub(super) output: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) stride: usize,
    /// Zeros above and to the left.
    pub(super) padding: [usize; 2],
}

/// The layout of `images` images for a geometry.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    geometry: Geometry,
    images: usize,
    /// Rows and columns that an image takes in each sorted row of pixels.
    cell: [usize; 2],
    /// Numbers of one channel, all sorted rows of pixels together.
    channel: usize,
}

/// Pixels of the widest tile. Rows of outputs are rounded up to a multiple, and as much may be read beyond the end.
pub(super) const SLACK: usize = 48;

impl Layout {
    pub(super) fn new(geometry: Geometry, images: usize) -> Self {
        let Geometry { input, output, kernel, stride, padding } = geometry;
        let cell = std::array::from_fn(|axis| {
            let reach = (kernel[axis] - 1) / stride;
            // The zeros after a row may be those before the next when nothing else is read there.
            let shared = input[axis] + padding[axis];
            let tight = stride == 1 && shared >= output[axis] && output[axis] + reach <= shared + padding[axis];
            if tight { shared } else { output[axis] + reach }
        });
        let reach = cell_offset(cell, [(kernel[0] - 1) / stride, (kernel[1] - 1) / stride]);
        let row = images * cell[0] * cell[1] + reach;
        let channel = stride * stride * row;
        Self { geometry, images, cell, channel }
    }

    /// How many outputs a channel has in this layout, waste included.
    pub(super) fn outputs(&self) -> usize {
        self.images * self.cell[0] * self.cell[1]
    }

    /// Numbers needed for so many channels, with what may be read beyond them.
    pub(super) fn size(&self, channels: usize) -> usize {
        channels * self.channel + SLACK
    }

    /// For each channel and tap, in the order of weights, where the piece begins that the tap sees for output 0.
    pub(super) fn offsets(&self, channels: usize) -> Vec<usize> {
        let Geometry { kernel, stride, .. } = self.geometry;
        let row = self.channel / (stride * stride);
        let mut offsets = Vec::with_capacity(channels * kernel[0] * kernel[1]);
        for channel in 0..channels {
            for y in 0..kernel[0] {
                for x in 0..kernel[1] {
                    let sorted = (y % stride) * stride + x % stride;
                    let within = cell_offset(self.cell, [y / stride, x / stride]);
                    offsets.push(channel * self.channel + sorted * row + within);
                }
            }
        }
        offsets
    }

    /// Lays images out: `source` is `[images, channels, height, width]` with `pitch` numbers from image to image, of
    /// which the first `channels` channels are taken. `planes` is filled completely.
    pub(super) fn fill(&self, source: &[f32], pitch: usize, channels: usize, planes: &mut Vec<f32>) {
        planes.clear();
        planes.resize(self.size(channels), 0.0);
        let Geometry { input: [height, width], stride, padding, .. } = self.geometry;
        let row = self.channel / (stride * stride);
        for image in 0..self.images {
            for channel in 0..channels {
                let source = &source[image * pitch + channel * height * width..][..height * width];
                for (y, line) in source.chunks_exact(width).enumerate() {
                    let y = y + padding[0];
                    let line_at = channel * self.channel
                        + (y % stride) * stride * row
                        + (image * self.cell[0] + y / stride) * self.cell[1];
                    // Lines that no output looks at may be beyond the cell.
                    if y / stride >= self.cell[0] {
                        continue;
                    }
                    self.fill_line(line, line_at, row, planes);
                }
            }
        }
    }

    fn fill_line(&self, line: &[f32], line_at: usize, row: usize, planes: &mut [f32]) {
        let Geometry { stride, padding: [_, left], .. } = self.geometry;
        if stride == 1 {
            let length = line.len().min(self.cell[1].saturating_sub(left));
            planes[line_at + left..][..length].copy_from_slice(&line[..length]);
            return;
        }
        for phase in 0..stride {
            // The first pixel whose column, padding included, is of this phase.
            let first = (phase + stride - left % stride) % stride;
            let at = (first + left) / stride;
            if first >= line.len() || at >= self.cell[1] {
                continue;
            }
            let target = &mut planes[line_at + phase * row + at..][..self.cell[1] - at];
            for (to, from) in target.iter_mut().zip(line[first..].iter().step_by(stride)) {
                *to = *from;
            }
        }
    }

    /// Lays gradients of outputs out in the numbering of outputs, `[strands][length][STRAND]`: `STRAND` channels next
    /// to each other, with zeros where there is waste or no channel.
    pub(super) fn fill_strands(&self, source: &[f32], channels: usize, length: usize, strands: &mut Vec<f32>) {
        strands.clear();
        strands.resize(channels.div_ceil(STRAND) * length * STRAND, 0.0);
        let [height, width] = self.geometry.output;
        let plane = height * width;
        for image in 0..self.images {
            for first in (0..channels).step_by(STRAND) {
                let source = &source[(image * channels + first) * plane..][..STRAND.min(channels - first) * plane];
                let strand = &mut strands[first * length..][..length * STRAND];
                for y in 0..height {
                    let line = &mut strand[self.line(image, y) * STRAND..][..width * STRAND];
                    transpose(&source[y * width..], plane, line);
                }
            }
        }
    }

    /// Where line `y` of `image` begins among the outputs.
    pub(super) fn line(&self, image: usize, y: usize) -> usize {
        (image * self.cell[0] + y) * self.cell[1]
    }
}

fn cell_offset(cell: [usize; 2], [y, x]: [usize; 2]) -> usize {
    y * cell[1] + x
}

/// Rows that begin every `pitch` numbers become columns of `STRAND` numbers.
fn transpose(rows: &[f32], pitch: usize, columns: &mut [f32]) {
    let (columns, _) = columns.as_chunks_mut::<STRAND>();
    let width = columns.len();
    for (channel, row) in rows.chunks(pitch).enumerate() {
        for (column, number) in columns.iter_mut().zip(&row[..width.min(row.len())]) {
            column[channel] = *number;
        }
    }
}
