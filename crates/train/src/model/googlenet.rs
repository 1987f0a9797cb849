//! GoogLeNet (Inception v1) as PyTorch has it: with batch normalisation, 3x3 kernels in the branch that has 5x5 in the
//! paper, and without the two auxiliary outputs.

use burn::module::Module;
use burn::tensor::Tensor;

use super::inception::Unit;
use crate::layer::pool::{Window, max_pool, mean_image};
use crate::layer::{ConvSpec, Dropout, Filling, ForwardPass, Linear, Start};

/// 1x1; 3x3 reduced and full; "5x5" reduced and full; after pooling.
const MODULES: [[usize; 6]; 9] = [
    [64, 96, 128, 16, 32, 32],
    [128, 128, 192, 32, 96, 64],
    [192, 96, 208, 16, 48, 64],
    [160, 112, 224, 24, 64, 64],
    [128, 128, 256, 24, 64, 64],
    [112, 144, 288, 32, 64, 64],
    [256, 160, 320, 32, 128, 128],
    [256, 160, 320, 32, 128, 128],
    [384, 192, 384, 48, 128, 128],
];
/// A pooling of 3x3 follows the stem and the second module, one of 2x2 the seventh.
const POOLED: [(usize, usize); 2] = [(1, 3), (6, 2)];

/// GoogLeNet.
#[derive(Module, Debug)]
pub struct GoogLeNet {
    stem: Vec<Unit>,
    modules: Vec<Branches>,
    dropout: Dropout,
    dense: Linear,
}

/// Four views of the same image, put together by channels.
#[derive(Module, Debug)]
struct Branches {
    one: Unit,
    three: Vec<Unit>,
    five: Vec<Unit>,
    pooled: Unit,
}

impl Branches {
    fn new(input: usize, widths: [usize; 6], start: &mut Start) -> Self {
        let [one, three_in, three, five_in, five, pooled] = widths;
        Self {
            one: Unit::new(ConvSpec::square(input, one, 1), start),
            three: vec![
                Unit::new(ConvSpec::square(input, three_in, 1), start),
                Unit::new(ConvSpec::square(three_in, three, 3), start),
            ],
            five: vec![
                Unit::new(ConvSpec::square(input, five_in, 1), start),
                Unit::new(ConvSpec::square(five_in, five, 3), start),
            ],
            pooled: Unit::new(ConvSpec::square(input, pooled, 1), start),
        }
    }

    fn forward(&self, x: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let through = |units: &[Unit]| units.iter().fold(x.clone(), |x, unit| unit.forward(x, pass));
        let pooled = self.pooled.forward(max_pool(x.clone(), Window::new(3, 1).padding(1).ceil()), pass);
        Tensor::cat(vec![self.one.forward(x.clone(), pass), through(&self.three), through(&self.five), pooled], 1)
    }
}

impl GoogLeNet {
    pub(super) fn new(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let [narrow, wide] = [64, 192].map(|published| start.width(published));
        let stem = vec![
            Unit::new(ConvSpec::square(bands, narrow, 7).stride(2), start),
            Unit::new(ConvSpec::square(narrow, narrow, 1), start),
            Unit::new(ConvSpec::square(narrow, wide, 3), start),
        ];
        let mut channels = wide;
        let mut modules = Vec::new();
        for published in MODULES {
            let widths = published.map(|width| start.width(width));
            modules.push(Branches::new(channels, widths, start));
            channels = widths[0] + widths[2] + widths[4] + widths[5];
        }
        let dropout = Dropout::new(0.2, start);
        let dense = Linear::new(channels, outputs, [Filling::TruncatedNormal(0.01), Filling::FanIn], start);
        Self { stem, modules, dropout, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let smaller = |x, size| max_pool(x, Window::new(size, 2).ceil());
        let x = smaller(self.stem[0].forward(images, pass), 3);
        let x = smaller(self.stem[2].forward(self.stem[1].forward(x, pass), pass), 3);
        let x = self.modules.iter().enumerate().fold(x, |x, (number, module)| {
            let x = module.forward(x, pass);
            match POOLED.iter().find(|(after, _)| *after == number) {
                Some((_, size)) => smaller(x, *size),
                None => x,
            }
        });
        self.dense.forward(self.dropout.forward(mean_image(x), pass), pass)
    }
}
