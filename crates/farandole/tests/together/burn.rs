//! Burn's modules on several ranks.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use farandole::World;
use farandole::burn::{DistributedOptimizer, Outbox, Wire, average_buffers, broadcast_parameters};

use super::{assert_close, job, numbers, print_numbers};

#[path = "../../examples/burn.rs"]
#[allow(unreachable_pub, reason = "an example is a program of its own")]
mod example;

#[test]
fn ranks_end_with_equal_weights_and_two_batches_count_like_one_twice_as_large() {
    let alone = numbers(&job::play(1, "burn")[0], "weights");
    for ranks in [2, 4] {
        let together = job::play(ranks, "burn");
        for words in &together {
            assert_eq!(numbers(words, "weights"), numbers(&together[0], "weights"));
        }
        assert_close(&alone, &numbers(&together[0], "weights"), 1e-4);
    }
}

#[test]
fn gradients_in_half_precision_train_nearly_as_well_and_ranks_stay_equal() {
    let exact = numbers(&job::play(1, "burn")[0], "loss");
    for role in ["burn-bf16", "burn-f16"] {
        let together = job::play(2, role);
        assert_eq!(numbers(&together[0], "weights"), numbers(&together[1], "weights"));
        let loss = together.iter().map(|words| numbers(words, "loss")[0]).sum::<f32>() / 2.0;
        assert!((loss - exact[0]).abs() < 0.05 * exact[0].abs() + 0.01, "{role}: {loss}, not {exact:?}");
    }
}

#[test]
fn what_one_rank_lacks_counts_as_zero_and_what_all_lack_stays_away() {
    job::play(2, "burn-missing");
}

#[test]
fn gradients_of_several_passes_are_summed_before_they_travel() {
    job::play(2, "burn-passes");
}

#[test]
fn running_statistics_are_broadcast_and_averaged() {
    job::play(2, "burn-buffers");
}

#[test]
fn elements_of_every_float_type_are_averaged_in_their_own_precision() {
    job::play(2, "burn-dtypes");
}

#[test]
fn a_gradient_that_f16_cannot_hold_fails_its_step_on_all_ranks_and_no_other() {
    job::play(2, "burn-overflow");
}

#[test]
fn mistakes_are_errors_that_name_the_parameter() {
    job::play(2, "burn-mistakes");
}

#[test]
fn parameters_that_were_not_broadcast_are_noticed_before_the_first_step() {
    let warned = |role| {
        let words = job::play(2, role).join("");
        words.matches("parameters differ between ranks before the first step").count()
    };
    assert_eq!(warned("burn-forgotten"), 1);
    assert_eq!(warned("burn-broadcast"), 0);
    let words = job::play(2, "burn-forgotten").join("");
    let named = "was farandole::burn::broadcast_parameters forgotten? The first that differs is \"layer.weight\": rank 0 \
                 and rank 1 differ";
    assert!(words.contains(named), "{words}");
}

pub(crate) fn play(role: &str) {
    let mut world = farandole::init().expect("ranks find each other");
    match role {
        "burn-forgotten" => initialised_apart(&mut world, false),
        "burn-broadcast" => initialised_apart(&mut world, true),
        "burn" => train(&mut world, Wire::F32),
        "burn-bf16" => train(&mut world, Wire::Bf16),
        "burn-f16" => train(&mut world, Wire::F16),
        "burn-missing" => miss(&world),
        "burn-passes" => accumulate(&world),
        "burn-buffers" => buffers(&mut world),
        "burn-dtypes" => dtypes(&mut world),
        "burn-overflow" => overflow(&world),
        "burn-mistakes" => mistakes(&world),
        other => panic!("there is no role {other}"),
    }
}

fn train(world: &mut World, wire: Wire) {
    let (weights, loss) = example::train(world, 20, wire).expect("training works");
    print_numbers("weights", &weights);
    print_numbers("loss", &[loss]);
}

/// Parameters one by one.
#[derive(Module, Debug)]
struct Loose {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
    third: Param<Tensor<1>>,
}

impl Loose {
    fn new(values: [f32; 3]) -> Loose {
        let device = Device::flex().autodiff();
        let [first, second, third] = values.map(|value| Param::from_tensor(Tensor::from_data([value, value], &device)));
        Loose { first, second, third }
    }
}

fn elements(param: &Param<Tensor<1>>) -> Vec<f32> {
    param.val().to_data().try_to_vec().expect("elements")
}

fn gradient(gradients: &GradientsParams, param: &Param<Tensor<1>>) -> Option<Vec<f32>> {
    gradients.get::<1>(param.id).map(|tensor| tensor.to_data().try_to_vec().expect("elements"))
}

fn miss(world: &World) {
    let module = Loose::new([3.0, 5.0, 7.0]);
    let outbox = Outbox::new(world, &module, Wire::F32, 1).expect("ranks agree");
    // A step with a branch that only rank 0 takes, then one with a branch that nobody takes.
    for step in 0..2 {
        let loss = match (step, world.rank()) {
            (0, 0) => (module.first.val() * module.second.val()).sum(),
            _ => module.first.val().sum(),
        };
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        let averages = outbox.collect(&module, gradients).expect("ranks average");
        let expected = if step == 0 { (3.0, Some(vec![1.5; 2])) } else { (1.0, None) };
        assert_eq!(gradient(&averages, &module.first), Some(vec![expected.0; 2]));
        assert_eq!(gradient(&averages, &module.second), expected.1);
        assert_eq!(gradient(&averages, &module.third), None);
    }
}

fn accumulate(world: &World) {
    let mut module = Loose::new([1.0; 3]);
    let mut optimizer =
        DistributedOptimizer::accumulating(world, &module, SgdConfig::new().init(), Wire::F32, 2).expect("agree");
    let rank = world.rank() as f32;
    for pass in 0..3 {
        let loss = (module.first.val() * (rank + pass as f32)).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        module = optimizer.step(1.0, module, gradients).expect("a step");
        // The mean over the ranks of rank + (rank + 1) is 2.
        assert_eq!(elements(&module.first), [if pass == 0 { 1.0 } else { -1.0 }; 2], "pass {pass}");
    }
    module = optimizer.flush(1.0, module).expect("what is left");
    assert_eq!(elements(&module.first), [-3.5; 2]);
    assert_eq!(elements(&optimizer.flush(1.0, module).expect("nothing is left").first), [-3.5; 2]);
}

/// A layer, and statistics.
#[derive(Module, Debug)]
struct Normed {
    layer: Linear,
    norm: BatchNorm,
}

/// The statistics of ranks differ on purpose.
fn initialised_apart(world: &mut World, broadcasts: bool) {
    let device = Device::flex().autodiff();
    device.seed(world.rank() as u64);
    // More elements than a sample has.
    let layer = LinearConfig::new(200, 40).init(&device);
    let mut module = Normed { layer, norm: BatchNormConfig::new(40).init(&device) };
    if broadcasts {
        module = broadcast_parameters(world, module, 0).expect("ranks agree");
    }
    let mut optimizer =
        DistributedOptimizer::new(world, &module, SgdConfig::new().init(), Wire::F32).expect("ranks agree");
    for _ in 0..3 {
        let seen = Tensor::<2>::full([4, 200], world.rank() as f32, &device);
        let loss = module.norm.forward(module.layer.forward(seen)).powf_scalar(2.0).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        module = optimizer.step(0.1, module, gradients).expect("a step");
    }
}

fn buffers(world: &mut World) {
    let device = Device::flex().autodiff();
    device.seed(world.rank() as u64);
    let module = Normed { layer: LinearConfig::new(3, 2).init(&device), norm: BatchNormConfig::new(2).init(&device) };
    let module = broadcast_parameters(world, module, 0).expect("ranks agree");
    assert!(module.layer.weight.is_require_grad(), "what was trained is trained");
    let weight: Vec<f32> = module.layer.weight.val().to_data().try_to_vec().expect("elements");
    let all = world.allgather(&weight).expect("gather");
    assert_eq!(all[..6], all[6..]);
    // Rank 0 sees zeros, rank 1 twos: their running means are 0 and 0.2 (momentum 0.1).
    let seen = Tensor::<2>::full([4, 2], 2.0 * world.rank() as f32, &device);
    let _ = module.norm.forward(seen.clone());
    let module = average_buffers(world, module).expect("ranks agree");
    let mean = |module: &Normed| module.norm.running_mean.value_sync().to_data().try_to_vec::<f32>().expect("elements");
    assert_close(&mean(&module), &[0.1; 2], 1e-6);
    // The average is what the next update starts from.
    let _ = module.norm.forward(seen);
    assert_close(&mean(&module), &[0.09 + 0.2 * world.rank() as f32; 2], 1e-6);
    assert!(module.layer.weight.is_require_grad());
}

fn dtypes(world: &mut World) {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for wire in [Wire::F32, Wire::Bf16, Wire::F16] {
            let device = Device::flex().autodiff();
            let start = Tensor::<1>::from_data([world.rank() as f32 + 1.0; 5], (&device, dtype)).require_grad();
            let module = broadcast_parameters(world, Param::from_tensor(start), 1).expect("ranks agree");
            assert_eq!((module.val().dtype(), module.is_require_grad()), (dtype, true));
            let outbox = Outbox::new(world, &module, wire, 1).expect("ranks agree");
            let loss = (module.val() * (4.0 * world.rank() as f32)).sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &module);
            let averages = outbox.collect(&module, gradients).expect("ranks average");
            let average = averages.get::<1>(module.id).expect("there is one");
            assert_eq!(average.dtype(), dtype);
            let average: Vec<f32> = average.cast(DType::F32).to_data().try_to_vec().expect("elements");
            assert_eq!(average, [2.0; 5], "{dtype:?} as {wire:?}");
        }
    }
}

fn overflow(world: &World) {
    let module = Loose::new([1.0; 3]);
    let step = |outbox: &Outbox, factor: f32| {
        let factor = if world.rank() == 1 { factor } else { 1.0 };
        let loss = (module.first.val() + module.second.val() * factor).sum();
        let averages = outbox.collect(&module, GradientsParams::from_grads(loss.backward(), &module))?;
        Ok::<_, farandole::Error>(gradient(&averages, &module.second).expect("an average"))
    };
    let narrow = Outbox::new(world, &module, Wire::F16, 1).expect("ranks agree");
    let error = step(&narrow, 1e6).expect_err("a million is too much");
    assert!(matches!(&error, farandole::Error::Overflow(why) if why.contains("second is not finite")), "{error}");
    assert_eq!(step(&narrow, 3.0).expect("the next step is one like others"), [2.0; 2]);
    let wide = Outbox::new(world, &module, Wire::Bf16, 1).expect("ranks agree");
    assert!(step(&wide, 1e6).expect("bf16 reaches that far")[0] > 4e5);
}

fn mistakes(world: &World) {
    let module = Loose::new([1.0; 3]);
    let outbox = Outbox::new(world, &module, Wire::F32, 1).expect("ranks agree");
    let data = || TensorData::from([1.0f32, 1.0]);
    let fails = |why: &str| {
        let error = outbox.collect(&module, GradientsParams::new()).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    };
    outbox.post(module.first.id, data());
    outbox.post(module.first.id, data());
    fails("first was posted again after it had been sent");
    outbox.post(module.second.id, TensorData::from([1.0f32]));
    fails("second has the shape [2], its gradient [1]");
    outbox.post(Loose::new([1.0; 3]).first.id, data());
    fails("is not a trained parameter");
    let loss = (module.third.val() * 2.0).sum();
    outbox.post(module.third.id, data());
    let error = outbox.collect(&module, GradientsParams::from_grads(loss.backward(), &module)).expect_err("both");
    assert!(error.to_string().contains("part of the gradient of gradient.0/third"), "{error}");
    let other = Loose::new([1.0; 3]);
    let error = outbox.collect(&other, GradientsParams::new()).expect_err("another module");
    assert!(error.to_string().contains("first is not in the module any more"), "{error}");
    // One rank alone is in trouble, and the other is told.
    let shape = if world.rank() == 1 { vec![1.0f32] } else { vec![1.0; 2] };
    outbox.post(module.first.id, TensorData::new(shape.clone(), [shape.len()]));
    fails(if world.rank() == 1 { "its gradient [1]" } else { "rank 1 could not contribute its gradients" });
    // None of this has harmed the outbox.
    outbox.post(module.first.id, data());
    let averages = outbox.collect(&module, GradientsParams::new()).expect("all is well");
    assert_eq!(gradient(&averages, &module.first), Some(vec![1.0; 2]));
    let device = Device::flex().autodiff();
    let uneven = LinearConfig::new(2 + world.rank(), 1).init(&device);
    let error = Outbox::new(world, &uneven, Wire::F32, 1).expect_err("ranks differ");
    assert!(error.to_string().contains("where rank 0 has weight F32 [2, 1], rank 1 has weight F32 [3, 1]"), "{error}");
}
