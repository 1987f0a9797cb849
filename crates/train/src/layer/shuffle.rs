//! Pixel shuffle: channels become pixels, so that a convolution can make an image larger.

use burn::tensor::Tensor;

/// From `[samples, channels * scale * scale, height, width]` to `[samples, channels, height * scale, width * scale]`.
/// The `scale * scale` channels that belong together are neighbours; they fill the square that replaces a pixel row by
/// row.
pub fn pixel_shuffle(input: Tensor<4>, scale: usize) -> Tensor<4> {
    let [samples, channels, height, width] = input.dims();
    let channels = channels / (scale * scale);
    input.reshape([samples, channels, scale, scale, height, width]).permute([0, 1, 4, 2, 5, 3]).reshape([
        samples,
        channels,
        height * scale,
        width * scale,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn channels_fill_the_square_that_replaces_a_pixel() {
        let values: Vec<f32> = (0..8).map(|v| v as f32).collect();
        let input = Tensor::<4>::from_data(TensorData::new(values, [1, 4, 1, 2]), &Device::flex());
        let output = pixel_shuffle(input, 2);
        assert_eq!(output.dims(), [1, 1, 2, 4]);
        assert_eq!(output.into_data().try_to_vec::<f32>().unwrap(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
