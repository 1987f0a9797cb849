//! Random programs: whatever ranks do, in whatever order things arrive, all run the same and nobody gets stuck.
//!
//! A program is a list of sections. A section repeats one set of requests, as a training loop does, with now and then
//! an iteration that is different. All ranks run the same program in the sense that matters: between two waits they
//! make the same set of requests, each in its own order.

use std::sync::Arc;

use farandole_plan::agree::Settings;
use farandole_plan::fuse::BatchFusion;
use farandole_plan::request::{Batch, Request};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp};

use crate::sim::{Random, Sim, Step, request};

struct Totals {
    replayed: usize,
    ran: usize,
    abandoned: usize,
    rounds: u64,
}

fn any_collective(random: &mut Random, size: usize) -> Collective {
    let op = ReduceOp::ALL[random.below(6)];
    match random.below(10) {
        0 => Collective::Allgather,
        1 => Collective::Broadcast { root: Rank::from(random.below(size)) },
        2 => Collective::Alltoall { splits: None },
        3 if op != ReduceOp::Adasum => Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 },
        4 => Collective::Barrier,
        5 => Collective::Allreduce { op, prescale: 0.5, postscale: 1.0 },
        _ => Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 },
    }
}

fn any_request(random: &mut Random, size: usize, name: String) -> Request {
    let rows = (random.below(4) * size) as u64;
    let collective = any_collective(random, size);
    let mut made = request(&name, collective, vec![rows, 1 + random.below(40) as u64]);
    made.dtype = if random.one_in(3) { Dtype::F16 } else { Dtype::F32 };
    made.priority = random.below(3) as i32;
    made
}

/// The requests of one section, a few of them in a batch.
fn any_set(random: &mut Random, size: usize, prefix: &str) -> Vec<Request> {
    let count = 1 + random.below(8);
    let mut set: Vec<Request> = (0..count).map(|n| any_request(random, size, format!("{prefix}{n}"))).collect();
    if random.one_in(2) && count > 1 {
        let members = 2 + random.below(count - 1);
        let batch = Batch { name: format!("{prefix}batch").into(), members: members as u32 };
        let first = random.below(count - members + 1);
        set[first..first + members].iter_mut().for_each(|request| request.batch = Some(batch.clone()));
    }
    set
}

/// One iteration: the same requests on the given ranks, each in its own order, with waits at the same places.
fn push_iteration(sim: &mut Sim, ranks: &[usize], set: &[Request], wait_after: Option<usize>) {
    let ordered = sim.random.one_in(2);
    let (before, after) = set.split_at(wait_after.unwrap_or(0).min(set.len()));
    let mismatch = sim.random.one_in(25).then(|| (ranks[sim.random.below(ranks.len())], sim.random.below(set.len())));
    for rank in ranks {
        for part in [before, after] {
            let mut part: Vec<Request> = part.to_vec();
            if let Some((_, at)) = mismatch.filter(|(wrong, _)| wrong == rank)
                && let Some(wrong) = part.iter_mut().find(|request| request.name == set[at].name)
                && wrong.collective != Collective::Barrier
            {
                wrong.dtype = Dtype::I64;
            }
            if !ordered {
                sim.random.shuffle(&mut part);
            }
            sim.push(*rank, part.into_iter().map(Step::Submit));
            sim.push(*rank, [Step::WaitAllBut(0)]);
        }
    }
}

/// A batch must be submitted without a wait in between, or it never becomes complete.
fn wait_is_possible(set: &[Request], wait_after: usize) -> bool {
    let (before, after) = set.split_at(wait_after);
    !before.iter().any(|request| request.batch.is_some()) || !after.iter().any(|request| request.batch.is_some())
}

fn push_section(sim: &mut Sim, epoch: &mut usize) {
    let size = sim.size();
    let all: Vec<usize> = (0..size).collect();
    let prefix = format!("{epoch}.");
    let set = any_set(&mut sim.random, size, &prefix);
    let wait_after = Some(sim.random.below(set.len() + 1)).filter(|at| wait_is_possible(&set, *at));
    let iterations = 1 + sim.random.below(12);
    for iteration in 0..iterations {
        let mut this = set.clone();
        match sim.random.below(20) {
            // Something is left out, but not of a batch.
            0 => this.retain(|request| request.batch.is_some()),
            // Something is new.
            1 => this.push(any_request(&mut sim.random, size, format!("{prefix}new{iteration}"))),
            // Something is different.
            2 if this[0].batch.is_none() => this[0].shape[1] += 1,
            _ => {}
        }
        if !this.is_empty() {
            let wait_after = wait_after.filter(|at| *at <= this.len() && wait_is_possible(&this, *at));
            push_iteration(sim, &all, &this, wait_after);
        }
    }
    if sim.random.one_in(4) {
        push_uneven_end(sim, &set, &prefix);
        *epoch += 1;
    }
}

/// Ranks run out of data one after the other and join.
fn push_uneven_end(sim: &mut Sim, set: &[Request], prefix: &str) {
    let mut left: Vec<usize> = (0..sim.size()).collect();
    sim.random.shuffle(&mut left);
    while let Some(rank) = left.pop() {
        sim.push(rank, [Step::Submit(request(&format!("{prefix}join"), Collective::Join, vec![]))]);
        sim.push(rank, [Step::WaitAllBut(0)]);
        for _ in 0..sim.random.below(3) {
            if !left.is_empty() {
                let ranks = left.clone();
                push_iteration(sim, &ranks, set, None);
            }
        }
    }
}

fn run_program(seed: u64, totals: &mut Totals) {
    let mut random = Random(seed);
    let settings = Settings {
        threshold_bytes: [0, 256, 4096, 64 << 20][random.below(4)],
        stage_below_bytes: [0, 1 << 20][random.below(2)],
        batches: if seed.is_multiple_of(3) { BatchFusion::Apart } else { BatchFusion::WithOthers },
        ..Settings::default()
    };
    let size = 1 + random.below(5);
    let mut sim = Sim::new(size, &settings, seed);
    sim.tells_waits = seed.is_multiple_of(2);
    if sim.random.one_in(3) {
        let slow = sim.random.below(size);
        sim.slowness[slow] = 50;
    }
    let mut epoch = 0;
    for _ in 0..1 + sim.random.below(4) {
        push_section(&mut sim, &mut epoch);
    }
    if sim.random.one_in(4) {
        for rank in 0..size {
            sim.push(rank, [Step::Submit(request("tail", Collective::Allgather, vec![2]))]);
        }
        let closer = sim.random.below(size);
        sim.push(closer, [Step::Close]);
    }
    sim.run();
    sim.check();
    totals.replayed += sim.replayed(0);
    totals.ran += sim.ran(0).len();
    totals.abandoned += sim.abandoned;
    totals.rounds += sim.ran(0).last().map_or(0, |(operation, _)| u64::from(operation.round()));
}

#[test]
fn random_programs_run_alike_on_all_ranks_and_end() {
    let mut totals = Totals { replayed: 0, ran: 0, abandoned: 0, rounds: 0 };
    for seed in 0..3000 {
        let running = Seed(seed);
        run_program(seed, &mut totals);
        std::mem::forget(running);
    }
    // The programs must have been such that the interesting things happened.
    assert!(totals.replayed * 5 > totals.ran, "{} of {} buckets were replayed", totals.replayed, totals.ran);
    assert!(totals.rounds > 1000, "{} breaks", totals.rounds);
    assert!(totals.abandoned > 100, "{} buckets abandoned", totals.abandoned);
}

/// Says on the way out which program failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        eprintln!("the failing program has seed {}", self.0);
    }
}

#[test]
fn steady_iterations_need_no_messages_in_any_world() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let size = 1 + random.below(6);
        let mut sim = Sim::new(size, &Settings::default(), seed);
        let set: Vec<Request> = any_set(&mut random, size, "t");
        let iterate = |sim: &mut Sim, count: usize| {
            for _ in 0..count {
                for rank in 0..size {
                    let mut set = set.clone();
                    sim.random.shuffle(&mut set);
                    sim.push(rank, set.into_iter().map(Step::Submit));
                    sim.push(rank, [Step::WaitAllBut(0)]);
                }
            }
            sim.run();
        };
        iterate(&mut sim, 4);
        let messages = sim.messages;
        iterate(&mut sim, 50);
        sim.check();
        assert!((0..size).all(|rank| sim.member(rank).is_replaying()), "seed {seed}");
        assert_eq!(sim.messages, messages, "seed {seed}");
        let rounds: Arc<[u32]> = sim.ran(0).iter().map(|(operation, _)| operation.round()).collect();
        assert!(rounds.iter().all(|round| *round == 0), "seed {seed}");
    }
}
