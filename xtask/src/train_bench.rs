//! Measures a step of training on the processor, beside PyTorch's with the same network.
//!
//! `cargo xtask train-bench [--rounds N] [MODEL BATCH SIDE]…` builds `crates/train/examples/train_step.rs` as users get
//! it and runs it beside `bindings/python/benchmarks/train_step.py`, one thread each, one step in turns. Processor time
//! is compared, so that what else the machine does hits both alike and neither much.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::python;
use crate::shell::Shell;

const SCRIPT: &str = "bindings/python/benchmarks/train_step.py";

/// Networks, images in a batch, and pixels along an image's side.
const STEPS: [[&str; 3]; 2] = [["resnet20", "32", "32"], ["resnet50", "2", "224"]];
/// Steps that are measured, and those before them that are not: memory is fresh and kernels are being chosen.
const ROUNDS: usize = 11;
const WARM_UP: usize = 2;

/// `cargo xtask train-bench [--rounds N] [MODEL BATCH SIDE]…`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (rounds, words) = match words {
        [flag, count, rest @ ..] if flag == "--rounds" => (count.parse().context("--rounds takes a number")?, rest),
        _ => (ROUNDS, words),
    };
    if words.len() % 3 != 0 {
        bail!("`cargo xtask train-bench` takes networks as `MODEL BATCH SIDE`");
    }
    Shell::cargo(&["build", "--release", "--package", "farandole-train", "--example", "train_step"]).run()?;
    python::make_environment()?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let ours = format!("{target}/release/examples/train_step");
    let interpreter = python::python().to_string_lossy().into_owned();
    println!(
        "processor time of a step in ms, one thread, in turns, median of {rounds}: all (forward, backward, optimizer)"
    );
    let asked: Vec<[&str; 3]> = words.chunks(3).map(|three| [0, 1, 2].map(|i| three[i].as_str())).collect();
    for step in if asked.is_empty() { STEPS.to_vec() } else { asked } {
        let mut contestants = [
            Contestant::start("farandole", &[&ours], &step)?,
            Contestant::start("torch", &[&interpreter, SCRIPT], &step)?,
        ];
        for round in 0..WARM_UP + rounds {
            for contestant in &mut contestants {
                contestant.step(round >= WARM_UP)?;
            }
        }
        let [model, batch, side] = step;
        println!("{model}, {batch} images of {side}x{side}");
        let medians: Vec<[f64; 5]> = contestants.iter_mut().map(Contestant::medians).collect();
        for (contestant, [all, forward, backward, optimizer, wall]) in contestants.iter().zip(&medians) {
            let phases = format!("{forward:.1}, {backward:.1}, {optimizer:.1}");
            println!("  {:10} {all:8.1} ({phases}); {wall:.1} on the wall", contestant.name);
        }
        println!("  ratio      {:8.2}", medians[0][0] / medians[1][0]);
    }
    Ok(())
}

/// A program that makes one step for every line it gets.
struct Contestant {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    steps: Vec<[f64; 5]>,
}

impl Contestant {
    fn start(name: &'static str, command: &[&str], words: &[&str]) -> Result<Self> {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .args(words)
            .env("RAYON_NUM_THREADS", "1")
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", command[0]))?;
        let input = child.stdin.take().context("a pipe was asked for")?;
        let output = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        Ok(Self { name, child, input, output, steps: Vec::new() })
    }

    fn step(&mut self, counts: bool) -> Result<()> {
        writeln!(self.input).with_context(|| format!("asking {} for a step", self.name))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let numbers = <[f64; 5]>::try_from(numbers);
        let numbers = numbers.ok().with_context(|| format!("{} said `{}`", self.name, line.trim_end()))?;
        if counts {
            self.steps.push(numbers);
        }
        Ok(())
    }

    /// The median of each number.
    fn medians(&mut self) -> [f64; 5] {
        std::array::from_fn(|number| {
            self.steps.sort_by(|a, b| a[number].total_cmp(&b[number]));
            self.steps.get(self.steps.len() / 2).map_or(f64::NAN, |step| step[number])
        })
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // It has nothing to lose, and a failure must not leave it behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
