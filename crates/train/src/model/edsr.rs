//! EDSR, baseline: sixteen blocks of two convolutions without normalisation, then channels become pixels.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use crate::layer::shuffle::pixel_shuffle;
use crate::layer::{Conv2d, ConvSpec, Filling, ForwardPass, Start};

/// Published channels of every layer between the first and the last.
const FEATURES: usize = 64;
const BLOCKS: usize = 16;

/// EDSR.
#[derive(Module, Debug)]
pub struct Edsr {
    head: Conv2d,
    blocks: Vec<Vec<Conv2d>>,
    body: Conv2d,
    larger: Vec<Larger>,
    tail: Conv2d,
}

/// One enlargement.
#[derive(Module, Debug)]
struct Larger {
    conv: Conv2d,
    factor: usize,
}

/// The enlargements by two or three that make `scale`, if there are any.
pub(super) fn factors(scale: usize) -> Option<Vec<usize>> {
    let mut rest = scale;
    let mut factors = Vec::new();
    for factor in [2, 3] {
        while rest > 1 && rest.is_multiple_of(factor) {
            factors.push(factor);
            rest /= factor;
        }
    }
    (rest == 1 && scale > 1).then_some(factors)
}

impl Edsr {
    pub(super) fn new(bands: usize, scale: usize, start: &mut Start) -> Self {
        let features = start.width(FEATURES);
        let conv = |input, output, start: &mut Start| {
            ConvSpec::square(input, output, 3).filling(Filling::FanIn).bias(Filling::FanIn).start(start)
        };
        let head = conv(bands, features, start);
        let blocks = (0..BLOCKS).map(|_| (0..2).map(|_| conv(features, features, start)).collect()).collect();
        let body = conv(features, features, start);
        let factors = factors(scale).unwrap_or_default();
        let larger = factors
            .into_iter()
            .map(|factor| Larger { conv: conv(features, features * factor * factor, start), factor })
            .collect();
        Self { head, blocks, body, larger, tail: conv(features, bands, start) }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<4> {
        let head = self.head.forward(images, pass);
        let through = self.blocks.iter().fold(head.clone(), |x, block| {
            let inner = relu(block[0].forward(x.clone(), pass));
            block[1].forward(inner, pass) + x
        });
        let body = self.body.forward(through, pass) + head;
        let large =
            self.larger.iter().fold(body, |x, larger| pixel_shuffle(larger.conv.forward(x, pass), larger.factor));
        self.tail.forward(large, pass)
    }
}
