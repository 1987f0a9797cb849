//! Batch normalisation with running statistics, and what usually follows it in the same pass over memory.
//!
//! RunningStatistic statistics are plain buffers: they are visited and mapped as parameters without gradients are, and
//! what is written to them is seen at once (Burn's own running state lags by one update and keeps one value per thread,
//! which a checkpoint or an average over ranks would miss). Ranks keep their own until somebody averages them.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::module::{Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};

use super::start::Fans;
use super::{Filling, ForwardPass, Start, tapped};
pub use crate::kernel::norm::Activation;
use crate::kernel::norm_op::{ChannelMoments, Normalisation, Statistics, normalise};

/// Normalises each channel over the samples of a batch; in evaluation by what has been usual so far.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// `[channels]`, what a normalised channel is multiplied by.
    pub gamma: Param<Tensor<1>>,
    /// `[channels]`, what is added to it then.
    pub beta: Param<Tensor<1>>,
    /// The usual mean of each channel.
    pub running_mean: RunningStatistic,
    /// The usual variance of each channel.
    pub running_variance: RunningStatistic,
    epsilon: f64,
    momentum: f64,
}

impl BatchNorm {
    /// For so many channels, with PyTorch's usual settings: 1e-5 is added to variances, a batch moves the running
    /// statistics by a tenth.
    pub fn new(channels: usize, start: &mut Start) -> Self {
        Self::with_epsilon(channels, 1e-5, start)
    }

    /// With another number added to variances.
    pub fn with_epsilon(channels: usize, epsilon: f64, start: &mut Start) -> Self {
        let fans = Fans { fan_in: channels, fan_out: channels };
        Self {
            gamma: start.parameter([channels], Filling::Constant(1.0), fans),
            beta: start.parameter([channels], Filling::Constant(0.0), fans),
            running_mean: RunningStatistic::new(Tensor::zeros([channels], start.device())),
            running_variance: RunningStatistic::new(Tensor::ones([channels], start.device())),
            epsilon,
            momentum: 0.1,
        }
    }

    /// The normalised input, activated.
    pub fn forward(&self, input: Tensor<4>, activation: Activation, pass: &ForwardPass<'_>) -> Tensor<4> {
        self.apply(input, None, activation, pass)
    }

    /// The normalised input plus `residual`, activated.
    pub fn forward_add(
        &self,
        input: Tensor<4>,
        residual: Tensor<4>,
        activation: Activation,
        pass: &ForwardPass<'_>,
    ) -> Tensor<4> {
        self.apply(input, Some(residual), activation, pass)
    }

    fn apply(
        &self,
        input: Tensor<4>,
        residual: Option<Tensor<4>>,
        activation: Activation,
        pass: &ForwardPass<'_>,
    ) -> Tensor<4> {
        let [samples, ..] = input.dims();
        let gamma = tapped(&self.gamma, &input, pass);
        let beta = tapped(&self.beta, &input, pass);
        let epsilon = self.epsilon as f32;
        if !pass.training {
            let known = (self.running_mean.numbers(), self.running_variance.numbers());
            let statistics = Statistics::Given(Arc::new(known));
            return normalise(input, gamma, beta, residual, Normalisation { statistics, epsilon, activation });
        }
        let report = Arc::new(Mutex::new(ChannelMoments::default()));
        let statistics = Statistics::SampleBatch(pass.norm_group.unwrap_or(samples), Arc::clone(&report));
        let output = normalise(input, gamma, beta, residual, Normalisation { statistics, epsilon, activation });
        let (mean, variance) = std::mem::take(&mut *lock(&report));
        self.running_mean.move_towards(mean, self.momentum as f32);
        self.running_variance.move_towards(variance, self.momentum as f32);
        output
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while running statistics are held")
}

/// A buffer that forward passes may change. A clone of a module shares it, as it shares weights.
///
/// The lock is held by the thread of the forward pass for the length of an update, and by whoever saves, averages or
/// loads.
#[derive(Clone, Debug)]
pub struct RunningStatistic {
    id: ParamId,
    value: Arc<Mutex<Tensor<1>>>,
}

impl RunningStatistic {
    fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    fn with_id(id: ParamId, value: Tensor<1>) -> Self {
        Self { id, value: Arc::new(Mutex::new(value.set_require_grad(false))) }
    }

    /// The buffer as it is now.
    pub fn value(&self) -> Tensor<1> {
        lock(&self.value).clone()
    }

    fn numbers(&self) -> Vec<f32> {
        self.value().into_data().try_to_vec().expect("running statistics are f32")
    }

    fn move_towards(&self, target: Vec<f32>, momentum: f32) {
        let mut value = lock(&self.value);
        let device = value.device();
        let mut numbers: Vec<f32> = value.clone().into_data().try_to_vec().expect("running statistics are f32");
        for (number, target) in numbers.iter_mut().zip(target) {
            *number += momentum * (target - *number);
        }
        let count = numbers.len();
        *value = Tensor::from_data(TensorData::new(numbers, [count]), &device);
    }
}

impl Module for RunningStatistic {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let parameter = Param::initialized(self.id, self.value());
        visitor.visit_float(&parameter);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let mapped = mapper.map_float(Param::initialized(self.id, self.value()));
        let (id, value, _) = mapped.consume();
        *lock(&self.value) = value.set_require_grad(false);
        Self { id, value: self.value }
    }

    fn to_device(self, device: &Device) -> Self {
        let mut value = lock(&self.value);
        *value = value.clone().to_device(device);
        drop(value);
        self
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        let device = self.value().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self::with_id(self.id, self.value().without_autodiff())
    }

    fn train(self) -> Self {
        let value = self.value();
        Self::with_id(self.id, Tensor::from_inner(value))
    }
}

impl ModuleDisplayDefault for RunningStatistic {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&"RunningStatistic".to_string()).optional()
    }
}

impl ModuleDisplay for RunningStatistic {}

impl std::fmt::Display for RunningStatistic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningStatistic({})", self.value())
    }
}
