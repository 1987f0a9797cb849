//! How long one step of training takes: forward, backward, optimizer. One half of `cargo xtask train-bench`.
//!
//! `train_step MODEL BATCH SIDE` prints a line for every step it is asked for on standard input, and ends with it. So
//! two programs can be measured in turns. Times are the process's own processor time in milliseconds: what others do on
//! the machine does not count.

#![allow(clippy::print_stdout, reason = "an example talks to the person who started it")]

use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use farandole_data::sample::{ImageShape, Labels, Task};
use farandole_train::layer::{Draw, ForwardPass};
use farandole_train::model::{Architecture, ModelSpec, Network};
use farandole_train::task;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [architecture, batch, side] = &words[..] else { return Err("train_step MODEL BATCH SIDE".into()) };
    let (architecture, batch, side): (Architecture, usize, usize) =
        (architecture.parse()?, batch.parse()?, side.parse()?);
    let device = Device::flex().autodiff();
    let classes = if architecture == Architecture::ResNet20 { 10 } else { 1000 };
    let task = Task::SingleLabel { classes };
    let shape = ImageShape { bands: 3, height: side, width: side };
    let mut network = Network::new(&ModelSpec::new(architecture, shape, task), &device)?;
    let mut optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9))).init();
    let images = Tensor::<4>::random([batch, 3, side, side], Distribution::Normal(0.0, 1.0), &device);
    let labels = Labels::Classes((0..batch as u32).map(|sample| sample % classes as u32).collect());
    for line in std::io::stdin().lock().lines() {
        line?;
        let (began, before) = (Instant::now(), processor_ms());
        let pass = ForwardPass::training(None, Draw::default());
        let loss = task::loss(network.forward(images.clone(), &pass), &labels, task, 0.0)?;
        let forward = processor_ms();
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        let backward = processor_ms();
        network = optimizer.step(0.05, network, gradients);
        let after = processor_ms();
        let wall = began.elapsed().as_secs_f64() * 1e3;
        let phases = [forward - before, backward - forward, after - backward];
        println!("{:.2} {:.2} {:.2} {:.2} {wall:.2}", after - before, phases[0], phases[1], phases[2]);
    }
    Ok(())
}

/// Processor time of all threads of this process so far.
fn processor_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
