//! Pooling: an image made smaller by taking the largest or the mean of each neighbourhood.

use burn::tensor::Tensor;
use burn::tensor::module::{adaptive_avg_pool2d, avg_pool2d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};

/// What a pooling looks at.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Rows and columns.
    pub size: usize,
    /// Steps between neighbouring outputs.
    pub stride: usize,
    /// How many rows and columns beyond the image count as part of it.
    pub padding: usize,
    /// Whether a window that is partly beyond the image gives an output.
    pub ceil: bool,
}

impl Window {
    /// A window within the image.
    pub const fn new(size: usize, stride: usize) -> Self {
        Self { size, stride, padding: 0, ceil: false }
    }

    /// With so many rows and columns around the image.
    pub const fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// With windows partly beyond the image.
    pub const fn ceil(self) -> Self {
        Self { ceil: true, ..self }
    }
}

/// The largest of each window. What is beyond the image is smaller than everything.
pub fn max_pool(input: Tensor<4>, window: Window) -> Tensor<4> {
    let mut options = MaxPoolOptions::new([window.size; 2]);
    options.stride = [window.stride; 2];
    options.padding = [(window.padding, window.padding); 2];
    options.ceil_mode = window.ceil;
    max_pool2d(input, options)
}

/// The mean of each window. What is beyond the image is zero, and is counted.
pub fn mean_pool(input: Tensor<4>, window: Window) -> Tensor<4> {
    let mut options = AvgPoolOptions::new([window.size; 2]);
    options.stride = [window.stride; 2];
    options.padding = [(window.padding, window.padding); 2];
    options.ceil_mode = window.ceil;
    options.count_include_pad = true;
    avg_pool2d(input, options)
}

/// The mean of each of `size` times `size` parts of the image. An image smaller than that has its pixels repeated.
pub fn mean_parts(input: Tensor<4>, size: usize) -> Tensor<4> {
    let [_, _, height, width] = input.dims();
    if [height, width] == [size, size] { input } else { adaptive_avg_pool2d(input, [size, size]) }
}

/// The mean of each channel: `[samples, channels]`.
pub fn mean_image(input: Tensor<4>) -> Tensor<2> {
    let [samples, channels, height, width] = input.dims();
    input.reshape([samples, channels, height * width]).mean_dim(2).reshape([samples, channels])
}
