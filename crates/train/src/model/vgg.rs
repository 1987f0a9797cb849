//! VGG16 without normalisation: thirteen 3x3 convolutions, five poolings, three dense layers that hold nine tenths of
//! the weights.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use crate::layer::pool::{Window, max_pool, mean_parts};
use crate::layer::{Conv2d, ConvSpec, Dropout, Filling, ForwardPass, Linear, Start};

/// Channels of each convolution; a pooling follows each row.
const ROWS: [&[usize]; 5] = [&[64, 64], &[128, 128], &[256, 256, 256], &[512, 512, 512], &[512, 512, 512]];
/// Dense layers look at an image of 7x7.
const SIDE: usize = 7;

/// VGG16.
#[derive(Module, Debug)]
pub struct Vgg {
    rows: Vec<Vec<Conv2d>>,
    dense: Vec<Linear>,
    dropout: Vec<Dropout>,
}

impl Vgg {
    pub(super) fn new(bands: usize, outputs: usize, start: &mut Start) -> Self {
        let mut channels = bands;
        let mut conv = |published: usize| {
            let width = start.width(published);
            let spec = ConvSpec::square(std::mem::replace(&mut channels, width), width, 3);
            spec.bias(Filling::Constant(0.0)).start(start)
        };
        let rows = ROWS.iter().map(|row| row.iter().map(|width| conv(*width)).collect()).collect();
        let sizes = [channels * SIDE * SIDE, start.width(4096), start.width(4096), outputs];
        let filling = [Filling::Normal(0.01), Filling::Constant(0.0)];
        let dense = sizes.windows(2).map(|pair| Linear::new(pair[0], pair[1], filling, start)).collect();
        let dropout = (0..2).map(|_| Dropout::new(0.5, start)).collect();
        Self { rows, dense, dropout }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let x = self.rows.iter().fold(images, |x, row| {
            max_pool(row.iter().fold(x, |x, conv| relu(conv.forward(x, pass))), Window::new(2, 2))
        });
        let mut x = mean_parts(x, SIDE).flatten(1, 3);
        for (dense, dropout) in self.dense.iter().zip(&self.dropout) {
            x = dropout.forward(relu(dense.forward(x, pass)), pass);
        }
        self.dense[2].forward(x, pass)
    }
}
