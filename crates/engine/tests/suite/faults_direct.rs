//! As `faults`, for direct collectives: the small path, tiles in windows, buffers that all ranks map, rings, and links.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::time::Duration;

use crate::harness::strikes::{Run, strike_all, strike_everywhere};
use farandole_engine::connector::Medium;
use farandole_engine::{Communicator, DirectSettings, Error, Result};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_testing::lapse;
use farandole_transport::frame::Checksum;
use farandole_transport::memory::MemoryOptions;
use farandole_transport::stream::FrameOptions;

/// A run that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum What {
    /// An allreduce of this many elements: up to a thousand on the small path, beyond in tiles.
    Allreduce(usize),
    /// The same with an algorithm that is not chosen by itself.
    Forced(Algorithm, usize),
    /// On a buffer that all ranks map, which is made, used and given back.
    Mapped(usize),
    Broadcast,
    Allgather,
    ReduceScatter,
    Alltoall,
    /// Out of the peers' own memory.
    Read(Copied),
    Barrier,
}

#[derive(Clone, Copy, Debug)]
enum Copied {
    Allgather,
    Alltoall,
}

impl What {
    /// The collective once, with ones from every rank, and a look at the result.
    fn call(self, communicator: &mut Communicator) -> Result<()> {
        let size = communicator.size();
        let expect = |result: &[f32], each: usize| assert!(result.iter().all(|&x| x == each as f32), "{self:?}");
        let (ones, counts) = (vec![1f32; 600 * size], vec![600; size]);
        match self {
            What::Allreduce(elems) | What::Forced(_, elems) => {
                let mut data = vec![1f32; elems];
                communicator.allreduce(&mut data, ReduceOp::Sum)?;
                expect(&data, size);
            }
            What::Mapped(elems) => {
                let mut buffer = communicator.shared_buffer(elems * 4)?;
                buffer.elements_mut::<f32>().fill(1.0);
                communicator.allreduce_shared(&mut buffer, Dtype::F32, ReduceOp::Sum)?;
                expect(buffer.elements(), size);
                communicator.drop_shared_buffer(buffer);
            }
            What::Broadcast => {
                let mut data = vec![if communicator.rank() == Rank(0) { 1f32 } else { 0.0 }; 1500];
                communicator.broadcast(&mut data, Rank(0))?;
                expect(&data, 1);
            }
            What::Allgather | What::Read(Copied::Allgather) => {
                let mut all = vec![0f32; 600 * size];
                communicator.allgather(&ones[..600], &counts, &mut all)?;
                expect(&all, 1);
            }
            What::ReduceScatter => {
                let mut own = vec![0f32; 600];
                communicator.reduce_scatter(&ones, &counts, &mut own, ReduceOp::Sum)?;
                expect(&own, size);
            }
            What::Alltoall | What::Read(Copied::Alltoall) => {
                let mut received = vec![0f32; 600 * size];
                communicator.alltoall(&ones, &counts, &mut received, &counts)?;
                expect(&received, 1);
            }
            What::Barrier => communicator.barrier()?,
        }
        Ok(())
    }
}

/// Another one behind it, because the second operation relies on marks of the first; then whatever it takes for
/// everybody to hear of a fault.
///
/// Ranks that share memory listen to each other's control lines only when they have waited long enough to sleep. So one
/// after the other comes late, and later and later, until everybody has heard of a fault that all must hear of. On a
/// busy machine a rank may be let run so seldom that it finds nobody late, and each of the yields before it sleeps may
/// take half a millisecond.
fn play(run: &Run, communicator: &mut Communicator, what: What) -> Result<()> {
    what.call(communicator)?;
    let next = if matches!(what, What::Allreduce(6_000)) { What::Allreduce(1_500) } else { what };
    next.call(communicator)?;
    run.main_part_ends(communicator.rank());
    What::Alltoall.call(communicator)?;
    let rounds = if run.must_fail() { 1000 } else { run.size + 2 };
    for round in 0..rounds {
        if communicator.rank().index() == round % run.size {
            lapse("a rank that is late", Duration::from_millis(2 << (round / (2 * run.size)).min(7)));
        }
        communicator.barrier()?;
    }
    Ok(())
}

fn ranks(run: &Run, what: What) -> Vec<Option<Error>> {
    let algorithm = match what {
        What::Forced(algorithm, _) => Some(algorithm),
        _ => None,
    };
    // The parts have 2400 bytes, and allgathers read those of sixteen times the size.
    let single_copy_bytes = if matches!(what, What::Read(_)) { 128 } else { usize::MAX };
    let deadline = run.deadline;
    let settings = DirectSettings { deadline, small_bytes: 4000, tile_bytes: 4096, single_copy_bytes, algorithm };
    let (results, collected) = mpsc::channel();
    let threads: Vec<_> = (0..run.size)
        .map(|rank| {
            let (mut connector, run, results) =
                (run.thread_world.enter(Rank::from(rank)), run.clone(), results.clone());
            std::thread::spawn(move || {
                let mut communicator = Communicator::join(&mut connector, settings, HANGS).unwrap();
                let _ = results.send((rank, play(&run, &mut communicator, what).err()));
            })
        })
        .collect();
    drop(results);
    let mut errors: Vec<Option<Error>> = (0..run.size).map(|_| None).collect();
    for _ in 0..run.size {
        let (rank, error) = collected.recv_timeout(HANGS).expect("a rank hangs or has panicked");
        errors[rank] = error;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    errors
}

/// Strikes every point of this collective in worlds of these sizes.
fn strike(medium: Medium, sizes: std::ops::RangeInclusive<usize>, what: What) -> usize {
    let text = format!("direct {what:?} over {medium:?}");
    sizes.map(|size| strike_everywhere(&text, size, medium, &|run| ranks(run, what))).sum()
}

fn strike_in_windows(what: What) -> usize {
    strike(Medium::Windows, 2..=4, what)
}

// A fault at any point ends in a named error on all survivors. One test for each path, so that they share the cores.

#[test]
fn faults_on_the_small_path_are_named() {
    strike_all(&[What::Allreduce(1), What::Allreduce(100), What::Barrier], 300, strike_in_windows);
}

#[test]
fn faults_between_tiles_are_named() {
    // Six tiles, which is more than there are slots.
    let whats = [What::Allreduce(6_000), What::Forced(Algorithm::WindowWhole, 1500)];
    strike_all(&whats, 300, strike_in_windows);
}

#[test]
fn faults_around_shared_buffers_are_named() {
    strike_all(&[What::Mapped(2_000)], 100, strike_in_windows);
}

#[test]
fn faults_around_reads_of_other_ranks_memory_are_named() {
    let whats = [What::Read(Copied::Allgather), What::Read(Copied::Alltoall)];
    strike_all(&whats, 200, strike_in_windows);
}

#[test]
fn faults_in_windows_of_other_collectives_are_named() {
    let whats = [What::Broadcast, What::Allgather, What::ReduceScatter, What::Alltoall];
    strike_all(&whats, 300, strike_in_windows);
}

#[test]
fn faults_on_links_are_named() {
    let shape = FrameOptions { checksum: Checksum::Crc32c, ..FrameOptions::default() };
    let pipes = Medium::Pipes(MemoryOptions { shape, ..MemoryOptions::default() });
    let allreduces = [What::Allreduce(1), What::Allreduce(100), What::Allreduce(6_000)];
    let others = [What::Broadcast, What::Allgather, What::ReduceScatter, What::Alltoall, What::Barrier];
    // The schedules are those of named collectives, so one world will do.
    strike_all(&[&allreduces[..], &others].concat(), 300, |what| strike(pipes, 3..=3, what));
}
