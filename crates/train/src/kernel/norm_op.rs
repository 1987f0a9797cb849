//! Batch normalisation as an operation on tensors, with its backward.

use std::sync::{Arc, Mutex};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};

use super::norm::{self, Activation, Extent, Moments, Past};

/// Mean and variance of each channel, handed out of or into an operation.
pub type ChannelMoments = (Vec<f32>, Vec<f32>);

/// Where mean and variance come from.
#[derive(Clone, Debug)]
pub enum Statistics {
    /// From the input, over groups of so many samples. The mean over groups is left in the cell, with the variance that
    /// is to be expected of all samples there are rather than that of the ones in the group.
    SampleBatch(usize, Arc<Mutex<ChannelMoments>>),
    /// Known before.
    Given(Arc<ChannelMoments>),
}

/// How to normalise.
#[derive(Clone, Debug)]
pub struct Normalisation {
    /// Where mean and variance come from.
    pub statistics: Statistics,
    /// Added to variances, so that no deviation is zero.
    pub epsilon: f32,
    /// What is done at last.
    pub activation: Activation,
}

/// `activation(normalised(input) * gamma + beta + residual)` for an input `[samples, channels, height, width]`.
pub fn normalise(
    input: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    how: Normalisation,
) -> Tensor<4> {
    let (input, gamma, beta) = (input.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch());
    Tensor::from_dispatch(match residual {
        None => Dispatch::normalise(input, gamma, beta, how),
        Some(residual) => Dispatch::normalise_add(input, gamma, beta, residual.into_dispatch(), how),
    })
}

/// The backends that can normalise.
#[backend_extension(Autodiff, Flex)]
pub trait NormBackend: burn::backend::Backend {
    /// Without a residual.
    fn normalise(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        how: Normalisation,
    ) -> FloatTensor<Self>;

    /// With a residual.
    fn normalise_add(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        how: Normalisation,
    ) -> FloatTensor<Self>;
}

type Plain = FloatTensor<Flex>;

impl NormBackend for Flex {
    fn normalise(input: Plain, gamma: Plain, beta: Plain, how: Normalisation) -> Plain {
        forward(&input, &gamma, &beta, None, &how).0
    }

    fn normalise_add(input: Plain, gamma: Plain, beta: Plain, residual: Plain, how: Normalisation) -> Plain {
        forward(&input, &gamma, &beta, Some(&residual), &how).0
    }
}

/// What backward needs of forward.
#[derive(Clone, Debug)]
struct Kept {
    input: Plain,
    output: Plain,
    gamma: Plain,
    moments: Arc<Moments>,
    how: Normalisation,
}

impl<C: CheckpointStrategy> NormBackend for Autodiff<Flex, C> {
    fn normalise(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        how: Normalisation,
    ) -> FloatTensor<Self> {
        let (output, kept) = forward(input.primitive(), gamma.primitive(), beta.primitive(), None, &how);
        match Normalise.prepare::<C>([input.node(), gamma.node(), beta.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(kept, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    fn normalise_add(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        how: Normalisation,
    ) -> FloatTensor<Self> {
        let added = Some(residual.primitive());
        let (output, kept) = forward(input.primitive(), gamma.primitive(), beta.primitive(), added, &how);
        let parents = [input.node(), gamma.node(), beta.node(), residual.node()];
        match NormaliseAdd.prepare::<C>(parents).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(kept, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

#[derive(Debug)]
struct Normalise;

impl Backward<Flex, 3> for Normalise {
    type State = Kept;

    fn backward(self, ops: Ops<Kept, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        register(ops, gradients, Residual::None);
    }
}

#[derive(Debug)]
struct NormaliseAdd;

impl Backward<Flex, 4> for NormaliseAdd {
    type State = Kept;

    fn backward(self, ops: Ops<Kept, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
        register(ops, gradients, Residual::Added);
    }
}

/// Whether something was added before the activation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Residual {
    None,
    Added,
}

/// Takes the gradient of the output, and gives each parent that is learned its own.
fn register<const PARENTS: usize>(ops: Ops<Kept, PARENTS>, gradients: &mut Gradients, residual: Residual) {
    let gradient = gradients.consume::<Flex>(&ops.node);
    let found = backward(&ops.state, &gradient, residual);
    for (parent, found) in ops.parents.iter().zip(found) {
        if let Some(parent) = parent {
            gradients.register::<Flex>(parent.id, found);
        }
    }
}

fn forward(input: &Plain, gamma: &Plain, beta: &Plain, residual: Option<&Plain>, how: &Normalisation) -> (Plain, Kept) {
    let input = input.to_contiguous();
    let gamma = gamma.to_contiguous();
    let extent = extent(&input, &how.statistics);
    let moments = match &how.statistics {
        Statistics::SampleBatch(_, report) => {
            let moments = norm::moments(input.storage::<f32>(), extent);
            *report.lock().expect("no panic while statistics are handed over") = expected(&moments, extent);
            moments
        }
        Statistics::Given(known) => {
            // One group holds all samples.
            Moments { mean: known.0.clone(), variance: known.1.clone() }
        }
    };
    let beta = beta.to_contiguous();
    let affine = norm::affine(&moments, gamma.storage(), beta.storage(), how.epsilon);
    let residual = residual.map(|residual| residual.to_contiguous());
    let residual = residual.as_ref().map(|residual| residual.storage::<f32>());
    let output = norm::forward(input.storage(), residual, &affine, how.activation, extent);
    let output = tensor(output, input.shape());
    let kept = Kept { input, output: output.clone(), gamma, moments: Arc::new(moments), how: how.clone() };
    (output, kept)
}

/// Gradients of input, gamma, beta and, where there was one, residual.
fn backward(kept: &Kept, gradient: &Plain, residual: Residual) -> Vec<Plain> {
    let gradient = gradient.to_contiguous();
    let past = Past {
        input: kept.input.storage(),
        output: kept.output.storage(),
        moments: &kept.moments,
        gamma: kept.gamma.storage(),
        epsilon: kept.how.epsilon,
        activation: kept.how.activation,
        extent: extent(&kept.input, &kept.how.statistics),
        from_batch: matches!(kept.how.statistics, Statistics::SampleBatch(..)),
    };
    let found = norm::backward(past, gradient.storage(), residual == Residual::Added);
    let (image, channels) = (kept.input.shape(), kept.gamma.shape());
    let mut gradients =
        vec![tensor(found.input, image.clone()), tensor(found.gamma, channels.clone()), tensor(found.beta, channels)];
    gradients.extend(found.residual.map(|residual| tensor(residual, image)));
    gradients
}

fn extent(input: &Plain, statistics: &Statistics) -> Extent {
    let [samples, channels, height, width] = input.shape().dims();
    let group = match statistics {
        Statistics::SampleBatch(group, _) => (*group).clamp(1, samples.max(1)),
        Statistics::Given(_) => samples.max(1),
    };
    Extent { samples, channels, pixels: height * width, group }
}

/// The mean over groups of mean and variance, the latter as large as it is to be expected of samples that were not
/// seen.
fn expected(moments: &Moments, extent: Extent) -> ChannelMoments {
    let (groups, channels) = (extent.groups(), extent.channels);
    let mut mean = vec![0.0; channels];
    let mut variance = vec![0.0; channels];
    for group in 0..groups {
        let count = extent.count(group) as f32;
        let unbiased = if count > 1.0 { count / (count - 1.0) } else { 1.0 };
        for channel in 0..channels {
            mean[channel] += moments.mean[group * channels + channel] / groups as f32;
            variance[channel] += moments.variance[group * channels + channel] * unbiased / groups as f32;
        }
    }
    (mean, variance)
}

fn tensor(values: Vec<f32>, shape: burn::tensor::Shape) -> Plain {
    Plain::from_data(TensorData::new(values, shape))
}
