//! The networks that can be trained, under one name each.
//!
//! Every network is built as its paper (or the implementation everybody measures with) says, so that its number of
//! parameters is the published one at the published shape; tests hold the numbers. Beyond that, any number of bands and
//! outputs is taken, and images as small as the network's own poolings leave something of. `docs/models.md` says which
//! variant each is.

pub mod alexnet;
pub mod architecture;
pub mod edsr;
pub mod googlenet;
pub mod inception;
pub mod lenet;
pub mod mobilenet;
pub mod resnet;
pub mod vgg;

use std::fmt;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::layer::{ForwardPass, Start};
pub use architecture::{Architecture, UnknownArchitecture};
use farandole_data::sample::{ImageShape, Task};

/// Which network, for which images and which task.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The network.
    pub architecture: Architecture,
    /// What images are like.
    pub shape: ImageShape,
    /// What is to be learned.
    pub task: Task,
    /// Where the first weights come from: the same seed gives the same weights.
    pub seed: u64,
    /// Layers between input and output have one `thin`-th of the published channels: for small devices and for tests. 1
    /// is the network as published.
    pub thin: usize,
}

impl ModelSpec {
    /// The network as published, from seed 0.
    pub fn new(architecture: Architecture, shape: ImageShape, task: Task) -> Self {
        Self { architecture, shape, task, seed: 0, thin: 1 }
    }

    /// With first weights from this seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// With one `thin`-th of the channels.
    pub fn thin(self, thin: usize) -> Self {
        Self { thin, ..self }
    }

    /// How many numbers are learned. Takes no memory for them.
    pub fn parameters(&self, device: &Device) -> Result<usize, ModelError> {
        Ok(Network::build(self, device)?.1)
    }

    fn check(&self) -> Result<(), ModelError> {
        let name = self.architecture;
        let error = |what: String| Err(ModelError(what));
        let least = name.least_image_size();
        let ImageShape { bands, height, width } = self.shape;
        if bands == 0 {
            return error(format!("{name} needs images with at least one band"));
        }
        if height < least || width < least {
            return error(format!(
                "{name} needs images of at least {least} x {least} pixels, these have {height} x {width}"
            ));
        }
        match (name, self.task) {
            (_, Task::SingleLabel { classes: 0 }) => error(format!("{name} needs at least one class")),
            (_, Task::MultiLabel { labels: 0 }) => error(format!("{name} needs at least one label")),
            (Architecture::Edsr, Task::SuperResolution { scale }) => match edsr::factors(scale) {
                Some(_) => Ok(()),
                None => error(format!("{name} makes images 2, 3, 4, 6, 8, 9, … times larger, not {scale} times")),
            },
            (Architecture::Edsr, _) => {
                error(format!("{name} makes images larger; for classes, labels and numbers take another network"))
            }
            (_, Task::SuperResolution { .. }) => {
                error(format!("{name} does not make images larger; {} does", Architecture::Edsr))
            }
            _ => Ok(()),
        }
    }

    /// How many outputs a network for labels has.
    fn outputs(&self) -> usize {
        match self.task {
            Task::SingleLabel { classes } => classes,
            Task::MultiLabel { labels } => labels,
            Task::Regression => 1,
            Task::SuperResolution { .. } => 0,
        }
    }
}

/// Why there is no such network. Says what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError(String);

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ModelError {}

/// What a network makes of images.
#[derive(Clone, Debug)]
pub enum Output {
    /// `[samples, outputs]`: one number per class or label, before any softmax or sigmoid, or the number that was asked
    /// for.
    Numbers(Tensor<2>),
    /// `[samples, bands, height, width]`.
    Images(Tensor<4>),
}

/// A network of any architecture.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one network in a process, and weights are elsewhere")]
pub enum Network {
    /// ResNet-20, -18 and -50.
    ResNet(resnet::ResNet),
    /// VGG16.
    Vgg(vgg::Vgg),
    /// Inception v3.
    Inception(inception::Inception),
    /// AlexNet.
    AlexNet(alexnet::AlexNet),
    /// GoogLeNet.
    GoogLeNet(googlenet::GoogLeNet),
    /// MobileNet v2.
    MobileNet(mobilenet::MobileNet),
    /// EDSR.
    Edsr(edsr::Edsr),
    /// LeNet-5.
    LeNet(lenet::LeNet),
}

impl Network {
    /// The network with its first weights, which are made when they are first used.
    pub fn new(spec: &ModelSpec, device: &Device) -> Result<Self, ModelError> {
        Ok(Self::build(spec, device)?.0)
    }

    /// The network and the number of its parameters, without running statistics.
    fn build(spec: &ModelSpec, device: &Device) -> Result<(Self, usize), ModelError> {
        spec.check()?;
        let (shape, outputs) = (spec.shape, spec.outputs());
        let bands = shape.bands;
        let start = &mut Start::new(device, spec.seed, spec.thin);
        let network = match spec.architecture {
            Architecture::ResNet20 => Self::ResNet(resnet::ResNet::cifar20(bands, outputs, start)),
            Architecture::ResNet18 => Self::ResNet(resnet::ResNet::imagenet18(bands, outputs, start)),
            Architecture::ResNet50 => Self::ResNet(resnet::ResNet::imagenet50(bands, outputs, start)),
            Architecture::Vgg16 => Self::Vgg(vgg::Vgg::new(bands, outputs, start)),
            Architecture::InceptionV3 => Self::Inception(inception::Inception::new(bands, outputs, start)),
            Architecture::AlexNet => Self::AlexNet(alexnet::AlexNet::new(bands, outputs, start)),
            Architecture::GoogLeNet => Self::GoogLeNet(googlenet::GoogLeNet::new(bands, outputs, start)),
            Architecture::MobileNetV2 => Self::MobileNet(mobilenet::MobileNet::new(bands, outputs, start)),
            Architecture::Edsr => {
                let Task::SuperResolution { scale } = spec.task else { unreachable!("checked above") };
                Self::Edsr(edsr::Edsr::new(bands, scale, start))
            }
            Architecture::LeNet => Self::LeNet(lenet::LeNet::new(shape, outputs, start)),
        };
        Ok((network, start.parameters()))
    }

    /// What the network makes of `[samples, bands, height, width]`.
    pub fn forward(&self, images: Tensor<4>, pass: &ForwardPass<'_>) -> Output {
        match self {
            Self::ResNet(network) => Output::Numbers(network.forward(images, pass)),
            Self::Vgg(network) => Output::Numbers(network.forward(images, pass)),
            Self::Inception(network) => Output::Numbers(network.forward(images, pass)),
            Self::AlexNet(network) => Output::Numbers(network.forward(images, pass)),
            Self::GoogLeNet(network) => Output::Numbers(network.forward(images, pass)),
            Self::MobileNet(network) => Output::Numbers(network.forward(images, pass)),
            Self::Edsr(network) => Output::Images(network.forward(images, pass)),
            Self::LeNet(network) => Output::Numbers(network.forward(images, pass)),
        }
    }
}
