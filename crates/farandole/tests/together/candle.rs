//! Candle's gradients, averaged.

use candle_core::{Device, Var};
use farandole::candle::{Averager, Wire};

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

pub(crate) fn play(role: &str) {
    let mut world = farandole::init().expect("ranks find each other");
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
