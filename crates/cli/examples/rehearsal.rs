//! A rehearsal of training: every phase lasts as long as it is told to, so that a job can be given any illness and
//! `farandole report` be asked what is wrong with it.
//!
//! ```console
//! $ cargo build --release -p farandole-cli --bin farandole --example rehearsal
//! $ FARANDOLE_TRACE=traces target/release/farandole run -np 4 target/release/examples/rehearsal input-ms=30 late-rank=2 late-ms=10
//! $ target/release/farandole report traces
//! ```

use std::time::Duration;

use farandole::ReduceOp::Average;
use farandole::{Phase, World};

/// What is rehearsed; every word of the command line sets one of these: `name=number`.
struct Play {
    /// Iterations.
    iterations: u64,
    /// How long a rank waits for its batch.
    input_ms: u64,
    /// How long a rank works on it.
    work_ms: u64,
    /// A rank that works longer …
    late_rank: u64,
    /// … by so much.
    late_ms: u64,
    /// How long evaluation takes on one rank, every ten iterations.
    evaluation_ms: u64,
    /// Whether all ranks share it: 1 or 0.
    shared: u64,
    /// How long a checkpoint takes on rank 0, every ten iterations.
    checkpoint_ms: u64,
    /// Tensors of an iteration.
    tensors: u64,
    /// Bytes of each.
    bytes: u64,
}

impl Play {
    fn from_words(words: impl Iterator<Item = String>) -> Result<Play, String> {
        let mut play = Play {
            iterations: 30,
            input_ms: 0,
            work_ms: 20,
            late_rank: 0,
            late_ms: 0,
            evaluation_ms: 0,
            shared: 0,
            checkpoint_ms: 0,
            tensors: 4,
            bytes: 64 << 10,
        };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word}: write name=number"))?;
            let place = match name {
                "iterations" => &mut play.iterations,
                "input-ms" => &mut play.input_ms,
                "work-ms" => &mut play.work_ms,
                "late-rank" => &mut play.late_rank,
                "late-ms" => &mut play.late_ms,
                "evaluation-ms" => &mut play.evaluation_ms,
                "shared" => &mut play.shared,
                "checkpoint-ms" => &mut play.checkpoint_ms,
                "tensors" => &mut play.tensors,
                "bytes" => &mut play.bytes,
                _ => return Err(format!("there is nothing called {name}")),
            };
            *place = value.parse().map_err(|_| format!("{word}: {value} is not a whole number"))?;
        }
        Ok(play)
    }
}

fn pass(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let play = Play::from_words(std::env::args().skip(1))?;
    let mut world = farandole::init()?;
    world.barrier()?;
    for number in 0..play.iterations {
        if number % 10 == 0 {
            world.mark_epoch(number / 10);
        }
        iteration(&world, &play, number)?;
        if number % 10 == 9 {
            after_epoch(&world, &play)?;
        }
    }
    Ok(())
}

fn iteration(world: &World, play: &Play, number: u64) -> farandole::Result<()> {
    world.mark_iteration(number);
    if play.input_ms > 0 {
        let _waiting = world.recorder().phase(Phase::InputWait);
        pass(play.input_ms);
    }
    let mut tickets = Vec::new();
    {
        let _working = world.recorder().phase(Phase::Backward);
        pass(play.work_ms);
        if world.rank() as u64 == play.late_rank {
            pass(play.late_ms);
        }
        for tensor in 0..play.tensors {
            let gradient = vec![1_f32; (play.bytes / 4) as usize];
            tickets.push(world.named(&format!("gradient.{tensor}")).allreduce(gradient, Average)?);
        }
    }
    let _stepping = world.recorder().phase(Phase::OptimizerStep);
    for ticket in tickets {
        ticket.wait()?;
    }
    Ok(())
}

/// Evaluation and a checkpoint; the ranks meet when these are over.
fn after_epoch(world: &World, play: &Play) -> farandole::Result<()> {
    if play.evaluation_ms > 0 && (play.shared == 1 || world.rank() == 0) {
        let _testing = world.recorder().phase(Phase::Evaluation);
        pass(if play.shared == 1 { play.evaluation_ms / world.size() as u64 } else { play.evaluation_ms });
    }
    if play.checkpoint_ms > 0 && world.rank() == 0 {
        let _saving = world.recorder().phase(Phase::Checkpoint);
        pass(play.checkpoint_ms);
    }
    let metric = world.named("metric").allreduce(vec![0_f32; 1], Average)?;
    metric.wait()?;
    Ok(())
}
