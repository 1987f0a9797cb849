//! How long a direct allreduce of four bytes takes, called from Rust; `examples/c/latency.c` measures the same from C.
//! `docs/c.md` has the commands and the figures.

#![allow(clippy::print_stdout, reason = "a benchmark says what it has found")]

use std::time::Instant;

use farandole::ReduceOp;

const ROUNDS: usize = 31;
const CALLS: u32 = 20_000;

fn main() -> Result<(), farandole::Error> {
    let mut world = farandole::init()?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..CALLS {
            let mut value = [1.0f32];
            world.allreduce(&mut value, ReduceOp::Sum)?;
        }
        rounds.push(begun.elapsed().as_nanos() / u128::from(CALLS));
    }
    rounds.sort_unstable();
    if world.rank() == 0 {
        println!("Rust: {} ns a call (median of {ROUNDS} rounds; the fastest {})", rounds[ROUNDS / 2], rounds[0]);
    }
    Ok(())
}
