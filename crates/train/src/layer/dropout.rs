//! Dropout: while learning, every number is set to zero with a given probability, and the others are made larger to
//! make up for it.
//!
//! Which numbers is a function of the run's seed, the step, the layer and the sample's place in the global batch. So a
//! run can be repeated, and what a sample loses does not depend on the rank it is on.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};

use super::start::Stream;
use super::{ForwardPass, Start};

/// Sets numbers to zero at random while learning.
#[derive(Module, Debug)]
pub struct Dropout {
    probability: f64,
    layer: usize,
}

impl Dropout {
    /// Loses numbers with this probability.
    pub fn new(probability: f64, start: &mut Start) -> Self {
        Self { probability, layer: start.number() as usize }
    }

    /// The input where the pass does not learn; else the input with holes.
    pub fn forward(&self, input: Tensor<2>, pass: &ForwardPass<'_>) -> Tensor<2> {
        if !pass.training || self.probability == 0.0 {
            return input;
        }
        let [samples, numbers] = input.dims();
        let kept = 1.0 / (1.0 - self.probability) as f32;
        let threshold = self.probability as f32;
        let step = Stream::new(pass.draw.seed, pass.draw.step).within(self.layer as u64);
        let mut mask = Vec::with_capacity(samples * numbers);
        for sample in 0..samples {
            let stream = step.within((pass.draw.first_sample + sample) as u64);
            mask.extend((0..numbers as u64).map(|i| if stream.uniform(i) < threshold { 0.0 } else { kept }));
        }
        let mask = Tensor::<2>::from_data(TensorData::new(mask, [samples, numbers]), &input.device());
        input * mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Draw;
    use burn::tensor::Device;

    fn dropped(draw: Draw, samples: usize) -> Vec<f32> {
        let device = Device::flex();
        let layer = Dropout::new(0.25, &mut Start::new(&device, 0, 1));
        let output = layer.forward(Tensor::ones([samples, 1000], &device), &ForwardPass::training(None, draw));
        output.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn as_many_are_lost_as_asked_and_the_mean_stays() {
        let values = dropped(Draw { seed: 1, step: 2, first_sample: 0 }, 20);
        let lost = values.iter().filter(|&&v| v == 0.0).count();
        assert!((4600..5400).contains(&lost), "{lost} of 20000 with probability 0.25");
        assert!(values.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
    }

    #[test]
    fn a_sample_loses_the_same_on_every_rank_and_something_else_in_every_step() {
        let draw = Draw { seed: 1, step: 2, first_sample: 0 };
        let together = dropped(draw, 4);
        assert_eq!(together[..2000], dropped(draw, 2));
        assert_eq!(together[2000..], dropped(Draw { first_sample: 2, ..draw }, 2));
        assert_ne!(together, dropped(Draw { step: 3, ..draw }, 4));
        assert_ne!(together, dropped(Draw { seed: 2, ..draw }, 4));
    }

    #[test]
    fn nothing_is_lost_in_evaluation() {
        let device = Device::flex();
        let layer = Dropout::new(0.9, &mut Start::new(&device, 0, 1));
        let output = layer.forward(Tensor::ones([2, 10], &device), &ForwardPass::evaluation());
        assert_eq!(output.into_data().try_to_vec::<f32>().unwrap(), [1.0; 20]);
    }
}
