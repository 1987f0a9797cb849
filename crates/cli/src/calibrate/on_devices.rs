//! Allreduces in device memory, by our own kernels and by NCCL.
//!
//! A plane is a setting of the whole job, so the ranks start anew for each: in every round each plane is set up,
//! measured at all sizes and ended, and the order of the planes alternates. A time is that of the slowest rank, as for
//! host memory (`measure`), and is taken through the engine: a request by name, and the wait for its result.

use std::time::Instant;

use anyhow::{Result, ensure};
use farandole::{Config, DevicePlaneChoice, Dtype, ReduceOp, Setup, World};
use farandole_engine::tables::Shelf;
use farandole_plan::table::{DeviceWay, Way};
use farandole_study::calibration::contest::DEVICE_WAYS;
use farandole_study::calibration::rounds::{Effort, ROUNDS, Showing, Times, median};

use crate::bench::contestant::Refusal;
use crate::bench::on_device::OnDevice;
use crate::bench::task::{Kind, Memory, Pace, Recording, Task, Through};

/// Iterations of each size and plane before the first that counts. NCCL connects its ranks in the first ones.
const WARMUP_ITERATIONS: usize = 3;

/// Most iterations of a round at one size.
const MAX_ITERATIONS: usize = 2000;

/// Measures both planes at all sizes. All ranks call this and get the same, with the last world.
pub(super) fn measure(sizes: &[u64], effort: Effort) -> Result<(World, Times)> {
    let new = |(bytes, way)| Showing { way: Way::OnDevices(way), bytes, rounds_us: Vec::new() };
    let mut times: Times = sizes.iter().flat_map(|&bytes| DEVICE_WAYS.map(|way| (bytes, way))).map(new).collect();
    let mut last = None;
    for turn in 0..ROUNDS {
        for place in 0..DEVICE_WAYS.len() {
            let way = DEVICE_WAYS[(turn + place) % DEVICE_WAYS.len()];
            // The ranks of a job meet once at a time.
            drop(last.take());
            let mut world = begin(way)?;
            let mut on_device = OnDevice::default();
            for showing in times.iter_mut().filter(|showing| showing.way == Way::OnDevices(way)) {
                let seconds = effort.seconds_per_size / (ROUNDS * DEVICE_WAYS.len()) as f64;
                showing.rounds_us.push(round(&mut world, &mut on_device, showing.bytes, seconds)?);
            }
            last = Some(world);
        }
    }
    let world = last.expect("invariant: there are rounds");
    Ok((world, times))
}

/// Starts this rank with one plane.
fn begin(way: DeviceWay) -> Result<World> {
    let plane = match way {
        DeviceWay::Own => DevicePlaneChoice::Own,
        DeviceWay::Nccl => DevicePlaneChoice::Nccl,
    };
    let config = Config { plane, ..Config::from_env()? };
    Ok(Setup::new().tables(Shelf::OFF).config(config).init()?)
}

/// The median time of an allreduce of this size, over iterations for about so many seconds.
fn round(world: &mut World, on_device: &mut OnDevice, bytes: u64, seconds: f64) -> Result<f64> {
    let task = task(bytes);
    on_device.prepare(world.engine(), &task).map_err(|refusal| match refusal {
        Refusal::Unsupported(why) => anyhow::anyhow!(why),
        Refusal::Failed(error) => error,
    })?;
    check(world, on_device)?;
    let began = Instant::now();
    for _ in 0..WARMUP_ITERATIONS {
        on_device.run(world.engine())?;
    }
    // All ranks make as many as the slowest can.
    let each = began.elapsed().as_secs_f64() / WARMUP_ITERATIONS as f64;
    let mut iterations = [((seconds / each) as u64).clamp(1, MAX_ITERATIONS as u64)];
    world.communicator().allreduce(&mut iterations, ReduceOp::Min)?;
    let mut times_ns = Vec::with_capacity(iterations[0] as usize);
    for _ in 0..iterations[0] {
        world.communicator().barrier()?;
        let began = Instant::now();
        on_device.run(world.engine())?;
        times_ns.push(began.elapsed().as_nanos() as u64);
    }
    world.communicator().allreduce(&mut times_ns, ReduceOp::Max)?;
    Ok(median(times_ns.into_iter().map(|ns| ns.max(1) as f64 / 1000.0).collect()))
}

/// Refuses a wrong result, and leaves zeros behind.
fn check(world: &mut World, on_device: &mut OnDevice) -> Result<()> {
    let fill = |value: f32, on_device: &mut OnDevice| {
        for input in on_device.inputs() {
            input.as_chunks_mut().0.iter_mut().for_each(|element: &mut [u8; 4]| *element = value.to_ne_bytes());
        }
    };
    fill(world.rank() as f32 + 1.0, on_device);
    on_device.run(world.engine())?;
    let sum = (world.size() * (world.size() + 1)) as f32 / 2.0;
    let is_right = |output: &[u8]| output.as_chunks().0.iter().all(|element| f32::from_ne_bytes(*element) == sum);
    ensure!(
        on_device.outputs()?.into_iter().all(is_right),
        "an allreduce in device memory gave a wrong result on rank {}: nothing is kept",
        world.rank()
    );
    fill(0.0, on_device);
    Ok(())
}

fn task(bytes: u64) -> Task {
    Task {
        kind: Kind::Allreduce,
        bytes,
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        pace: Pace::Aligned,
        memory: Memory::Cuda,
        through: Through::Engine,
        tensors: 1,
        recording: Recording::On,
    }
}
