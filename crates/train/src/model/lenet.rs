//! LeNet-5 as it is built today: rectified, with max pooling, and every second-stage channel seeing all of the first
//! stage.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use crate::layer::pool::{Window, max_pool};
use crate::layer::{Conv2d, ConvSpec, Filling, ForwardPass, Linear, Start};
use farandole_data::sample::ImageShape;

/// LeNet-5.
#[derive(Module, Debug)]
pub struct LeNet {
    convs: Vec<Conv2d>,
    dense: Vec<Linear>,
}

impl LeNet {
    pub(super) fn new(shape: ImageShape, outputs: usize, start: &mut Start) -> Self {
        let [a, b, c, d] = [6, 16, 120, 84].map(|published| start.width(published));
        let convs = [(shape.bands, a), (a, b)].into_iter().map(|(input, output)| {
            let spec = ConvSpec::square(input, output, 5).padding(0).filling(Filling::FanIn);
            spec.bias(Filling::FanIn).start(start)
        });
        let convs = convs.collect();
        // A 5x5 kernel takes four pixels off, a pooling halves; twice.
        let side = |size: usize| ((size - 4) / 2 - 4) / 2;
        let sizes = [b * side(shape.height) * side(shape.width), c, d, outputs];
        let dense = sizes.windows(2).map(|pair| Linear::new(pair[0], pair[1], [Filling::FanIn; 2], start)).collect();
        Self { convs, dense }
    }

    pub(super) fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let x = self.convs.iter().fold(images, |x, conv| max_pool(relu(conv.forward(x, pass)), Window::new(2, 2)));
        let (last, hidden) = self.dense.split_last().expect("three dense layers");
        let x = hidden.iter().fold(x.flatten(1, 3), |x, dense| relu(dense.forward(x, pass)));
        last.forward(x, pass)
    }
}
