//! MobileNet v2: blocks that widen, look at each channel by itself, and narrow again.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::layer::pool::mean_image;
use crate::layer::{Activation, BatchNorm, Conv2d, ConvSpec, Dropout, Filling, ForwardPass, Linear, Start};

/// How much wider, channels, number of blocks, stride of the first.
const STAGES: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

/// MobileNet v2.
#[derive(Module, Debug)]
pub struct MobileNet {
    first: Step,
    blocks: Vec<Block>,
    last: Step,
    dropout: Dropout,
    dense: Linear,
}

/// A convolution and its normalisation.
#[derive(Module, Debug)]
struct Step {
    conv: Conv2d,
    norm: BatchNorm,
}

/// An inverted residual: what is added has few channels, what is between has many.
#[derive(Module, Debug)]
struct Block {
    widen: Option<Step>,
    depthwise: Step,
    narrow: Step,
    added: bool,
}

impl Step {
    fn new(spec: ConvSpec, start: &mut Start) -> Self {
        Self { conv: spec.start(start), norm: BatchNorm::new(spec.output, start) }
    }

    fn forward(&self, input: Tensor<4>, activation: Activation, pass: &ForwardPass<'_>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(input, pass), activation, pass)
    }
}

impl Block {
    fn new(input: usize, output: usize, wider: usize, stride: usize, start: &mut Start) -> Self {
        let middle = input * wider;
        Self {
            widen: (wider != 1).then(|| Step::new(ConvSpec::square(input, middle, 1), start)),
            depthwise: Step::new(ConvSpec::square(middle, middle, 3).stride(stride).groups(middle), start),
            narrow: Step::new(ConvSpec::square(middle, output, 1), start),
            added: stride == 1 && input == output,
        }
    }

    fn forward(&self, input: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let wide = match &self.widen {
            Some(step) => step.forward(input.clone(), Activation::Relu6, pass),
            None => input.clone(),
        };
        let seen = self.narrow.conv.forward(self.depthwise.forward(wide, Activation::Relu6, pass), pass);
        if self.added {
            self.narrow.norm.forward_add(seen, input, Activation::None, pass)
        } else {
            self.narrow.norm.forward(seen, Activation::None, pass)
        }
    }
}

impl MobileNet {
    pub(super) fn new(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let mut channels = start.width(32);
        let first = Step::new(ConvSpec::square(bands, channels, 3).stride(2), start);
        let mut blocks = Vec::new();
        for (wider, published, count, stride) in STAGES {
            let width = start.width(published);
            for number in 0..count {
                let stride = if number == 0 { stride } else { 1 };
                blocks.push(Block::new(std::mem::replace(&mut channels, width), width, wider, stride, start));
            }
        }
        let wide = start.width(1280);
        let last = Step::new(ConvSpec::square(channels, wide, 1), start);
        let dropout = Dropout::new(0.2, start);
        let dense = Linear::new(wide, outputs, [Filling::Normal(0.01), Filling::Constant(0.0)], start);
        Self { first, blocks, last, dropout, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let x = self.first.forward(images, Activation::Relu6, pass);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x, pass));
        let x = mean_image(self.last.forward(x, Activation::Relu6, pass));
        self.dense.forward(self.dropout.forward(x, pass), pass)
    }
}
