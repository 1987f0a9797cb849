//! The rank's side: what a contestant must be able to do, and the loop that takes its times.
//!
//! The loop is the same for farandole and for the peers that are driven from this program, so that nobody is measured
//! more kindly than the others. A round is: fill the input, run once, count wrong results; fill with zeros; warm up;
//! then time each iteration. Filling happens between barriers, because a contestant may read its peers' memory.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::line::{Line, RankAnswer, RankCommand};
use super::pattern::Pattern;
use super::task::{Kind, Pace, Task};

/// Why a contestant does not run a task.
pub(crate) enum Refusal {
    /// It has no such collective, dtype or operation; others may have.
    Unsupported(String),
    /// It broke.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

/// One rank of a program that can run collectives.
pub(crate) trait Contestant {
    /// Product and version.
    fn product(&self) -> String;
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn ranks(&self) -> usize;
    /// Gets ready for a task: buffers are there, of the right size, at the latest now. Asked again before each round.
    fn prepare(&mut self, task: &Task) -> Result<(), Refusal>;
    /// Where this rank's contribution belongs, tensor by tensor.
    fn inputs(&mut self) -> Vec<&mut [u8]>;
    /// Where the results lie after [`Contestant::run`]; may be the same memory as the inputs.
    fn outputs(&mut self) -> Vec<&[u8]>;
    /// Runs the prepared task once.
    fn run(&mut self) -> Result<()>;
    /// Waits for all ranks.
    fn barrier(&mut self) -> Result<()>;
}

/// Serves the driver behind `socket` until it hangs up.
pub(crate) fn serve(contestant: &mut dyn Contestant, socket: &Path) -> Result<()> {
    let stream = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
    let mut line = Line::new(stream);
    line.send(&RankAnswer::Hello { rank: contestant.rank(), product: contestant.product() })?;
    while let Some(RankCommand::Measure { task, warmup, iterations }) = line.receive()? {
        let answer = match round(contestant, &task, warmup, iterations) {
            Ok((times_ns, wrong)) => RankAnswer::Measured { times_ns, wrong },
            Err(Refusal::Unsupported(why)) => RankAnswer::Unsupported { why },
            Err(Refusal::Failed(error)) => RankAnswer::Failed { why: crate::shown(&error) },
        };
        if line.send(&answer).is_err() {
            // The driver has gone, and has said why; a rank has nothing to add.
            break;
        }
    }
    Ok(())
}

/// Runs a round: its times, and how many elements of this rank's results were wrong.
pub(crate) fn round(
    contestant: &mut dyn Contestant,
    task: &Task,
    warmup: usize,
    iterations: usize,
) -> Result<(Vec<u64>, u64), Refusal> {
    contestant.prepare(task)?;
    let wrong = check(contestant, task)?;
    fill(contestant, &Pattern::zeros(task.dtype));
    contestant.barrier()?;
    for _ in 0..warmup {
        contestant.run()?;
    }
    let times_ns = match task.pace {
        Pace::Aligned => time_aligned(contestant, iterations)?,
        Pace::BackToBack => time_back_to_back(contestant, iterations)?,
    };
    Ok((times_ns, wrong))
}

fn time_aligned(contestant: &mut dyn Contestant, iterations: usize) -> Result<Vec<u64>> {
    let mut times_ns = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        contestant.barrier()?;
        let start = Instant::now();
        contestant.run()?;
        times_ns.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times_ns)
}

fn time_back_to_back(contestant: &mut dyn Contestant, iterations: usize) -> Result<Vec<u64>> {
    let mut times_ns = Vec::with_capacity(iterations);
    contestant.barrier()?;
    let mut start = Instant::now();
    for _ in 0..iterations {
        contestant.run()?;
        let end = Instant::now();
        times_ns.push((end - start).as_nanos() as u64);
        start = end;
    }
    Ok(times_ns)
}

/// Runs the task once on known inputs and counts the wrong elements of the result. The timed iterations then start from
/// buffers that have been touched by everybody.
fn check(contestant: &mut dyn Contestant, task: &Task) -> Result<u64, Refusal> {
    if task.kind == Kind::Barrier {
        return Ok(0);
    }
    let rank = contestant.rank();
    let ranks = contestant.ranks();
    fill(contestant, &Pattern::contribution(task.dtype, task.op, rank, ranks));
    contestant.barrier()?;
    contestant.run()?;
    contestant.barrier()?;
    Ok(contestant.outputs().into_iter().map(|output| count_wrong(task, rank, ranks, output)).sum())
}

fn fill(contestant: &mut dyn Contestant, pattern: &Pattern) {
    for input in contestant.inputs() {
        pattern.fill(input, 0);
    }
}

fn count_wrong(task: &Task, rank: usize, ranks: usize, output: &[u8]) -> u64 {
    let contribution = |from| Pattern::contribution(task.dtype, task.op, from, ranks);
    let combination = || Pattern::combination(task.dtype, task.op, ranks);
    let elems = |bytes: usize| bytes / task.dtype.size_bytes();
    match task.kind {
        Kind::Allreduce => combination().count_wrong(output, 0),
        Kind::Reducescatter => combination().count_wrong(output, rank * elems(output.len())),
        Kind::Broadcast => contribution(0).count_wrong(output, 0),
        Kind::Allgather | Kind::Alltoall => {
            let part_bytes = output.len() / ranks;
            let first = if task.kind == Kind::Alltoall { rank * elems(part_bytes) } else { 0 };
            let parts = output.chunks_exact(part_bytes).enumerate();
            parts.map(|(from, part)| contribution(from).count_wrong(part, first)).sum()
        }
        Kind::Barrier => 0,
    }
}

/// How many bytes a rank brings to a task and takes from it, in one tensor. `None`: the result replaces the input.
pub(crate) fn buffer_bytes(task: &Task, ranks: usize) -> (usize, Option<usize>) {
    let bytes = task.bytes as usize;
    match task.kind {
        Kind::Allreduce | Kind::Broadcast => (bytes, None),
        Kind::Allgather => (bytes / ranks, Some(bytes)),
        Kind::Alltoall => (bytes, Some(bytes)),
        Kind::Reducescatter => (bytes, Some(bytes / ranks)),
        Kind::Barrier => (0, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::task::{Memory, Recording, Through};
    use farandole_plan::{Dtype, ReduceOp};

    fn task(kind: Kind) -> Task {
        Task {
            kind,
            bytes: 48,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            pace: Pace::Aligned,
            memory: Memory::Own,
            through: Through::Direct,
            tensors: 1,
            recording: Recording::On,
        }
    }

    fn contribution(rank: usize, elems: usize) -> Vec<u8> {
        let mut bytes = vec![0; elems * 4];
        Pattern::contribution(Dtype::F32, ReduceOp::Sum, rank, 3).fill(&mut bytes, 0);
        bytes
    }

    #[test]
    fn a_gathered_result_is_the_contributions_in_rank_order() {
        let gathered = [contribution(0, 4), contribution(1, 4), contribution(2, 4)].concat();
        assert_eq!(count_wrong(&task(Kind::Allgather), 1, 3, &gathered), 0);
        let swapped = [contribution(1, 4), contribution(0, 4), contribution(2, 4)].concat();
        let wrong = count_wrong(&task(Kind::Allgather), 1, 3, &swapped);
        assert!((1..=8).contains(&wrong), "{wrong}");
    }

    #[test]
    fn an_exchanged_result_is_everybodys_part_for_this_rank() {
        let parts: Vec<u8> = (0..3).flat_map(|from| contribution(from, 12)[16..32].to_vec()).collect();
        assert_eq!(count_wrong(&task(Kind::Alltoall), 1, 3, &parts), 0);
        assert_ne!(count_wrong(&task(Kind::Alltoall), 2, 3, &parts), 0);
    }
}
