//! What this machine could do at best: rates of memory and the least time that an allreduce can take.
//!
//! The bound for a size is the time of its unavoidable memory traffic and of nothing else. On the caller's own memory
//! each rank must read its `size` bytes once and write them once; whatever passes between ranks can stay in a cache. On
//! mapped buffers each rank reads its shard, `size / ranks` bytes, of every buffer and writes the result back to every
//! buffer: the same amount in another order. So the bound is the same for both: one pass in place over `size` bytes, in
//! the order that memory likes best, by all ranks at once, since they share the memory. Once a size fits into the
//! caches the bound becomes that of the caches; synchronisation is never part of it.
//!
//! Ranks are threads here. Memory does not know the difference, and threads can be started and awaited without a
//! contestant's help. Where every rank has a core, a pass takes as long as its slowest thread. Where ranks outnumber
//! cores and take turns, it takes from the first thread's start to the last one's end.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::element::from_bytes_mut;
use farandole_tensor::{Fold, OwnedBytes};

use super::entrant::{Entrant, RoundOutcome};
use super::task::{Kind, Task};
use crate::peer::start::Pin;

/// Bytes of each array in the measurement of rates: beyond the last-level cache of any server together with its
/// partner.
const RATE_BYTES: usize = 128 << 20;

/// Repetitions in the measurement of rates; the best one counts, because a disturbance only ever slows.
const RATE_REPETITIONS: usize = 5;

/// The bound is one of memory and hardly depends on the element type; this is the one that training uses most.
const DTYPE: Dtype = Dtype::F32;
const ELEM_BYTES: usize = DTYPE.size_bytes();

/// Rates of memory with all ranks at work, in bytes of the target per second, summed over the ranks.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Rates {
    /// `a = b`.
    pub(crate) copy_bytes_per_s: f64,
    /// `a += b`; not known of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) add_bytes_per_s: Option<f64>,
}

/// Measures the rates with this many ranks.
pub(crate) fn rates(ranks: usize, pin: Pin) -> Rates {
    let bytes = RATE_BYTES / ranks / ELEM_BYTES * ELEM_BYTES;
    let mut pairs: Vec<_> = (0..ranks).map(|_| (touched(bytes), touched(bytes))).collect();
    let mut best = |work: &(dyn Fn(&mut [u8], &[u8]) + Sync)| {
        let shares: Vec<_> = pairs.iter_mut().collect();
        let times = timed(shares, RATE_REPETITIONS, pin, |(target, source)| work(target, source));
        let best_ns = times.into_iter().min().expect("at least one repetition");
        (bytes * ranks) as f64 / (best_ns as f64 * 1e-9)
    };
    let add = Fold::new(DTYPE, ReduceOp::Sum);
    let copy_bytes_per_s = best(&|a, b| a.copy_from_slice(b));
    Rates { copy_bytes_per_s, add_bytes_per_s: Some(best(&|a, b| add.fold(a, b))) }
}

/// The bound as a contestant, so that it is measured among the others and under the same disturbances.
pub(crate) struct Limit {
    ranks: usize,
    pin: Pin,
    buffers: Vec<OwnedBytes>,
}

impl Limit {
    pub(crate) fn new(ranks: usize, pin: Pin) -> Limit {
        Limit { ranks, pin, buffers: Vec::new() }
    }

    fn prepare(&mut self, bytes: u64) {
        let bytes = (bytes as usize).next_multiple_of(ELEM_BYTES);
        if self.buffers.first().map(|buffer| buffer.len()) != Some(bytes) {
            self.buffers.clear();
            self.buffers.resize_with(self.ranks, || touched(bytes));
        }
    }
}

impl Entrant for Limit {
    fn word(&self) -> &str {
        "limit"
    }

    fn product(&self) -> &str {
        "least memory traffic"
    }

    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome> {
        ensure!(task.kind == Kind::Allreduce, "the bound is defined for allreduce");
        self.prepare(task.bytes);
        let shares = self.buffers.iter_mut().collect();
        let mut times_ns = timed(shares, warmup + iterations, self.pin, |buffer: &mut &mut OwnedBytes| pass(buffer));
        times_ns.drain(..warmup);
        Ok(RoundOutcome::Measured { times_ns, wrong: 0 })
    }
}

/// Lets one thread for each share work on it, all at once, `repetitions` times, and says how long each repetition took.
fn timed<S: Send>(shares: Vec<S>, repetitions: usize, pin: Pin, work: impl Fn(&mut S) + Sync) -> Vec<u64> {
    let gate = Gate { threads: shares.len(), arrived: AtomicUsize::new(0) };
    let origin = Instant::now();
    let since_ns = || origin.elapsed().as_nanos() as u64;
    let run_share = |rank: usize, mut share: S| -> Vec<(u64, u64)> {
        // A machine that refuses to bind still has a bound; it is only measured with more noise.
        let _ = pin.bind_this_thread(rank);
        let mut spans = Vec::with_capacity(repetitions);
        for repetition in 0..repetitions {
            gate.pass(repetition);
            let start = since_ns();
            work(&mut share);
            spans.push((start, since_ns()));
        }
        spans
    };
    let spans: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
        let run_share = &run_share;
        let ranks = shares.into_iter().enumerate();
        let threads: Vec<_> = ranks.map(|(rank, share)| scope.spawn(move || run_share(rank, share))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pass over memory does not panic")).collect()
    });
    let crowded = spans.len() > std::thread::available_parallelism().map_or(1, usize::from);
    let of_repetition = |i: usize| spans.iter().map(move |rank| rank[i]);
    (0..repetitions)
        .map(|i| {
            let first_start = of_repetition(i).map(|(start, _)| start).min().unwrap_or(0);
            let since = |start: u64| if crowded { first_start } else { start };
            of_repetition(i).map(|(start, end)| end - since(start)).max().unwrap_or(0)
        })
        .collect()
}

/// Nobody passes before everybody has come. It yields instead of sleeping, so that threads leave it together: waking
/// from sleep takes longer than a pass over a small buffer.
struct Gate {
    threads: usize,
    /// Arrivals of all threads at all passages. Every thread adds to it and reads it; it orders nothing but itself,
    /// since the threads share no other data.
    arrived: AtomicUsize,
}

impl Gate {
    fn pass(&self, passage: usize) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        while self.arrived.load(Ordering::Relaxed) < (passage + 1) * self.threads {
            std::thread::yield_now();
        }
    }
}

/// A buffer whose pages are all there.
fn touched(bytes: usize) -> OwnedBytes {
    let mut buffer = OwnedBytes::zeroed(bytes);
    buffer.fill(0);
    buffer
}

/// Reads and writes every element once. The factor is hidden from the compiler, which would otherwise leave it out.
fn pass(buffer: &mut [u8]) {
    let one = black_box(1.0);
    let elements =
        from_bytes_mut::<f32>(buffer).expect("invariant: a buffer starts on a cache line and holds whole elements");
    for element in elements {
        *element *= one;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_leaves_the_elements_as_they_are() {
        let mut buffer = OwnedBytes::from_slice(&1.5f32.to_ne_bytes().repeat(5001));
        let before = buffer.to_vec();
        pass(&mut buffer);
        assert_eq!(*buffer, *before);
    }

    #[test]
    fn the_bound_is_measured_for_every_size() {
        let mut limit = Limit::new(2, Pin::Free);
        for bytes in [1, 4, 10_000] {
            limit.prepare(bytes);
            assert!(limit.buffers.iter().all(|buffer| buffer.len() as u64 >= bytes));
            let shares = limit.buffers.iter_mut().collect();
            let times = timed(shares, 3, Pin::Free, |buffer: &mut &mut OwnedBytes| pass(buffer));
            assert_eq!(times.len(), 3);
        }
    }

    #[test]
    fn every_repetition_has_a_time() {
        let times = timed(vec![(), (), ()], 10, Pin::Free, |_| std::thread::yield_now());
        assert_eq!(times.len(), 10);
    }
}
