//! The rounds: every way at every size, in turns, for as long as it takes to tell them apart.
//!
//! All ranks run this as one program. A time is that of the slowest rank, found by an allreduce of the times of a
//! round, so all ranks hold the same numbers and take the same decisions (`rounds`). At each size every way is tried
//! first. Then the ways take turns in *rounds*, and the order rotates, so that no way always follows the same
//! predecessor.

use std::time::Instant;

use anyhow::Result;
use farandole::{Communicator, ReduceOp};
use farandole_plan::choose::{AlgorithmLimits, Choices};
use farandole_plan::table::Way;
use farandole_study::calibration::contest::{Contest, only};
use farandole_study::calibration::rounds::{
    Effort, ROUNDS, Showing, Times, WARMUP_ITERATIONS, hopeful, median, unsure,
};

use super::arena::Arena;

/// Iterations of the first try, which only says how long one takes.
const TRY_ITERATIONS: usize = 3;

/// Measures all ways at all sizes. All ranks call this and get the same.
pub(super) fn all(
    communicator: &mut Communicator,
    contests: &[Contest],
    sizes: &[u64],
    effort: Effort,
) -> Result<Times> {
    let mut times = Vec::new();
    for &bytes in sizes {
        communicator.agree_on_table(None)?;
        let usual: Vec<(Way, Vec<Way>)> =
            contests.iter().map(|contest| (chosen_now(contest, bytes, communicator), contest.ways.clone())).collect();
        let mut arena = Arena::new(bytes, contests);
        let mut showings = try_all(communicator, &mut arena, contests, bytes)?;
        let hopeful = hopeful(&showings, &usual);
        rounds(communicator, &mut arena, &mut showings, &hopeful, effort)?;
        let unsure = unsure(&showings, &usual);
        if !unsure.is_empty() {
            rounds(communicator, &mut arena, &mut showings, &unsure, effort)?;
        }
        times.extend(showings);
    }
    communicator.agree_on_table(None)?;
    Ok(times)
}

/// What the communicator chooses now at a size, and an engine with the same table would.
pub(super) fn chosen_now(contest: &Contest, bytes: u64, communicator: &Communicator) -> Way {
    let choices = Choices::new(communicator.table().cloned(), communicator.topology(), AlgorithmLimits::default());
    contest.chosen(bytes, &choices, |bytes| communicator.algorithm_for(bytes))
}

/// Checks every way's result and finds out roughly how long it takes.
fn try_all(
    communicator: &mut Communicator,
    arena: &mut Arena,
    contests: &[Contest],
    bytes: u64,
) -> Result<Vec<Showing>> {
    let mut showings: Vec<Showing> = Vec::new();
    for way in contests.iter().flat_map(|contest| &contest.ways) {
        if showings.iter().any(|showing| showing.way == *way) {
            continue;
        }
        communicator.agree_on_table(Some(&only(*way, &communicator.topology().clone())))?;
        arena.check(communicator, *way)?;
        let tried_us = round(communicator, arena, *way, TRY_ITERATIONS)?;
        showings.push(Showing { way: *way, bytes, rounds_us: vec![tried_us] });
    }
    Ok(showings)
}

/// Rounds of these ways, in turns. The first ones replace what the try has shown.
fn rounds(
    communicator: &mut Communicator,
    arena: &mut Arena,
    showings: &mut [Showing],
    which: &[usize],
    effort: Effort,
) -> Result<()> {
    let iterations: Vec<usize> =
        which.iter().map(|&index| effort.iterations(which.len(), showings[index].time_us())).collect();
    for &index in which {
        let rounds_us = &mut showings[index].rounds_us;
        if rounds_us.len() == 1 {
            rounds_us.clear();
        }
    }
    for turn in 0..ROUNDS {
        for place in 0..which.len() {
            let place = (turn + place) % which.len();
            let showing = &mut showings[which[place]];
            communicator.agree_on_table(Some(&only(showing.way, &communicator.topology().clone())))?;
            showing.rounds_us.push(round(communicator, arena, showing.way, iterations[place])?);
        }
    }
    Ok(())
}

/// The median time of some iterations, each started together and taking as long as its slowest rank.
fn round(communicator: &mut Communicator, arena: &mut Arena, way: Way, iterations: usize) -> Result<f64> {
    for _ in 0..WARMUP_ITERATIONS {
        arena.run(communicator, way)?;
    }
    let mut times_ns = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        communicator.barrier()?;
        let began = Instant::now();
        arena.run(communicator, way)?;
        times_ns.push(began.elapsed().as_nanos() as u64);
    }
    communicator.allreduce(&mut times_ns, ReduceOp::Max)?;
    // A clock that stands still between two looks would make a time of nothing.
    Ok(median(times_ns.into_iter().map(|ns| ns.max(1) as f64 / 1000.0).collect()))
}
