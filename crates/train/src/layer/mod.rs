//! Layers whose gradients can leave during backward: convolution, dense, batch normalisation, pooling, dropout, pixel
//! shuffle.
//!
//! Burn's own layers hide where a weight is used, and that is the place at which its finished gradient can be caught
//! while backward still runs. So the layers here are written on Burn's tensors: each hands every trainable weight
//! through a *tap* together with the layer's input, and the tap posts the gradient as soon as the layer's backward is
//! done. Without an outbox the taps are not there and a layer is what its paper says.
//!
//! What a layer computes for one sample never depends on the rank that computes it: random masks are drawn by the
//! sample's place in the global batch, and statistics over samples are taken over groups of a size that the caller
//! gives.

pub mod conv;
pub mod dropout;
pub mod linear;
pub mod norm;
pub mod pool;
pub mod shuffle;
pub mod start;

use burn::module::Param;
use burn::tensor::Tensor;
use farandole::burn::Outbox;

pub use conv::{Conv2d, ConvSpec};
pub use dropout::Dropout;
pub use linear::Linear;
pub use norm::{Activation, BatchNorm};
pub use start::{Filling, Start};

use crate::tap::tap;

/// What a forward pass is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForwardPass<'a> {
    /// Whether to learn: batch statistics instead of running ones, and dropout.
    pub training: bool,
    /// Where gradients go as soon as they are known. Without one they stay where Burn puts them.
    pub outbox: Option<&'a Outbox>,
    /// Batch normalisation takes its statistics over groups of so many samples. One rank with 64 samples in groups of
    /// 32 computes what two ranks compute with 32 samples each. Without it, all samples of the pass are one group.
    pub norm_group: Option<usize>,
    /// Which random numbers dropout draws.
    pub draw: Draw,
}

/// Which random numbers a pass draws: the same for the same sample of the same step, whatever rank it is on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The step's number, from the beginning of training.
    pub step: u64,
    /// The place of the pass's first sample in the global batch.
    pub first_sample: usize,
}

impl<'a> ForwardPass<'a> {
    /// A pass that judges: running statistics, nothing random.
    pub fn evaluation() -> Self {
        Self::default()
    }

    /// A pass that learns.
    pub fn training(outbox: Option<&'a Outbox>, draw: Draw) -> Self {
        Self { training: true, outbox, norm_group: None, draw }
    }
}

/// A weight, for use in the layer whose input is given. With an outbox its gradient is posted right after that layer's
/// backward.
fn tapped<const D: usize, const E: usize>(
    parameter: &Param<Tensor<D>>,
    input: &Tensor<E>,
    pass: &ForwardPass<'_>,
) -> Tensor<D> {
    match pass.outbox {
        Some(outbox) => tap(parameter.val(), parameter.id, input, outbox),
        None => parameter.val(),
    }
}
