//! ResNet: blocks that add something to what passes them by.
//!
//! Three of the family. ResNet-20 is the one for CIFAR (three stages of three blocks with 16, 32 and 64 channels, no
//! pooling before them), with projections where the shape changes. ResNet-18 and -50 are those for ImageNet; ResNet-50
//! has its stride in the 3x3 convolution, as PyTorch's.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::layer::pool::{Window, max_pool, mean_image};
use crate::layer::{Activation, BatchNorm, Conv2d, ConvSpec, Filling, ForwardPass, Linear, Start};

/// ResNet-20, -18 or -50.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    stem_norm: BatchNorm,
    pooled: bool,
    blocks: Vec<Block>,
    dense: Linear,
}

/// A convolution and its normalisation.
#[derive(Module, Debug)]
struct Step {
    conv: Conv2d,
    norm: BatchNorm,
}

/// Two or three steps, and the shortcut around them where the shape changes.
#[derive(Module, Debug)]
struct Block {
    steps: Vec<Step>,
    shortcut: Option<Step>,
}

impl Step {
    fn new(spec: ConvSpec, start: &mut Start) -> Self {
        Self { conv: spec.start(start), norm: BatchNorm::new(spec.output, start) }
    }
}

impl Block {
    /// Two 3x3 convolutions, the first with the stride.
    fn basic(input: usize, output: usize, stride: usize, start: &mut Start) -> Self {
        let specs = [ConvSpec::square(input, output, 3).stride(stride), ConvSpec::square(output, output, 3)];
        Self::new(&specs, start)
    }

    /// 1x1 to fewer channels, 3x3 with the stride, 1x1 to four times as many.
    fn bottleneck(input: usize, middle: usize, stride: usize, start: &mut Start) -> Self {
        let specs = [
            ConvSpec::square(input, middle, 1),
            ConvSpec::square(middle, middle, 3).stride(stride),
            ConvSpec::square(middle, 4 * middle, 1),
        ];
        Self::new(&specs, start)
    }

    fn new(specs: &[ConvSpec], start: &mut Start) -> Self {
        let (input, output) = (specs[0].input, specs[specs.len() - 1].output);
        let stride = specs.iter().map(|spec| spec.stride).product();
        let steps = specs.iter().map(|spec| Step::new(*spec, start)).collect();
        let projection = ConvSpec::square(input, output, 1).stride(stride);
        let shortcut = (stride != 1 || input != output).then(|| Step::new(projection, start));
        Self { steps, shortcut }
    }

    fn forward(&self, input: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let by = match &self.shortcut {
            Some(step) => step.norm.forward(step.conv.forward(input.clone(), pass), Activation::None, pass),
            None => input.clone(),
        };
        let (last, steps) = self.steps.split_last().expect("a block has steps");
        let through =
            steps.iter().fold(input, |x, step| step.norm.forward(step.conv.forward(x, pass), Activation::Relu, pass));
        last.norm.forward_add(last.conv.forward(through, pass), by, Activation::Relu, pass)
    }
}

/// Makes a block: from input channels, width of the stage and stride.
type MakeBlock = fn(usize, usize, usize, &mut Start) -> Block;

impl ResNet {
    pub(super) fn cifar20(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let first = start.width(16);
        let stem = ConvSpec::square(bands, first, 3);
        Self::build(stem, false, &[(16, 3), (32, 3), (64, 3)], (Block::basic, 1), outputs, start)
    }

    pub(super) fn imagenet18(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let stages = [(64, 2), (128, 2), (256, 2), (512, 2)];
        Self::build(imagenet_stem(bands, start), true, &stages, (Block::basic, 1), outputs, start)
    }

    pub(super) fn imagenet50(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let stages = [(64, 3), (128, 4), (256, 6), (512, 3)];
        Self::build(imagenet_stem(bands, start), true, &stages, (Block::bottleneck, 4), outputs, start)
    }

    /// `stages` are published widths and numbers of blocks; a block of a stage of width w gives w times `expansion`
    /// channels.
    fn build(
        stem: ConvSpec,
        pooled: bool,
        stages: &[(usize, usize)],
        (make, expansion): (MakeBlock, usize),
        outputs: usize,
        start: &mut Start,
    ) -> Self {
        let mut channels = stem.output;
        let Step { conv: stem, norm: stem_norm } = Step::new(stem, start);
        let mut blocks = Vec::new();
        for (stage, &(width, count)) in stages.iter().enumerate() {
            let width = start.width(width);
            for number in 0..count {
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                blocks.push(make(channels, width, stride, start));
                channels = width * expansion;
            }
        }
        let dense = Linear::new(channels, outputs, [Filling::FanIn; 2], start);
        Self { stem, stem_norm, pooled, blocks, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let mut x = self.stem_norm.forward(self.stem.forward(images, pass), Activation::Relu, pass);
        if self.pooled {
            x = max_pool(x, Window::new(3, 2).padding(1));
        }
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x, pass));
        self.dense.forward(mean_image(x), pass)
    }
}

fn imagenet_stem(bands: usize, start: &Start) -> ConvSpec {
    ConvSpec::square(bands, start.width(64), 7).stride(2)
}
