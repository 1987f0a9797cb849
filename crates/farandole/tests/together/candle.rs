//! Candle's gradients, averaged.

use candle_core::{Device, Var};
use farandole::World;
use farandole::candle::{Averager, Wire, broadcast_parameters};

use super::{assert_close, job, numbers, print_numbers};

#[path = "../../examples/candle.rs"]
#[allow(unreachable_pub, reason = "an example is a program of its own")]
mod example;

#[test]
fn ranks_end_with_equal_weights_and_two_batches_count_like_one_twice_as_large() {
    let alone = numbers(&job::play(1, "candle")[0], "weights");
    let together = job::play(2, "candle");
    assert_eq!(numbers(&together[0], "weights"), numbers(&together[1], "weights"));
    assert_close(&alone, &numbers(&together[0], "weights"), 1e-4);
}

#[test]
fn a_gradient_that_one_rank_lacks_counts_as_zero_and_different_names_are_an_error() {
    job::play(2, "candle-odd");
}

#[test]
fn variables_that_were_not_broadcast_are_noticed_before_the_first_step() {
    let named = "parameters differ between ranks before the first step; was farandole::candle::broadcast_parameters \
                 forgotten? The first that differs is \"weight\": rank 0 and rank 1 differ";
    let forgotten = job::play(2, "candle-forgotten").join("");
    assert_eq!(forgotten.matches(named).count(), 1, "{forgotten}");
    let broadcast = job::play(2, "candle-broadcast").join("");
    assert!(!broadcast.contains("parameters differ"), "{broadcast}");
}

/// Has more elements than a sample, and a bias that is the same.
fn initialised_apart(world: &mut World, broadcasts: bool) {
    let numbers = (0..3000).map(|place| (place * (world.rank() + 1)) as f32).collect();
    let weight = Var::from_vec(numbers, (50, 60), &Device::Cpu).expect("a variable");
    let bias = Var::from_vec(vec![1.0f32; 3], 3, &Device::Cpu).expect("a variable");
    let named = [("weight", &weight), ("bias", &bias)].map(|(name, var)| (name.to_owned(), var.clone()));
    if broadcasts {
        broadcast_parameters(world, named.clone(), 0).expect("ranks agree");
    }
    let averager = Averager::new(world, named, Wire::F32).expect("ranks agree");
    for _ in 0..3 {
        let loss = weight.as_tensor().sum_all().expect("a sum");
        averager.average(&mut loss.backward().expect("backward works")).expect("ranks average");
    }
}

pub(crate) fn play(role: &str) {
    let mut world = farandole::init().expect("ranks find each other");
    if let "candle-forgotten" | "candle-broadcast" = role {
        return initialised_apart(&mut world, role == "candle-broadcast");
    }
    if role == "candle" {
        let (weights, _) = example::train(&mut world, 20, Wire::F32).expect("training works");
        return print_numbers("weights", &weights);
    }
    let var = |value: f32| Var::from_vec(vec![value; 2], 2, &Device::Cpu).expect("a variable");
    let (used, skipped, never) = (var(3.0), var(5.0), var(7.0));
    let named = [("used", &used), ("skipped", &skipped), ("never", &never)];
    let named = named.map(|(name, var)| (name.to_owned(), var.clone()));
    let averager = Averager::new(&world, named.clone(), Wire::Bf16).expect("ranks agree");
    let loss = match world.rank() {
        0 => (used.as_tensor() * skipped.as_tensor()).expect("a product"),
        _ => used.as_tensor().clone(),
    };
    let mut gradients = loss.sum_all().and_then(|loss| loss.backward()).expect("backward works");
    averager.average(&mut gradients).expect("ranks average");
    let of = |var: &Var| gradients.get(var).map(|gradient| gradient.to_vec1::<f32>().expect("elements"));
    assert_eq!((of(&used), of(&skipped), of(&never)), (Some(vec![3.0; 2]), Some(vec![1.5; 2]), None));
    let error = Averager::new(&world, named.into_iter().take(3 - world.rank()), Wire::F32).expect_err("one is missing");
    assert!(error.to_string().contains("where rank 0 has never F32 [2], rank 1 has skipped F32 [2]"), "{error}");
}
