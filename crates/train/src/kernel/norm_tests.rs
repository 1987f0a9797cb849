//! Batch normalisation against its definition, and its gradients against differences of that.

use super::*;
use crate::kernel::noise;

const EPSILON: f32 = 1e-3;
/// Five samples in groups of two: the last group has one.
const EXTENT: Extent = Extent { samples: 5, channels: 3, pixels: 21, group: 2 };
const SIZE: usize = 5 * 3 * 21;

/// All that goes in, in double precision.
#[derive(Clone)]
struct Inputs {
    input: Vec<f64>,
    residual: Vec<f64>,
    gamma: Vec<f64>,
    beta: Vec<f64>,
}

/// The definition, sample by sample. With `given`, mean and variance of each channel are those.
fn defined(inputs: &Inputs, activation: Activation, given: Option<&Moments>) -> Vec<f64> {
    let Extent { samples, channels, pixels, group } = EXTENT;
    let mut output = vec![0.0; SIZE];
    for first in (0..samples).step_by(group) {
        for channel in 0..channels {
            let places: Vec<usize> = (first..(first + group).min(samples))
                .flat_map(|sample| (0..pixels).map(move |pixel| (sample * channels + channel) * pixels + pixel))
                .collect();
            let count = places.len() as f64;
            let mean = places.iter().map(|&place| inputs.input[place]).sum::<f64>() / count;
            let variance = places.iter().map(|&place| (inputs.input[place] - mean).powi(2)).sum::<f64>() / count;
            let (mean, variance) = match given {
                Some(moments) => (f64::from(moments.mean[channel]), f64::from(moments.variance[channel])),
                None => (mean, variance),
            };
            for place in places {
                let normal = (inputs.input[place] - mean) / (variance + f64::from(EPSILON)).sqrt();
                let sum = normal * inputs.gamma[channel] + inputs.beta[channel] + inputs.residual[place];
                output[place] = match activation {
                    Activation::None => sum,
                    Activation::Relu => sum.max(0.0),
                    Activation::Relu6 => sum.clamp(0.0, 6.0),
                };
            }
        }
    }
    output
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn assert_like(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference < 2e-4 * expected.abs().max(1.0), "{what} at {place}: {found} for {expected}");
    }
}

/// How the sum of outputs times `gradient` changes with each number that `number` gives.
fn differences(
    inputs: &Inputs,
    gradient: &[f32],
    of: impl Fn(&Inputs) -> Vec<f64>,
    number: impl Fn(&mut Inputs) -> &mut Vec<f64>,
) -> Vec<f64> {
    let step = 1e-6;
    let sum = |inputs: &Inputs| of(inputs).iter().zip(gradient).map(|(y, g)| y * f64::from(*g)).sum::<f64>();
    let count = number(&mut inputs.clone()).len();
    let change = |place: usize| {
        let [mut more, mut less] = [inputs.clone(), inputs.clone()];
        number(&mut more)[place] += step;
        number(&mut less)[place] -= step;
        (sum(&more) - sum(&less)) / (2.0 * step)
    };
    (0..count).map(change).collect()
}

fn check(activation: Activation, with_residual: bool, given: Option<&Moments>) {
    let extent = if given.is_some() { Extent { group: EXTENT.samples, ..EXTENT } } else { EXTENT };
    // Wide enough for both ends of the activations.
    let input: Vec<f32> = noise(SIZE, 1).iter().map(|x| 3.0 * x + 0.5).collect();
    let residual = if with_residual { noise(SIZE, 2) } else { vec![0.0; SIZE] };
    let (gamma, beta, gradient) = (vec![4.0, -1.5, 0.5], vec![2.0, 0.25, -0.5], noise(SIZE, 5));
    let inputs = Inputs { input: wide(&input), residual: wide(&residual), gamma: wide(&gamma), beta: wide(&beta) };
    let moments = given.cloned().unwrap_or_else(|| moments(&input, extent));
    let affine = affine(&moments, &gamma, &beta, EPSILON);
    let output = forward(&input, with_residual.then_some(residual.as_slice()), &affine, activation, extent);
    let of = |inputs: &Inputs| defined(inputs, activation, given);
    assert_like(&output, &of(&inputs), "output");
    let past = Past {
        input: &input,
        output: &output,
        moments: &moments,
        gamma: &gamma,
        epsilon: EPSILON,
        activation,
        extent,
        from_batch: given.is_none(),
    };
    let found = backward(past, &gradient, with_residual);
    assert_like(&found.input, &differences(&inputs, &gradient, of, |inputs| &mut inputs.input), "gradient of input");
    assert_like(&found.gamma, &differences(&inputs, &gradient, of, |inputs| &mut inputs.gamma), "gradient of gamma");
    assert_like(&found.beta, &differences(&inputs, &gradient, of, |inputs| &mut inputs.beta), "gradient of beta");
    assert_eq!(found.residual.is_some(), with_residual);
    if let Some(residual) = found.residual {
        let expected = differences(&inputs, &gradient, of, |inputs| &mut inputs.residual);
        assert_like(&residual, &expected, "gradient of residual");
    }
}

#[test]
fn statistics_of_the_batch() {
    for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
        check(activation, false, None);
        check(activation, true, None);
    }
}

#[test]
fn statistics_that_were_known_before() {
    let given = Moments { mean: vec![0.5, -0.5, 0.0], variance: vec![2.0, 1.0, 4.0] };
    check(Activation::Relu, false, Some(&given));
    check(Activation::None, true, Some(&given));
}
