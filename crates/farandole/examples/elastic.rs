//! A small model, trained by ranks that may leave and join: with `--die-at 40` one of them kills itself after 40 steps,
//! and the others go on.
//!
//! ```console
//! $ cargo build --release --bin farandole --example elastic
//! $ target/release/farandole run -np 3 --min-np 1 target/release/examples/elastic --die-at 40
//! ```

use farandole::ReduceOp::Sum;
use farandole::elastic::{ElasticState, Samples, Training};
use farandole::{Error, Result, World};

/// Weights of the model.
const WIDTH: usize = 16;

/// Samples of an epoch.
pub const SAMPLES: usize = 600;

/// How often all samples are learned from.
pub const EPOCHS: u64 = 3;

/// The weights, and how often each sample is in them: that shows that every sample counts once in an epoch.
pub type Learned = (Vec<f32>, Vec<u32>);

/// A point, and the sum of its coordinates, which is to be learned.
fn sample(number: usize) -> ([f32; WIDTH], f32) {
    let point = std::array::from_fn(|place| ((number * 31 + place * 17) % 23) as f32 / 11.0 - 1.0);
    (point, point.iter().sum())
}

/// What all ranks have computed together in a step: the gradient, and which samples it is of.
fn gradient(world: &mut World, weights: &[f32], samples: &[usize]) -> Result<Learned> {
    let (mut slopes, mut used) = (vec![0.0; WIDTH], vec![0; SAMPLES]);
    for &number in samples {
        let (point, sum) = sample(number);
        let error = point.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f32>() - sum;
        slopes.iter_mut().zip(point).for_each(|(slope, x)| *slope += error * x);
        used[number] += 1;
    }
    world.allreduce(&mut slopes, Sum)?;
    world.allreduce(&mut used, Sum)?;
    Ok((slopes, used))
}

/// Trains until all epochs are complete. `state` has what [`Learned`] has, and `learned` finds it there. `before` is
/// called in each step before ranks compute together, and `after` when the step counts here.
pub fn train<S: ElasticState>(
    state: S,
    learned: fn(&S) -> &Learned,
    learned_mut: fn(&mut S) -> &mut Learned,
    mut before: impl FnMut(&World, u64),
    mut after: impl FnMut(&Learned, u64, usize),
) -> Result<S> {
    // All ranks take 60 samples in each step, however many ranks there are; so the learning rate stays the same.
    let samples = Samples::for_all_ranks(SAMPLES, 60).shuffled(1);
    let mut training = Training::new(state).samples(samples).begin()?;
    while training.epoch() < EPOCHS {
        training.step(
            |world, state, batch| {
                before(world, batch.step);
                let (slopes, used) = gradient(world, &learned(state).0, &batch.samples)?;
                Ok::<_, Error>((slopes, used, batch.total as f32))
            },
            |state, (slopes, used, total)| {
                let (weights, counts) = learned_mut(state);
                weights.iter_mut().zip(slopes).for_each(|(weight, slope)| *weight -= 0.2 * slope / total);
                counts.iter_mut().zip(used).for_each(|(count, more)| *count += more);
            },
        )?;
        after(learned(training.state()), training.steps(), training.world().size());
    }
    training.finish()
}

/// Where every rank begins; rank 0's counts.
pub fn start() -> Learned {
    (vec![0.0; WIDTH], vec![0; SAMPLES])
}

#[allow(clippy::print_stdout, reason = "an example shows its result")]
#[allow(dead_code, reason = "a test takes this file in without its main function")]
fn main() -> Result<()> {
    let mut words = std::env::args().skip_while(|word| word != "--die-at");
    let die_at: Option<u64> = words.nth(1).and_then(|step| step.parse().ok());
    let is_second = std::env::var("FARANDOLE_ELASTIC_MEMBER").is_ok_and(|number| number == "1");
    let die = |_: &World, step: u64| {
        if is_second && die_at == Some(step) {
            // As `kill -9` does: nobody is told.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    };
    let (weights, used) = train(start(), |state| state, |state| state, die, |_, _, _| ())?;
    let uneven = used.iter().filter(|count| u64::from(**count) != EPOCHS).count();
    println!(
        "the first weight is {:.6}; {uneven} of {SAMPLES} samples were not learned from {EPOCHS} times",
        weights[0]
    );
    Ok(())
}
