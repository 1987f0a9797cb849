//! AlexNet in one tower, as PyTorch has it: five convolutions without local response normalisation, three dense layers.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use crate::layer::pool::{Window, max_pool, mean_parts};
use crate::layer::{Conv2d, ConvSpec, Dropout, Filling, ForwardPass, Linear, Start};

/// Dense layers look at an image of 6x6.
const SIDE: usize = 6;
/// Convolutions after which there is a pooling.
const POOLED: [usize; 3] = [0, 1, 4];

/// AlexNet.
#[derive(Module, Debug)]
pub struct AlexNet {
    convs: Vec<Conv2d>,
    dropout: Vec<Dropout>,
    dense: Vec<Linear>,
}

impl AlexNet {
    pub(super) fn new(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let [a, b, c, d] = [64, 192, 384, 256].map(|published| start.width(published));
        let specs = [
            ConvSpec::square(bands, a, 11).stride(4).padding(2),
            ConvSpec::square(a, b, 5),
            ConvSpec::square(b, c, 3),
            ConvSpec::square(c, d, 3),
            ConvSpec::square(d, d, 3),
        ];
        let convs =
            specs.into_iter().map(|spec| spec.filling(Filling::FanIn).bias(Filling::FanIn).start(start)).collect();
        let sizes = [d * SIDE * SIDE, start.width(4096), start.width(4096), outputs];
        let dropout = (0..2).map(|_| Dropout::new(0.5, start)).collect();
        let dense = sizes.windows(2).map(|pair| Linear::new(pair[0], pair[1], [Filling::FanIn; 2], start)).collect();
        Self { convs, dropout, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let mut x = images;
        for (number, conv) in self.convs.iter().enumerate() {
            x = relu(conv.forward(x, pass));
            if POOLED.contains(&number) {
                x = max_pool(x, Window::new(3, 2));
            }
        }
        let mut x = mean_parts(x, SIDE).flatten(1, 3);
        for (dense, dropout) in self.dense.iter().zip(&self.dropout) {
            x = relu(dense.forward(dropout.forward(x, pass), pass));
        }
        self.dense[2].forward(x, pass)
    }
}
