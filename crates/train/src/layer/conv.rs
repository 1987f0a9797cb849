//! Convolution in two dimensions, with groups, strides and kernels that need not be square.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;

use super::start::Fans;
use super::{Filling, ForwardPass, Start, tapped};
use crate::kernel::conv_op::{Moves, convolve};

/// What a convolution is like, before it has weights.
#[derive(Clone, Copy, Debug)]
pub struct ConvSpec {
    /// Channels of its input.
    pub input: usize,
    /// Channels of its output.
    pub output: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Steps between neighbouring outputs.
    pub stride: usize,
    /// Zeros around the input, above and below, left and right.
    pub padding: [usize; 2],
    /// Channels are cut into so many groups that know nothing of one another. As many as channels: depthwise.
    pub groups: usize,
    /// Whether a number is added to each output channel. None where a normalisation follows, which does that.
    pub bias: bool,
    /// How weights start.
    pub filling: Filling,
    /// How the bias starts.
    pub bias_filling: Filling,
}

impl ConvSpec {
    /// A square kernel of odd size with stride one that keeps the image's size, without bias.
    pub fn square(input: usize, output: usize, kernel: usize) -> Self {
        Self::rectangle(input, output, [kernel, kernel])
    }

    /// A kernel of odd sizes with stride one that keeps the image's size, without bias.
    pub fn rectangle(input: usize, output: usize, kernel: [usize; 2]) -> Self {
        let padding = kernel.map(|size| size / 2);
        let (filling, bias_filling) = (Filling::Kaiming, Filling::Constant(0.0));
        Self { input, output, kernel, stride: 1, padding, groups: 1, bias: false, filling, bias_filling }
    }

    /// With this stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// With so many zeros on all sides.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding: [padding, padding], ..self }
    }

    /// With so many groups.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// With a bias that starts like this.
    pub fn bias(self, filling: Filling) -> Self {
        Self { bias: true, bias_filling: filling, ..self }
    }

    /// With weights that start like this.
    pub fn filling(self, filling: Filling) -> Self {
        Self { filling, ..self }
    }

    /// The layer.
    pub fn start(self, start: &mut Start) -> Conv2d {
        let area = self.kernel[0] * self.kernel[1];
        let fans = Fans { fan_in: self.input / self.groups * area, fan_out: self.output * area };
        let shape = [self.output, self.input / self.groups, self.kernel[0], self.kernel[1]];
        Conv2d {
            weight: start.parameter(shape, self.filling, fans),
            bias: self.bias.then(|| start.parameter([self.output], self.bias_filling, fans)),
            stride: self.stride,
            padding: self.padding,
            groups: self.groups,
        }
    }
}

/// Convolution, as neural networks call it: the kernel is not mirrored.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// `[output, input / groups, rows, columns]`.
    pub weight: Param<Tensor<4>>,
    /// `[output]`.
    pub bias: Option<Param<Tensor<1>>>,
    stride: usize,
    padding: [usize; 2],
    groups: usize,
}

impl Conv2d {
    /// From `[samples, input, height, width]` to `[samples, output, …, …]`.
    pub fn forward(&self, input: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let weight = tapped(&self.weight, &input, pass);
        let bias = self.bias.as_ref().map(|bias| tapped(bias, &input, pass));
        let [output, from, rows, columns] = weight.dims();
        let moves = Moves { stride: self.stride, padding: self.padding };
        let depthwise = from == 1 && output == self.groups;
        if (self.groups == 1 || depthwise) && moves.fit([rows, columns]) {
            return convolve(input, weight, bias, moves);
        }
        let stride = [self.stride; 2];
        conv2d(input, weight, bias, ConvOptions::new(stride, self.padding, [1, 1], self.groups))
    }
}
