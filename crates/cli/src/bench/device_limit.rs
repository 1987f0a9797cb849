//! What a GPU could do at best: the time in which its memory carries what an allreduce must move.
//!
//! Every rank's tensor is read once and written once, whoever does it. A copy of as many bytes reads and writes the
//! same, so the bound for a size is the time of a copy, within the device, of the tensors of all ranks that share it.
//! It is taken on the device's own clock; launching and synchronising are not in it.

use anyhow::{Context, Result, bail, ensure};
use farandole_device::{Allocation, Device, DeviceCopy, Stream, cuda};

use super::entrant::{Entrant, RoundOutcome};
use super::limit::Rates;
use super::task::{Kind, Task};

/// Bytes that are copied to measure the rate: far more than a device's cache.
const RATE_BYTES: usize = 512 << 20;

/// Copies that are made for that; the best one counts, because a disturbance only ever slows.
const RATE_REPETITIONS: usize = 5;

/// The bound as a contestant, so that it is measured among the others and under the same disturbances.
pub(crate) struct DeviceLimit {
    device: Device,
    stream: Stream,
    /// Ranks that share the first device; others have no more.
    ranks: usize,
    buffers: Option<(Allocation, Allocation)>,
}

impl DeviceLimit {
    /// For so many ranks, which take the GPUs of this machine in turn.
    pub(crate) fn open(ranks: usize) -> Result<DeviceLimit> {
        let devices = cuda::list().context("--limit: measuring what a GPU can do")?.len();
        if devices == 0 {
            bail!("--limit: this machine has no GPU");
        }
        DeviceLimit::of(cuda::open(0)?, ranks.div_ceil(devices))
    }

    fn of(device: Device, ranks: usize) -> Result<DeviceLimit> {
        let stream = device.stream()?;
        Ok(DeviceLimit { device, stream, ranks, buffers: None })
    }

    /// How fast the device copies.
    pub(crate) fn rates(&mut self) -> Result<Rates> {
        let times_ns = self.copies(RATE_BYTES, 1, RATE_REPETITIONS)?;
        let best_ns = times_ns.into_iter().min().unwrap_or(1).max(1);
        self.buffers = None;
        Ok(Rates { copy_bytes_per_s: RATE_BYTES as f64 / (best_ns as f64 * 1e-9), add_bytes_per_s: None })
    }

    /// Copies so many pieces of so many bytes, again and again, and says how long each time took.
    fn copies(&mut self, bytes: usize, pieces: usize, repetitions: usize) -> Result<Vec<u64>> {
        let stride = bytes.next_multiple_of(512);
        let whole = stride * pieces;
        if self.buffers.as_ref().is_none_or(|(source, _)| source.len_bytes() != whole) {
            self.buffers = None;
            self.buffers = Some((self.device.allocate(whole)?, self.device.allocate(whole)?));
        }
        let (source, target) = self.buffers.as_ref().context("invariant: the buffers were just made")?;
        let copy = |piece: usize| {
            let offset = (piece * stride) as u64;
            DeviceCopy { source: source.address() + offset, target: target.address() + offset, bytes: bytes as u64 }
        };
        let copies: Vec<DeviceCopy> = (0..pieces).map(copy).collect();
        let mut times_ns = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let begun = self.stream.record_timed()?;
            self.stream.copy(&copies)?;
            let ended = self.stream.record_timed()?;
            while !ended.has_happened()? {
                std::hint::spin_loop();
            }
            times_ns.push(ended.ns_since(&begun)?.context("invariant: what has happened has a time")?);
        }
        Ok(times_ns)
    }
}

impl Entrant for DeviceLimit {
    fn word(&self) -> &str {
        "limit"
    }

    fn product(&self) -> &str {
        "copies on the device"
    }

    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome> {
        ensure!(task.kind == Kind::Allreduce, "the bound is defined for allreduce");
        let mut times_ns = self.copies(task.bytes as usize, self.ranks * task.tensors, warmup + iterations)?;
        times_ns.drain(..warmup);
        Ok(RoundOutcome::Measured { times_ns, wrong: 0 })
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::pretend::Pretend;

    use super::*;

    #[test]
    fn the_bound_of_a_device_is_measured_on_its_clock() {
        let mut limit = DeviceLimit::of(Pretend::new().device(), 2).unwrap();
        for (bytes, pieces) in [(4, 2), (1003, 6), (4, 2)] {
            let times_ns = limit.copies(bytes, pieces, 3).unwrap();
            assert!(times_ns.len() == 3 && times_ns.iter().all(|ns| *ns >= 1000), "{times_ns:?}");
        }
    }
}
