//! Networks have the published sizes, take what images they say they take, and two ranks learn what one would learn
//! alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "how far apart ranks are is worth reading")]

use std::net::TcpListener;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use farandole::burn::{DistributedOptimizer, Outbox, Wire, average_buffers, broadcast_parameters};
use farandole_data::sample::{ImageShape, Labels, Task};
use farandole_testing::Deadline;
use farandole_train::layer::{Draw, ForwardPass};
use farandole_train::model::{Architecture, ModelSpec, Network, Output};
use farandole_train::task;

fn square(bands: usize, side: usize) -> ImageShape {
    ImageShape { bands, height: side, width: side }
}

fn classes(classes: usize) -> Task {
    Task::SingleLabel { classes }
}

#[test]
fn networks_have_as_many_parameters_as_published() {
    let published = [
        (Architecture::ResNet20, square(3, 32), classes(10), 272_474),
        (Architecture::ResNet18, square(3, 224), classes(1000), 11_689_512),
        (Architecture::ResNet50, square(3, 224), classes(1000), 25_557_032),
        (Architecture::Vgg16, square(3, 224), classes(1000), 138_357_544),
        (Architecture::InceptionV3, square(3, 299), classes(1000), 23_834_568),
        (Architecture::AlexNet, square(3, 224), classes(1000), 61_100_840),
        (Architecture::GoogLeNet, square(3, 224), classes(1000), 6_624_904),
        (Architecture::MobileNetV2, square(3, 224), classes(1000), 3_504_872),
        (Architecture::Edsr, square(3, 48), Task::SuperResolution { scale: 2 }, 1_369_859),
        (Architecture::LeNet, square(1, 32), classes(10), 61_706),
    ];
    assert_eq!(published.len(), Architecture::all().count());
    for (architecture, shape, task, expected) in published {
        let found = ModelSpec::new(architecture, shape, task).parameters(&Device::flex()).unwrap();
        assert_eq!(found, expected, "{architecture}");
    }
}

#[test]
fn more_bands_and_other_outputs_change_the_first_and_the_last_layer_alone() {
    let count = |bands, task| {
        ModelSpec::new(Architecture::ResNet50, square(bands, 120), task).parameters(&Device::flex()).unwrap()
    };
    let published = count(3, classes(1000));
    // Twelve bands: nine more inputs of 64 kernels of 7x7. 43 labels: 957 outputs of 2048 inputs and a bias fewer.
    assert_eq!(count(12, Task::MultiLabel { labels: 43 }), published + 9 * 64 * 49 - 957 * 2049);
    assert_eq!(count(3, Task::Regression), published - 999 * 2049);
}

/// Small images and few channels, so that all networks together take seconds. Where there is normalisation, the last
/// images are at least 2x2: statistics of a handful of numbers make training a gamble.
fn tiny(architecture: Architecture) -> (ModelSpec, Labels) {
    let (side, thin) = match architecture {
        Architecture::ResNet20 => (12, 2),
        Architecture::ResNet18 => (40, 16),
        Architecture::ResNet50 => (64, 8),
        Architecture::Vgg16 => (32, 32),
        Architecture::InceptionV3 => (107, 8),
        Architecture::AlexNet => (63, 32),
        Architecture::GoogLeNet => (64, 8),
        Architecture::MobileNetV2 => (64, 4),
        Architecture::Edsr => (6, 8),
        Architecture::LeNet => (16, 1),
    };
    let (task, labels) = match architecture {
        Architecture::Edsr => {
            let pixels = noise(2 * PER_RANK * 3 * 4 * side * side, 5);
            (Task::SuperResolution { scale: 2 }, Labels::Images(pixels))
        }
        _ => (classes(5), Labels::Classes((0..2 * PER_RANK as u32).map(|sample| sample % 5).collect())),
    };
    (ModelSpec::new(architecture, square(3, side), task).thin(thin).seed(11), labels)
}

const PER_RANK: usize = 16;
const STEPS: usize = 20;

/// How fast to learn: deep networks that begin with a few samples in a batch would run away with more, and what is
/// apart by a rounding error would run away from each other.
fn rate(architecture: Architecture) -> f64 {
    match architecture {
        Architecture::ResNet20 | Architecture::Vgg16 | Architecture::AlexNet => 5e-3,
        Architecture::Edsr | Architecture::LeNet => 5e-3,
        Architecture::ResNet18 => 1e-4,
        Architecture::GoogLeNet | Architecture::MobileNetV2 => 1e-6,
        Architecture::ResNet50 => 3e-7,
        Architecture::InceptionV3 => 3e-8,
    }
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Part of the labels of all samples.
fn part(labels: &Labels, samples: std::ops::Range<usize>) -> Labels {
    match labels {
        Labels::Classes(numbers) => Labels::Classes(numbers[samples].to_vec()),
        Labels::Images(pixels) => {
            let size = pixels.len() / (2 * PER_RANK);
            Labels::Images(pixels[samples.start * size..samples.end * size].to_vec())
        }
        _ => panic!("no such labels in this test"),
    }
}

/// The gradients of samples of a step.
fn gradients(
    network: &Network,
    spec: &ModelSpec,
    labels: &Labels,
    step: usize,
    samples: std::ops::Range<usize>,
    outbox: Option<&Outbox>,
) -> GradientsParams {
    let device = &Device::flex().autodiff();
    let ImageShape { bands, height, width } = spec.shape;
    let images = noise(2 * PER_RANK * spec.shape.len(), 100 + step as u64);
    let images = images[samples.start * spec.shape.len()..samples.end * spec.shape.len()].to_vec();
    let images = Tensor::<4>::from_data(TensorData::new(images, [samples.len(), bands, height, width]), device);
    let draw = Draw { seed: 3, step: step as u64, first_sample: samples.start };
    let pass = ForwardPass { norm_group: Some(PER_RANK), ..ForwardPass::training(outbox, draw) };
    let loss = task::loss(network.forward(images, &pass), &part(labels, samples), spec.task, 0.1).unwrap();
    GradientsParams::from_grads(loss.backward(), network)
}

/// All weights, one after the other, and all running statistics.
fn weights(network: &Network) -> [Vec<f32>; 2] {
    struct Collect([Vec<f32>; 2]);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
            let value = parameter.val();
            let learned = value.is_require_grad();
            self.0[usize::from(!learned)].extend(value.into_data().try_to_vec::<f32>().unwrap());
        }
    }
    let mut collect = Collect(Default::default());
    network.visit(&mut collect);
    collect.0
}

/// The weights after training alone, with the batches of both ranks.
fn trained_alone(architecture: Architecture, steps: usize) -> [Vec<f32>; 2] {
    let device = Device::flex().autodiff();
    let (spec, labels) = tiny(architecture);
    let mut network = Network::new(&spec, &device).unwrap();
    let mut optimizer = sgd();
    for step in 0..steps {
        let found = gradients(&network, &spec, &labels, step, 0..2 * PER_RANK, None);
        network = optimizer.step(rate(architecture), network, found);
    }
    weights(&network)
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9))).init()
}

/// What a copy of this program is to train as one of two ranks, and where the first leaves its weights; unset in the
/// test run itself.
const ROLE: &str = "FARANDOLE_TEST_MODEL";
const LENGTH: &str = "FARANDOLE_TEST_STEPS";
const RESULT: &str = "FARANDOLE_TEST_RESULT";

/// Two ranks must not take longer than this.
const DEADLINE: Duration = Duration::from_secs(100);

#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_trains_its_share() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    let steps: usize = std::env::var(LENGTH).unwrap().parse().unwrap();
    let mut world = farandole::init().unwrap();
    let device = Device::flex().autodiff();
    let (spec, labels) = tiny(role.parse().unwrap());
    // Each rank begins with weights of its own; the first one's count.
    let spec = spec.clone().seed(spec.seed + world.rank() as u64);
    let network = Network::new(&spec, &device).unwrap();
    let mut network = broadcast_parameters(&mut world, network, 0).unwrap();
    let mut optimizer = DistributedOptimizer::new(&world, &network, sgd(), Wire::F32).unwrap();
    let share = world.rank() * PER_RANK..(world.rank() + 1) * PER_RANK;
    for step in 0..steps {
        let outbox = optimizer.outbox().clone();
        let found = gradients(&network, &spec, &labels, step, share.clone(), Some(&outbox));
        assert!(found.is_empty(), "every gradient leaves during backward, but {} have stayed", found.len());
        network = optimizer.step(rate(spec.architecture), network, found).unwrap();
    }
    let network = average_buffers(&mut world, network).unwrap();
    if world.rank() == 0 {
        let bytes: Vec<u8> = weights(&network).iter().flatten().flat_map(|weight| weight.to_le_bytes()).collect();
        std::fs::write(std::env::var(RESULT).unwrap(), bytes).unwrap();
    }
}

/// The weights that two processes give which average their gradients.
fn trained_together(architecture: Architecture, steps: usize) -> Vec<f32> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = farandole_testing::Folder::new();
    let result = folder.join("weights");
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a_rank_trains_its_share", "--nocapture"])
            .env(ROLE, architecture.name())
            .env(LENGTH, steps.to_string())
            .env(RESULT, &result)
            // As Hydra would start them.
            .envs([("PMI_RANK", rank.to_string()), ("MPI_LOCALRANKID", rank.to_string())])
            .envs([("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("RAYON_NUM_THREADS", "1")])
            .env("FARANDOLE_RENDEZVOUS", format!("tcp:127.0.0.1:{port}"))
            .env("FARANDOLE_KEY", "5a".repeat(32))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut ranks = [start(0), start(1)];
    let deadline = Deadline::after(DEADLINE);
    let ended = loop {
        let states: Vec<Option<ExitStatus>> = ranks.iter_mut().map(|rank| rank.try_wait().unwrap()).collect();
        let failed = states.iter().flatten().any(|state| !state.success());
        if failed || states.iter().all(Option::is_some) || deadline.is_over() {
            break states;
        }
        deadline.pause("the ranks, which train");
    };
    for rank in &mut ranks {
        let _ = rank.kill();
        let _ = rank.wait();
    }
    assert!(ended.iter().all(|state| state.is_some_and(|state| state.success())), "{architecture}: {ended:?}");
    let bytes = std::fs::read(&result).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// How far the weights of two ranks may be from one rank's after many steps, where a thousandth of their way would be
/// less. A deep network with a normalisation behind every layer multiplies differences in the last bit from step to
/// step, on one rank as on two.
const ROUNDING: f32 = 1e-5;

/// After one step, and after twenty.
fn assert_two_ranks_learn_what_one_learns(architecture: Architecture) {
    let [first, _] = weights(&Network::new(&tiny(architecture).0, &Device::flex().autodiff()).unwrap());
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    for (steps, rounding) in [(1, 0.0), (STEPS, ROUNDING)] {
        let [alone, alone_statistics] = trained_alone(architecture, steps);
        let together = trained_together(architecture, steps);
        let (together, together_statistics) = together.split_at(alone.len());
        let (moved, apart) = (largest(&alone, &first), largest(&alone, together));
        println!("{architecture}, {steps} steps: moved {moved:.2e}, apart {apart:.2e}");
        assert_eq!([alone.len(), alone_statistics.len()], [first.len(), together_statistics.len()]);
        assert!(moved > 1e-7 && moved.is_finite(), "{architecture} has not learned: {moved:e}");
        let allowed = (1e-3 * moved).max(f32::min(rounding, 0.1 * moved)).max(f32::EPSILON);
        assert!(apart <= allowed, "{architecture}: {apart:e} apart after {steps} steps, having moved by {moved:e}");
        for (alone, together) in alone_statistics.iter().zip(together_statistics) {
            let difference = (alone - together).abs();
            assert!(difference <= 1e-3 * alone.abs().max(1.0), "{architecture}: statistics {alone} and {together}");
        }
    }
}

macro_rules! two_ranks_learn_what_one_learns {
    ($($name:ident: $architecture:ident),*) => {$(
        #[test]
        fn $name() {
            assert_two_ranks_learn_what_one_learns(Architecture::$architecture);
        }
    )*};
}

two_ranks_learn_what_one_learns!(
    two_ranks_of_resnet20: ResNet20,
    two_ranks_of_resnet18: ResNet18,
    two_ranks_of_resnet50: ResNet50,
    two_ranks_of_vgg16: Vgg16,
    two_ranks_of_inception_v3: InceptionV3,
    two_ranks_of_alexnet: AlexNet,
    two_ranks_of_googlenet: GoogLeNet,
    two_ranks_of_mobilenet_v2: MobileNetV2,
    two_ranks_of_edsr: Edsr,
    two_ranks_of_lenet: LeNet
);

#[test]
fn the_least_image_works_and_a_smaller_one_gets_a_message() {
    let device = Device::flex();
    for architecture in Architecture::all() {
        let least = architecture.least_image_size();
        let (mut spec, _) = tiny(architecture);
        spec.shape = square(12, least);
        spec.thin = 32;
        let network = Network::new(&spec, &device).unwrap();
        let output = network.forward(Tensor::zeros([2, 12, least, least], &device), &ForwardPass::evaluation());
        match output {
            Output::Numbers(numbers) => assert_eq!(numbers.dims(), [2, 5], "{architecture}"),
            Output::Images(images) => assert_eq!(images.dims(), [2, 12, 2 * least, 2 * least], "{architecture}"),
        }
        if least > 1 {
            spec.shape.width = least - 1;
            let message = Network::new(&spec, &device).unwrap_err().to_string();
            let expected = format!("{architecture} needs images of at least {least} x {least} pixels");
            assert!(message.contains(&expected), "{message}");
        }
    }
}

#[test]
fn a_task_that_a_network_cannot_do_gets_a_message() {
    let message = |architecture, task| {
        Network::new(&ModelSpec::new(architecture, square(3, 224), task), &Device::flex()).unwrap_err().to_string()
    };
    assert!(message(Architecture::ResNet50, Task::SuperResolution { scale: 2 }).contains("edsr does"));
    assert!(message(Architecture::Edsr, classes(10)).contains("take another network"));
    assert!(message(Architecture::Edsr, Task::SuperResolution { scale: 5 }).contains("not 5 times"));
    assert!(message(Architecture::LeNet, classes(0)).contains("at least one class"));
}
