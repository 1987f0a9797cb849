//! Averages many small tensors again and again, as a training loop does with its gradients, and says how long it took
//! and how long the end took.
//!
//! Run it as `farandole run -np 8 --trace traces target/release/examples/many_tensors 1000 1000` to see what keeping a
//! trace costs.

#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use std::time::Instant;

use farandole::{Pending, ReduceOp, Result, init};

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse().unwrap_or(100));
    let (tensors, iterations) = (numbers.next().unwrap_or(100), numbers.next().unwrap_or(100));
    let mut world = init()?;
    let mut gradients: Vec<(String, Vec<f32>)> =
        (0..tensors).map(|number| (format!("layer{number}.weight"), vec![1.0; 256])).collect();
    world.barrier()?;
    let begun = Instant::now();
    for number in 0..iterations {
        world.mark_iteration(number);
        let submit = |(name, gradient): &mut (String, Vec<f32>)| {
            world.named(name).allreduce(std::mem::take(gradient), ReduceOp::Average)
        };
        let averages: Vec<Pending<Vec<f32>>> = gradients.iter_mut().map(submit).collect::<Result<_>>()?;
        for (average, (_, gradient)) in averages.into_iter().zip(&mut gradients) {
            *gradient = average.wait()?;
        }
    }
    let ran = begun.elapsed();
    let rank = world.rank();
    let ending = Instant::now();
    drop(world);
    if rank == 0 {
        println!("{tensors} tensors, {iterations} iterations: {ran:.2?}, the end {:.2?}", ending.elapsed());
    }
    Ok(())
}
