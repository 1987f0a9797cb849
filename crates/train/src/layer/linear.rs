//! A dense layer: every output is a weighted sum of all inputs.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::start::Fans;
use super::{Filling, ForwardPass, Start, tapped};

/// `output = input x weight + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// A layer whose weights and bias start like this.
    pub fn new(inputs: usize, outputs: usize, [weight, bias]: [Filling; 2], start: &mut Start) -> Self {
        let fans = Fans { fan_in: inputs, fan_out: outputs };
        Self { weight: start.parameter([inputs, outputs], weight, fans), bias: start.parameter([outputs], bias, fans) }
    }

    /// From `[samples, inputs]` to `[samples, outputs]`.
    pub fn forward(&self, input: Tensor<2>, pass: &ForwardPass<'_>) -> Tensor<2> {
        let weight = tapped(&self.weight, &input, pass);
        let bias = tapped(&self.bias, &input, pass);
        input.matmul(weight) + bias.unsqueeze()
    }
}
