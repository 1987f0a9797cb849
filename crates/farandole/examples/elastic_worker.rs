//! One process of `cargo xtask elastic-bench --worker rust`: trains a small network for ever, and notes every step that
//! it has completed. The same as `bindings/python/benchmarks/elastic_worker.py`, without Python.
//!
//! Arguments: `farandole` (whose training it is; there is no other here), and a folder. A note is a line of the file
//! `PID.steps` in that folder: the moment (nanoseconds of the monotonic clock, which all processes of a host share),
//! the number of the step, the number of ranks, and a checksum of the parameters.

use std::fs::OpenOptions;
use std::io::Write;

use farandole::elastic::Training;
use farandole::{Error, ReduceOp, Result};
use rustix::time::{ClockId, clock_gettime};

/// The network has one layer of so many inputs and outputs: steps take about a millisecond.
const WIDTH: usize = 256;

/// Samples of a rank in a step.
const BATCH: usize = 4;

/// Parameters, and the last step's direction.
type Network = (Vec<f32>, Vec<f32>);

fn network() -> Network {
    let weight = |place: usize| ((place * 7919 + 13) % 1009) as f32 / 1009.0 / WIDTH as f32;
    let parameters: Vec<f32> = (0..WIDTH * WIDTH + WIDTH).map(weight).collect();
    let momentum = vec![0.0; parameters.len()];
    (parameters, momentum)
}

/// The gradient of the mean of the squared outputs. It follows from step and rank.
fn compute(parameters: &[f32], step: u64, rank: usize) -> Vec<f32> {
    let (weights, bias) = parameters.split_at(WIDTH * WIDTH);
    let input = 0.001 * (step % 7 + rank as u64) as f32;
    let mut gradient = vec![0.0; parameters.len()];
    let (slopes, bias_slopes) = gradient.split_at_mut(WIDTH * WIDTH);
    for _ in 0..BATCH {
        for (output, row) in weights.chunks_exact(WIDTH).enumerate() {
            let value = row.iter().map(|weight| weight * input).sum::<f32>() + bias[output];
            let slope = 2.0 * value / (BATCH * WIDTH) as f32;
            slopes[output * WIDTH..][..WIDTH].iter_mut().for_each(|into| *into += slope * input);
            bias_slopes[output] += slope;
        }
    }
    gradient
}

/// FNV-1a over the bits.
fn checksum(parameters: &[f32]) -> u64 {
    let bits = parameters.iter().map(|parameter| u64::from(parameter.to_bits()));
    bits.fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ bits).wrapping_mul(0x0100_0000_01b3)) >> 1
}

fn nanoseconds() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

#[allow(clippy::print_stderr, reason = "whoever started it wrongly is told")]
fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ("farandole", [folder]) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest))
    else {
        eprintln!("usage: elastic_worker farandole FOLDER");
        std::process::exit(2);
    };
    let path = std::path::Path::new(folder).join(format!("{}.steps", std::process::id()));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let mut file = file.map_err(|error| Error::Settings(format!("{}: {error}", path.display())))?;

    let mut training = Training::new(network()).begin()?;
    let mut noted = training.steps();
    loop {
        training.step(
            |world, (parameters, _), batch| {
                let gradient = compute(parameters, batch.step, world.rank());
                world.named("gradient").allreduce(gradient, ReduceOp::Average)?.wait()
            },
            |(parameters, momentum), gradient| {
                for ((parameter, momentum), slope) in parameters.iter_mut().zip(momentum).zip(gradient) {
                    *momentum = 0.9 * *momentum + slope;
                    *parameter -= 1e-4 * *momentum;
                }
            },
        )?;
        if training.steps() != noted {
            noted = training.steps();
            let (size, sum) = (training.world().size(), checksum(&training.state().0));
            let line = format!("{} {noted} {size} {sum}\n", nanoseconds());
            // One write for each line: whoever measures reads along. Without a reader there is nothing to do here.
            if file.write_all(line.as_bytes()).is_err() {
                return Ok(());
            }
        }
    }
}
