//! Convolutions against the definition, written as seven loops.

use super::*;
use crate::kernel::depthwise::Depthwise;
use crate::kernel::mirror::fits;
use crate::kernel::noise;

/// Calls `visit` with the places of input, weight and output of every product that a convolution adds up.
fn every_product(convolution: &Convolution, mut visit: impl FnMut(usize, usize, usize)) {
    let Convolution { images, input, output, geometry } = *convolution;
    let Geometry { input: [h, w], output: [oh, ow], kernel: [kh, kw], stride, padding } = geometry;
    for (image, to, from) in itertools(images, output, input) {
        for (y, x, tap) in itertools(oh, ow, kh * kw) {
            let (ty, tx) = (tap / kw, tap % kw);
            let (sy, sx) = ((y * stride + ty).wrapping_sub(padding[0]), (x * stride + tx).wrapping_sub(padding[1]));
            if sy < h && sx < w {
                let source = ((image * input + from) * h + sy) * w + sx;
                let weight = (to * input + from) * kh * kw + tap;
                visit(source, weight, ((image * output + to) * oh + y) * ow + x);
            }
        }
    }
}

fn itertools(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

fn convolution(images: usize, [input, output]: [usize; 2], size: [usize; 2], kernel: [usize; 2]) -> Convolution {
    strided(images, [input, output], size, kernel, 1, [kernel[0] / 2, kernel[1] / 2])
}

fn strided(
    images: usize,
    [input, output]: [usize; 2],
    size: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    padding: [usize; 2],
) -> Convolution {
    let result = std::array::from_fn(|axis| (size[axis] + 2 * padding[axis] - kernel[axis]) / stride + 1);
    Convolution { images, input, output, geometry: Geometry { input: size, output: result, kernel, stride, padding } }
}

fn assert_like(found: &[f32], expected: &[f64], what: &str, convolution: &Convolution) {
    assert_eq!(found.len(), expected.len(), "{what} {convolution:?}");
    let largest = expected.iter().fold(1.0f64, |most, v| most.max(v.abs()));
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference < 1e-5 * largest, "{what} at {place}: {found} for {expected} in {convolution:?}");
    }
}

fn check(convolution: Convolution) {
    let Geometry { kernel, stride, padding, .. } = convolution.geometry;
    assert!((0..2).all(|axis| fits(kernel[axis], stride, padding[axis])), "{convolution:?}");
    let input = noise(convolution.images * convolution.image_size(), 1);
    let area = convolution.geometry.kernel[0] * convolution.geometry.kernel[1];
    let weights = noise(convolution.output * convolution.input * area, 2);
    let gradient = noise(convolution.images * convolution.result_size(), 3);
    let bias = noise(convolution.output, 4);
    let pixels = convolution.geometry.output[0] * convolution.geometry.output[1];
    let mut output: Vec<f64> =
        (0..gradient.len()).map(|place| f64::from(bias[place / pixels % convolution.output])).collect();
    let mut input_gradient = vec![0.0; input.len()];
    let mut weight_gradient = vec![0.0; weights.len()];
    every_product(&convolution, |source, weight, to| {
        output[to] += f64::from(input[source]) * f64::from(weights[weight]);
        input_gradient[source] += f64::from(gradient[to]) * f64::from(weights[weight]);
        weight_gradient[weight] += f64::from(gradient[to]) * f64::from(input[source]);
    });
    assert_like(&convolution.forward(&input, &weights, Some(&bias)), &output, "forward", &convolution);
    let found = convolution.input_gradient(&gradient, &weights);
    assert_like(&found, &input_gradient, "gradient of input", &convolution);
    let found = convolution.weight_gradient(&input, &gradient);
    assert_like(&found, &weight_gradient, "gradient of weights", &convolution);
    let mut bias_sums = vec![0.0; convolution.output];
    for (place, g) in gradient.iter().enumerate() {
        bias_sums[place / pixels % convolution.output] += f64::from(*g);
    }
    let found = bias_gradient(&gradient, convolution.images, convolution.output);
    assert_like(&found, &bias_sums, "gradient of bias", &convolution);
}

#[test]
fn kernels_that_keep_the_size() {
    check(convolution(3, [4, 10], [8, 8], [3, 3]));
    check(convolution(2, [3, 8], [5, 7], [5, 5]));
    check(convolution(1, [2, 3], [9, 6], [1, 7]));
    check(convolution(2, [5, 4], [6, 9], [7, 1]));
    check(convolution(70, [3, 2], [1, 1], [3, 3]));
    check(convolution(40, [2, 9], [4, 4], [3, 3]));
}

#[test]
fn kernels_of_one_pixel() {
    check(convolution(3, [17, 9], [7, 7], [1, 1]));
    check(strided(3, [4, 9], [8, 7], [1, 1], 2, [0, 0]));
}

#[test]
fn strides_and_sizes_that_do_not_divide() {
    for size in [6, 7, 8, 9] {
        check(strided(2, [3, 5], [size, size + 1], [3, 3], 2, [1, 1]));
        check(strided(2, [3, 5], [size, size + 1], [3, 3], 2, [0, 0]));
        check(strided(1, [2, 3], [size, size], [2, 2], 2, [0, 0]));
    }
    check(strided(2, [3, 9], [15, 14], [7, 7], 2, [3, 3]));
    check(strided(1, [3, 4], [31, 33], [11, 11], 4, [2, 2]));
    check(strided(1, [2, 2], [10, 10], [5, 5], 3, [1, 1]));
}

#[test]
fn kernels_without_padding_and_with_more_than_they_need() {
    check(strided(3, [2, 4], [9, 9], [5, 5], 1, [0, 0]));
    check(strided(2, [2, 4], [5, 6], [3, 3], 1, [2, 2]));
    check(strided(2, [2, 4], [4, 4], [4, 4], 1, [1, 1]));
}

/// A depthwise convolution against as many convolutions of one channel.
fn check_depthwise(images: usize, channels: usize, one: Convolution) {
    let geometry = one.geometry;
    let depthwise = Depthwise { images, channels, geometry };
    let [plane, result] = [geometry.input, geometry.output].map(|[height, width]| height * width);
    let area = geometry.kernel[0] * geometry.kernel[1];
    let (input, weights) = (noise(images * channels * plane, 1), noise(channels * area, 2));
    let (gradient, bias) = (noise(images * channels * result, 3), noise(channels, 4));
    let output = depthwise.forward(&input, &weights, Some(&bias));
    let input_gradient = depthwise.input_gradient(&gradient, &weights);
    let weight_gradient = depthwise.weight_gradient(&input, &gradient);
    for channel in 0..channels {
        let of_channel = |values: &[f32], size: usize| -> Vec<f32> {
            let planes = (0..images).flat_map(|image| &values[(image * channels + channel) * size..][..size]);
            planes.copied().collect()
        };
        let weights = &weights[channel * area..][..area];
        let (input, gradient) = (of_channel(&input, plane), of_channel(&gradient, result));
        let wide = |values: Vec<f32>| -> Vec<f64> { values.into_iter().map(f64::from).collect() };
        let expected = wide(one.forward(&input, weights, Some(&bias[channel..=channel])));
        assert_like(&of_channel(&output, result), &expected, "depthwise forward", &one);
        let expected = wide(one.input_gradient(&gradient, weights));
        assert_like(&of_channel(&input_gradient, plane), &expected, "depthwise gradient of input", &one);
        let expected = wide(one.weight_gradient(&input, &gradient));
        assert_like(&weight_gradient[channel * area..][..area], &expected, "depthwise gradient of weights", &one);
    }
}

#[test]
fn each_channel_by_itself() {
    check_depthwise(3, 5, convolution(3, [1, 1], [7, 9], [3, 3]));
    check_depthwise(2, 4, strided(2, [1, 1], [8, 7], [3, 3], 2, [1, 1]));
    check_depthwise(2, 4, strided(2, [1, 1], [1, 1], [3, 3], 2, [1, 1]));
    check_depthwise(1, 2, strided(1, [1, 1], [16, 17], [5, 5], 1, [2, 2]));
}
