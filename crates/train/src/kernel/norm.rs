//! Batch normalisation, followed by the addition of a second input and a rectification where wanted, in as few passes
//! over memory as there can be: two to learn the statistics, one to write; backward one for the sums and one to write.
//!
//! An input is `[samples, channels, pixels]`. Statistics are taken per channel over groups of consecutive samples; sums
//! within a row are kept in sixteen lanes and rows are added up in double precision, so the result does not depend on
//! the vector unit.

#![allow(clippy::needless_range_loop, reason = "loops over lanes are unrolled, and read best as the sums they are")]

use pulp::{Arch, NullaryFnOnce};

use super::{for_each_number, for_each_piece};

/// Lanes of the sums: as many as the widest vector unit has.
const LANES: usize = 16;

/// What is done to a normalised number at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// Negative ones become zero.
    Relu,
    /// Negative ones become zero, those above six become six.
    Relu6,
}

/// The extent of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) samples: usize,
    pub(super) channels: usize,
    pub(super) pixels: usize,
    /// Samples that are normalised together. The last group may have fewer.
    pub(super) group: usize,
}

impl Extent {
    pub(super) fn groups(self) -> usize {
        self.samples.div_ceil(self.group.max(1))
    }

    /// How many numbers of one channel group `group` has.
    pub(super) fn count(self, group: usize) -> usize {
        self.samples_of(group).len() * self.pixels
    }

    fn samples_of(self, group: usize) -> std::ops::Range<usize> {
        group * self.group..((group + 1) * self.group).min(self.samples)
    }

    fn row(self, sample: usize, channel: usize) -> std::ops::Range<usize> {
        let start = (sample * self.channels + channel) * self.pixels;
        start..start + self.pixels
    }
}

/// Mean and variance of each channel of each group, `[groups, channels]`. The variance is the mean square deviation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moments {
    pub(super) mean: Vec<f32>,
    pub(super) variance: Vec<f32>,
}

pub(super) fn moments(input: &[f32], extent: Extent) -> Moments {
    let channels = extent.channels;
    let pairs = for_each_number(extent.groups() * channels, input.len(), |number| {
        let (group, channel) = (number / channels, number % channels);
        Arch::new().dispatch(MomentsOfChannel { input, extent, group, channel })
    });
    let (mean, variance) = pairs.into_iter().unzip();
    Moments { mean, variance }
}

struct MomentsOfChannel<'a> {
    input: &'a [f32],
    extent: Extent,
    group: usize,
    channel: usize,
}

impl NullaryFnOnce for MomentsOfChannel<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn call(self) -> (f32, f32) {
        let Self { input, extent, group, channel } = self;
        let count = extent.count(group) as f64;
        let mut sum = 0.0;
        for sample in extent.samples_of(group) {
            sum += lane_sum(&input[extent.row(sample, channel)], |lane, &x| *lane += x);
        }
        let mean = (sum / count) as f32;
        let mut squares = 0.0;
        for sample in extent.samples_of(group) {
            squares += lane_sum(&input[extent.row(sample, channel)], |lane, &x| {
                let deviation = x - mean;
                *lane += deviation * deviation;
            });
        }
        (mean, (squares / count) as f32)
    }
}

/// The sum over a row of what `add` adds to a lane for each number.
#[inline(always)]
fn lane_sum(row: &[f32], add: impl Fn(&mut f32, &f32)) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            add(&mut lanes[lane], &block[lane]);
        }
    }
    for (lane, number) in lanes.iter_mut().zip(rest) {
        add(lane, number);
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}

/// `scale` and `shift` of each channel of each group: `output = input * scale + shift`.
pub(super) fn affine(moments: &Moments, gamma: &[f32], beta: &[f32], epsilon: f32) -> Vec<(f32, f32)> {
    let channels = gamma.len();
    let pairs = moments.mean.iter().zip(&moments.variance).enumerate();
    pairs
        .map(|(number, (mean, variance))| {
            let channel = number % channels;
            let scale = gamma[channel] / (variance + epsilon).sqrt();
            (scale, beta[channel] - mean * scale)
        })
        .collect()
}

/// The normalised input, plus `residual`, activated.
pub(super) fn forward(
    input: &[f32],
    residual: Option<&[f32]>,
    affine: &[(f32, f32)],
    activation: Activation,
    extent: Extent,
) -> Vec<f32> {
    let mut output = vec![0.0; input.len()];
    let size = extent.channels * extent.pixels;
    for_each_piece(&mut output, size, |sample, output| {
        let affine = &affine[sample / extent.group * extent.channels..][..extent.channels];
        let input = &input[sample * size..][..size];
        let residual = residual.map(|residual| &residual[sample * size..][..size]);
        Arch::new().dispatch(WriteSample { input, residual, affine, activation, pixels: extent.pixels, output });
    });
    output
}

struct WriteSample<'a> {
    input: &'a [f32],
    residual: Option<&'a [f32]>,
    affine: &'a [(f32, f32)],
    activation: Activation,
    pixels: usize,
    output: &'a mut [f32],
}

impl NullaryFnOnce for WriteSample<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (low, high) = bounds(self.activation);
        for (channel, &(scale, shift)) in self.affine.iter().enumerate() {
            let row = channel * self.pixels..(channel + 1) * self.pixels;
            let (input, output) = (&self.input[row.clone()], &mut self.output[row.clone()]);
            match self.residual {
                None => {
                    for (y, x) in output.iter_mut().zip(input) {
                        *y = (x * scale + shift).max(low).min(high);
                    }
                }
                Some(residual) => {
                    for ((y, x), r) in output.iter_mut().zip(input).zip(&residual[row]) {
                        *y = (x * scale + shift + r).max(low).min(high);
                    }
                }
            }
        }
    }
}

fn bounds(activation: Activation) -> (f32, f32) {
    match activation {
        Activation::None => (f32::NEG_INFINITY, f32::INFINITY),
        Activation::Relu => (0.0, f32::INFINITY),
        Activation::Relu6 => (0.0, 6.0),
    }
}

/// What backward has to know.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    pub(super) input: &'a [f32],
    pub(super) output: &'a [f32],
    pub(super) moments: &'a Moments,
    pub(super) gamma: &'a [f32],
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) extent: Extent,
    /// Whether the moments were those of the input. Else they are constants and no gradient flows through them.
    pub(super) from_batch: bool,
}

/// Gradients of input, residual (where asked for), gamma and beta.
pub(super) struct Gradients {
    pub(super) input: Vec<f32>,
    pub(super) residual: Option<Vec<f32>>,
    pub(super) gamma: Vec<f32>,
    pub(super) beta: Vec<f32>,
}

pub(super) fn backward(past: Past<'_>, gradient: &[f32], with_residual: bool) -> Gradients {
    let extent = past.extent;
    let channels = extent.channels;
    // With a residual, what comes back through the activation is wanted as it is: it is written once and read instead
    // of being computed again.
    let (through, residual) = match (with_residual, past.activation) {
        (true, Activation::None) => (None, Some(gradient.to_vec())),
        (true, _) => (Some(through_activation(past, gradient)), None),
        (false, _) => (None, None),
    };
    let (gradient, activation) = match &through {
        Some(through) => (through.as_slice(), Activation::None),
        None => (gradient, past.activation),
    };
    let past = Past { activation, ..past };
    let sums = for_each_number(extent.groups() * channels, gradient.len(), |number| {
        let (group, channel) = (number / channels, number % channels);
        Arch::new().dispatch(SumsOfChannel { past, gradient, group, channel })
    });
    let mut gamma = vec![0.0; channels];
    let mut beta = vec![0.0; channels];
    for (number, &(sum, product)) in sums.iter().enumerate() {
        beta[number % channels] += sum as f32;
        gamma[number % channels] += product as f32;
    }
    let terms = terms(past, &sums);
    let mut input = vec![0.0; gradient.len()];
    let size = channels * extent.pixels;
    for_each_piece(&mut input, size, |sample, written| {
        let terms = &terms[sample / extent.group * channels..][..channels];
        Arch::new().dispatch(WriteGradient { past, gradient, terms, sample, written });
    });
    Gradients { input, residual: through.or(residual), gamma, beta }
}

fn through_activation(past: Past<'_>, gradient: &[f32]) -> Vec<f32> {
    let mut through = vec![0.0; gradient.len()];
    let size = past.extent.channels * past.extent.pixels;
    for_each_piece(&mut through, size, |sample, through| {
        let range = sample * size..sample * size + through.len();
        Arch::new().dispatch(Mask { past, gradient: &gradient[range.clone()], output: &past.output[range], through });
    });
    through
}

struct Mask<'a> {
    past: Past<'a>,
    gradient: &'a [f32],
    output: &'a [f32],
    through: &'a mut [f32],
}

impl NullaryFnOnce for Mask<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (low, high) = bounds(self.past.activation);
        for ((t, g), y) in self.through.iter_mut().zip(self.gradient).zip(self.output) {
            *t = if *y > low && *y < high { *g } else { 0.0 };
        }
    }
}

/// The sum of the gradients of one channel of one group, and that of their products with the normalised input.
struct SumsOfChannel<'a> {
    past: Past<'a>,
    gradient: &'a [f32],
    group: usize,
    channel: usize,
}

impl NullaryFnOnce for SumsOfChannel<'_> {
    type Output = (f64, f64);

    #[inline(always)]
    fn call(self) -> (f64, f64) {
        let Self { past, gradient, group, channel } = self;
        let extent = past.extent;
        let number = group * extent.channels + channel;
        let mean = past.moments.mean[number];
        let (low, high) = bounds(past.activation);
        let mut sum = 0.0;
        let mut product = 0.0;
        for sample in extent.samples_of(group) {
            let row = extent.row(sample, channel);
            let (x, y, g) = (&past.input[row.clone()], &past.output[row.clone()], &gradient[row]);
            let mut sums = [0.0f32; LANES];
            let mut products = [0.0f32; LANES];
            let mut add = |lane: usize, x: f32, y: f32, g: f32| {
                let g = if y > low && y < high { g } else { 0.0 };
                sums[lane] += g;
                products[lane] += g * (x - mean);
            };
            let ((xs, x_rest), (ys, y_rest), (gs, g_rest)) =
                (x.as_chunks::<LANES>(), y.as_chunks::<LANES>(), g.as_chunks::<LANES>());
            for ((x, y), g) in xs.iter().zip(ys).zip(gs) {
                for lane in 0..LANES {
                    add(lane, x[lane], y[lane], g[lane]);
                }
            }
            for (lane, ((&x, &y), &g)) in x_rest.iter().zip(y_rest).zip(g_rest).enumerate() {
                add(lane, x, y, g);
            }
            sum += sums.iter().map(|&lane| f64::from(lane)).sum::<f64>();
            product += products.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
        let deviation = f64::from(past.moments.variance[number] + past.epsilon).sqrt();
        (sum, product / deviation)
    }
}

/// What a channel of a group needs to write its gradient: `gradient * scale + input * slope + constant`.
#[derive(Clone, Copy)]
struct Terms {
    scale: f32,
    slope: f32,
    constant: f32,
}

/// The textbook's formula `gamma / deviation * (gradient - mean(gradient) - normalised * mean(gradient * normalised))`,
/// sorted by what changes from number to number.
fn terms(past: Past<'_>, sums: &[(f64, f64)]) -> Vec<Terms> {
    let channels = past.extent.channels;
    let terms = sums.iter().enumerate().map(|(number, &(sum, product))| {
        let (group, channel) = (number / channels, number % channels);
        let deviation = f64::from(past.moments.variance[number] + past.epsilon).sqrt();
        let scale = f64::from(past.gamma[channel]) / deviation;
        if !past.from_batch {
            return Terms { scale: scale as f32, slope: 0.0, constant: 0.0 };
        }
        let count = past.extent.count(group) as f64;
        let slope = -scale * product / count / deviation;
        let constant = -scale * sum / count - slope * f64::from(past.moments.mean[number]);
        Terms { scale: scale as f32, slope: slope as f32, constant: constant as f32 }
    });
    terms.collect()
}

struct WriteGradient<'a> {
    past: Past<'a>,
    gradient: &'a [f32],
    terms: &'a [Terms],
    sample: usize,
    written: &'a mut [f32],
}

impl NullaryFnOnce for WriteGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (past, pixels) = (self.past, self.past.extent.pixels);
        let (low, high) = bounds(past.activation);
        for (channel, &Terms { scale, slope, constant }) in self.terms.iter().enumerate() {
            let row = past.extent.row(self.sample, channel);
            let (x, y, g) = (&past.input[row.clone()], &past.output[row.clone()], &self.gradient[row]);
            let written = &mut self.written[channel * pixels..(channel + 1) * pixels];
            for (((w, x), y), g) in written.iter_mut().zip(x).zip(y).zip(g) {
                let g = if *y > low && *y < high { *g } else { 0.0 };
                *w = g * scale + x * slope + constant;
            }
        }
    }
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
