//! How long a training stands still when a process joins, with a state of some size: sent when the process is let in,
//! or streamed before.
//!
//! All members but the first kill themselves after a while, and the launcher replaces them. The first one takes the
//! time from the end of its last step without the new process until it can begin the first one with it.
//!
//! ```console
//! $ cargo build --release --bin farandole --example streaming
//! $ target/release/farandole run -np 2 --min-np 1 --blacklist-cooldown-range 0 0 \
//!     target/release/examples/streaming --megabytes 200 --step-ms 500 --joins 5 --streamed
//! ```

use std::time::{Duration, Instant};

use farandole::elastic::{ElasticState, StepBatch, StreamedState, Training, WorldChange};
use farandole::{ReduceOp, Result, World};

/// Steps that a member makes before it kills itself.
const LIFE: u64 = 8;

/// A model with an optimizer that remembers two numbers for each weight, as Adam does.
struct Network {
    /// Weights, and means of slopes and of their squares, one behind the other.
    numbers: Vec<f32>,
    /// How often processes have joined, and the ranks of the last step.
    counters: Vec<u64>,
    /// The end of the last step, and how long each process that joined was waited for. No part of the state.
    applied: Instant,
    stills: Vec<Duration>,
}

impl Network {
    fn new(megabytes: usize) -> Network {
        let weights = megabytes * 1_000_000 / 12;
        let weight = |place: usize| if place < weights { (place % 1009) as f32 / 1009.0 } else { 0.0 };
        let numbers = (0..3 * weights).map(weight).collect();
        Network { numbers, counters: vec![0; 2], applied: Instant::now(), stills: Vec::new() }
    }
}

impl ElasticState for Network {
    fn save(&self) -> Result<Vec<u8>> {
        let counters = self.counters.save()?;
        let mut saved = self.numbers.save()?;
        saved.extend_from_slice(&counters);
        Ok(saved)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let (numbers, counters) = saved.split_at(saved.len().saturating_sub(size_of_val(&self.counters[..])));
        self.numbers.restore(numbers)?;
        self.counters.restore(counters)
    }

    fn digest(&self) -> Result<u64> {
        Ok(self.numbers.digest()? ^ self.counters.digest()?)
    }

    fn on_change(&mut self, _: &mut World, change: &WorldChange) -> Result<()> {
        if change.joined > 0 && change.before.is_some() {
            self.stills.push(self.applied.elapsed());
        }
        Ok(())
    }
}

impl StreamedState for Network {
    /// The gradient, and how many ranks have computed it.
    type Update = (Vec<f32>, Vec<u64>);

    fn apply(&mut self, (gradient, ranks): (Vec<f32>, Vec<u64>)) {
        let (weights, rest) = self.numbers.split_at_mut(gradient.len());
        let (means, squares) = rest.split_at_mut(gradient.len());
        for (((weight, mean), square), slope) in weights.iter_mut().zip(means).zip(squares).zip(gradient) {
            *mean += 0.1 * (slope - *mean);
            *square += 0.001 * (slope * slope - *square);
            *weight -= 1e-3 * *mean / (square.sqrt() + 1e-8);
        }
        let [joins, last] = &mut self.counters[..] else { return };
        *joins += u64::from(ranks[0] > *last && *last > 0);
        *last = ranks[0];
        self.applied = Instant::now();
    }
}

fn argument(name: &str, otherwise: usize) -> usize {
    let value = std::env::args().skip_while(|word| word != name).nth(1);
    value.and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[allow(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<()> {
    let (megabytes, step_ms) = (argument("--megabytes", 200), argument("--step-ms", 500) as u64);
    let (joins, is_streamed) = (argument("--joins", 5) as u64, std::env::args().any(|word| word == "--streamed"));
    let member = std::env::var("FARANDOLE_ELASTIC_MEMBER").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    let is_first = member == 0;
    // A process that takes long to start: the others have gone on without the lost one.
    std::thread::sleep(Duration::from_millis(3 * step_ms * u64::min(member / 2, 1)));
    let builder = Training::new(Network::new(megabytes));
    let builder = if is_streamed { builder.streamed() } else { builder };
    let mut training = builder.begin()?;
    let mut own_steps = 0;
    let mut compute = |world: &mut World, network: &Network, batch: &StepBatch| {
        if own_steps >= LIFE && !is_first && network.counters[0] < joins {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        own_steps += 1;
        std::thread::sleep(Duration::from_millis(step_ms));
        let slope = (batch.step % 7) as f32 / 7.0 - 0.4 + world.rank() as f32 / 16.0;
        let mut gradient = vec![slope; network.numbers.len() / 3];
        world.allreduce(&mut gradient, ReduceOp::Average)?;
        Ok::<_, farandole::Error>((gradient, vec![world.size() as u64]))
    };
    while training.state().counters[0] < joins {
        training.streamed_step(&mut compute)?;
    }
    let mut stills = training.finish()?.stills;
    stills.sort_unstable();
    if let (true, Some(longest)) = (is_first, stills.last()) {
        let (median, longest) = (stills[stills.len() / 2].as_millis(), longest.as_millis());
        let how = if is_streamed { "streamed" } else { "sent when the process is let in" };
        println!(
            "{megabytes} MB, {how}: the others stood still for {median} ms, {longest} ms at most, of {joins} joins"
        );
    }
    Ok(())
}
