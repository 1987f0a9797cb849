//! Jobs whose every number is known, by their illness.
#![allow(dead_code, reason = "not every test uses every job")]

mod sketch;

use farandole_insight::history::{
    Activity, CacheLookups, DeviceHistory, DeviceTime, Gap, History, InputTime, Lack, Phase, PhaseKind, RankHistory,
};
use farandole_trace::event::{Collective, DeviceCache, DeviceStep, InputStage};
pub(crate) use sketch::{Cost, Sketch};

/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// An exchange that takes 2 ms once everybody is there.
pub(crate) const EXCHANGE: Cost =
    Cost { agreement_ns: MS / 2, packing_ns: MS / 4, transfer_ns: MS, unpacking_ns: MS / 4 };

/// Every job, with its name.
pub(crate) fn all() -> Vec<(&'static str, History)> {
    vec![
        ("perfect", perfect()),
        ("starved", starved()),
        ("starved, with figures", starved_with_figures()),
        ("one starves", one_starves()),
        ("own code", own_code()),
        ("own code on one rank", own_code_on_one()),
        ("a little own code", a_little_own_code()),
        ("late", late()),
        ("late in forward", late_in_forward()),
        ("late by turns", late_by_turns()),
        ("sequential", sequential()),
        ("unmarked evaluation", unmarked_evaluation()),
        ("slow link", slow_link()),
        ("tiny tensors", tiny_tensors()),
        ("one bucket", one_bucket()),
        ("checkpoints", checkpoints()),
        ("learned orders off", learned_orders_off()),
        ("four ranks on a slow link", four_on_a_slow_link()),
        ("gradients on a device", on_a_device()),
        ("devices that starve", devices_that_starve()),
        ("crowded cores", crowded()),
        ("little losses", little_losses()),
        ("two of four recorded", two_of_four()),
        ("everything", everything()),
    ]
}

/// Ten iterations of four ranks, each of which is made by the function.
fn iterations(size: usize, mut body: impl FnMut(&mut Sketch, u64)) -> History {
    let mut sketch = Sketch::new(size);
    for number in 0..10 {
        sketch.iteration(number, number / 5);
        body(&mut sketch, number);
    }
    sketch.finish()
}

pub(crate) fn perfect() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.compute(rank, 50 * MS));
        sketch.allreduce(1 << 20, Cost::default());
    })
}

/// 60 ms of input, 38 ms of work, 2 ms of exchange.
pub(crate) fn starved() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.input(rank, 60 * MS));
        (0..4).for_each(|rank| sketch.compute(rank, 38 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
    })
}

/// The same, with a loader that says what it does: 3 workers make 16 samples for each iteration of 100 ms, which is
/// 18.75 ms of a worker for each.
pub(crate) fn starved_with_figures() -> History {
    let mut history = starved();
    for rank in &mut history.ranks {
        rank.cores = Some(32);
        for iteration in &rank.iterations {
            let stages = [
                (InputStage::Read, 28 * MS, 16 * 60_000),
                (InputStage::Decode, 256 * MS, 16 * 500 * 375),
                (InputStage::Change, 16 * MS, 16 * 32 * 32),
            ];
            for (stage, ns, amount) in stages {
                let time = InputTime { at_ns: iteration.from_ns, stage, workers: 3, samples: 16, ns, amount };
                rank.input.stages.push(time);
            }
        }
    }
    history
}

pub(crate) fn one_starves() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.input(rank, if rank == 2 { 40 * MS } else { MS }));
        (0..4).for_each(|rank| sketch.compute(rank, 40 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
    })
}

/// 68 ms of work, 30 ms of logging, 2 ms of exchange.
pub(crate) fn own_code() -> History {
    iterations(4, |sketch, number| {
        (0..4).for_each(|rank| sketch.phase(rank, "forward", PhaseKind::Training, 68 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
        let place = if number == 9 { "train.py:50 in main" } else { "train.py:42 in <log>" };
        (0..4).for_each(|rank| sketch.own(rank, 30 * MS, Some(place)));
    })
}

/// The same where rank 0 alone logs, at a place that nobody knows.
pub(crate) fn own_code_on_one() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.own(rank, if rank == 0 { 30 * MS } else { MS }, None));
        (0..4).for_each(|rank| sketch.phase(rank, "forward", PhaseKind::Training, 67 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
    })
}

/// 96 ms of work, 2 ms of own code, 2 ms of exchange.
pub(crate) fn a_little_own_code() -> History {
    iterations(2, |sketch, _| {
        (0..2).for_each(|rank| sketch.compute(rank, 96 * MS));
        sketch.allreduce(1 << 20, EXCHANGE);
        (0..2).for_each(|rank| sketch.own(rank, 2 * MS, None));
    })
}

/// Rank 3 works 98 ms where the others work 48, 45 of them in forward and 5 in backward.
pub(crate) fn late_in_forward() -> History {
    iterations(4, |sketch, _| {
        for rank in 0..4 {
            let more = if rank == 3 { (45 * MS, 5 * MS) } else { (0, 0) };
            sketch.phase(rank, "forward", PhaseKind::Training, 16 * MS + more.0);
            sketch.phase(rank, "backward", PhaseKind::Training, 32 * MS + more.1);
        }
        sketch.allreduce(1 << 20, EXCHANGE);
    })
}

/// Rank 3 works 98 ms where the others work 48, and the exchange takes 2 ms.
pub(crate) fn late() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.compute(rank, if rank == 3 { 98 * MS } else { 48 * MS }));
        sketch.allreduce(1 << 20, EXCHANGE);
    })
}

/// One rank after the other works 80 ms where the others work 40.
pub(crate) fn late_by_turns() -> History {
    let mut sketch = Sketch::new(4);
    for number in 0..12 {
        sketch.iteration(number, 0);
        (0..4).for_each(|rank| sketch.compute(rank, if number % 4 == rank as u64 { 80 * MS } else { 40 * MS }));
        sketch.allreduce(1 << 20, Cost::default());
    }
    sketch.finish()
}

/// Ten iterations of 10 ms; twice 40 ms of evaluation on rank 0.
pub(crate) fn sequential() -> History {
    iterations(4, |sketch, number| {
        (0..4).for_each(|rank| sketch.compute(rank, 10 * MS));
        sketch.allreduce(1 << 20, Cost::default());
        if number % 5 == 4 {
            sketch.phase(0, "evaluation", PhaseKind::Evaluation, 40 * MS);
            sketch.allreduce(4, Cost::default());
        }
    })
}

pub(crate) fn unmarked_evaluation() -> History {
    iterations(4, |sketch, number| {
        (0..4).for_each(|rank| sketch.compute(rank, 10 * MS));
        sketch.allreduce(1 << 20, Cost::default());
        if number == 4 {
            sketch.compute(0, 80 * MS);
            sketch.allreduce(4, Cost::default());
        }
    })
}

/// 20 ms of work, 80 ms on the way, two hosts.
pub(crate) fn slow_link() -> History {
    let mut history = iterations(2, |sketch, _| {
        (0..2).for_each(|rank| sketch.compute(rank, 20 * MS));
        sketch.allreduce(64 << 20, Cost { transfer_ns: 80 * MS, ..Cost::default() });
    });
    history.ranks[0].host = "node1".to_owned();
    history.ranks[1].host = "node2".to_owned();
    history
}

/// 100 ms of work, then 50 tensors that take 1 ms of agreement and 1 ms of transfer each.
pub(crate) fn tiny_tensors() -> History {
    iterations(2, |sketch, _| {
        (0..2).for_each(|rank| sketch.compute(rank, 100 * MS));
        let cost = Cost { agreement_ns: MS, transfer_ns: MS, ..Cost::default() };
        let all: Vec<usize> = (0..50).map(|_| sketch.submit(Collective::Allreduce, &[512], cost)).collect();
        (0..2).for_each(|rank| sketch.wait(rank, all[49]));
    })
}

/// Everything in one bucket of 32 MB when the last gradient is there.
pub(crate) fn one_bucket() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.compute(rank, 60 * MS));
        let cost = Cost { transfer_ns: 40 * MS, ..Cost::default() };
        let bucket = sketch.submit(Collective::Allreduce, &[4 << 20; 8], cost);
        (0..4).for_each(|rank| sketch.wait(rank, bucket));
    })
}

pub(crate) fn checkpoints() -> History {
    iterations(4, |sketch, number| {
        (0..4).for_each(|rank| sketch.compute(rank, 20 * MS));
        if number % 2 == 1 {
            sketch.checkpoint(0, 20 * MS);
        }
        sketch.allreduce(1 << 20, Cost::default());
    })
}

/// 100 ms of work, 50 ms of agreement on one large message.
pub(crate) fn learned_orders_off() -> History {
    let mut history = iterations(2, |sketch, _| {
        (0..2).for_each(|rank| sketch.compute(rank, 100 * MS));
        sketch.allreduce(1 << 20, Cost { agreement_ns: 50 * MS, ..Cost::default() });
    });
    history.settings.insert("replay".to_owned(), "0".to_owned());
    history
}

/// Two ranks on each of two hosts; 60 ms of work, 40 ms on the way.
pub(crate) fn four_on_a_slow_link() -> History {
    let mut history = iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.compute(rank, 60 * MS));
        sketch.allreduce(64 << 20, Cost { transfer_ns: 40 * MS, ..Cost::default() });
    });
    for (rank, host) in ["node1", "node1", "node2/eth0", "node2/eth0"].into_iter().enumerate() {
        history.ranks[rank].host = host.to_owned();
    }
    history
}

/// 60 ms of work, 30 ms of copies from the device, 10 ms on the way.
pub(crate) fn on_a_device() -> History {
    iterations(2, |sketch, _| {
        (0..2).for_each(|rank| sketch.compute(rank, 60 * MS));
        (0..2).for_each(|rank| sketch.copy(rank, 30 * MS));
        sketch.allreduce(64 << 20, Cost { transfer_ns: 10 * MS, ..Cost::default() });
    })
}

/// The starved ranks with devices: half a millisecond more of every wait lay behind work; caches had 93 of 100.
pub(crate) fn devices_that_starve() -> History {
    let mut history = starved();
    for rank in &mut history.ranks {
        let waits = rank.lane.iter().filter(|stretch| stretch.activity == Activity::Input);
        rank.phases = waits
            .map(|wait| {
                let (from_ns, to_ns) = (wait.from_ns, wait.to_ns + MS / 2);
                Phase { name: "input wait".to_owned(), kind: PhaseKind::Input, from_ns, to_ns }
            })
            .collect();
        let took = |step, ns| DeviceTime { at_ns: MS, step, ns };
        rank.device = DeviceHistory {
            watched: true,
            steps: vec![took(DeviceStep::Fold, MS), took(DeviceStep::Fold, 2 * MS), took(DeviceStep::Pack, 1000)],
            lookups: vec![CacheLookups { at_ns: MS, cache: DeviceCache::Mappings, hits: 93, misses: 7 }],
        };
    }
    history
}

/// The late rank again, where four ranks of 8 threads each have 8 cores.
pub(crate) fn crowded() -> History {
    let mut history = late();
    for rank in &mut history.ranks {
        (rank.cores, rank.threads, rank.cpus) = (Some(8), Some(8), Some("0-7".to_owned()));
    }
    history
}

/// 92 ms of work; 2 ms of agreement, 3 of packing and 3 on the way for 64 KB.
pub(crate) fn little_losses() -> History {
    iterations(4, |sketch, _| {
        (0..4).for_each(|rank| sketch.compute(rank, 92 * MS));
        let cost = Cost { agreement_ns: 2 * MS, packing_ns: 2 * MS, transfer_ns: 3 * MS, unpacking_ns: MS };
        sketch.allreduce(64 << 10, cost);
    })
}

/// The starved ranks, of which two have left no trace.
pub(crate) fn two_of_four() -> History {
    let mut history = starved();
    for rank in [1, 3] {
        history.ranks[rank] = RankHistory { missing: true, ..RankHistory::default() };
        let why = "there is no trace of it here".to_owned();
        history.gaps.push(Gap { rank, lack: Lack::Everything, why });
    }
    for operation in &mut history.operations {
        operation.passages.retain(|passage| passage.rank % 2 == 0);
    }
    history
}

/// Something of everything, on two hosts.
pub(crate) fn everything() -> History {
    let mut sketch = Sketch::new(4);
    sketch.on_host(2, "node-b.cluster");
    sketch.on_host(3, "node-b.cluster");
    for number in 0..40u64 {
        sketch.iteration(number, number / 20);
        (0..4).for_each(|rank| sketch.input(rank, (12 + number % 7) * MS));
        let slow = |rank: usize| if rank == 3 { 12 * MS } else { rank as u64 * MS };
        (0..4).for_each(|rank| sketch.phase(rank, "forward", PhaseKind::Training, 15 * MS));
        (0..4).for_each(|rank| sketch.phase(rank, "backward", PhaseKind::Training, 15 * MS + slow(rank)));
        (0..4).for_each(|rank| sketch.own(rank, 4 * MS, Some("train.py:42 in <log>")));
        let cost = Cost { agreement_ns: MS / 2, packing_ns: MS, transfer_ns: 6 * MS, unpacking_ns: MS };
        let first = sketch.submit(Collective::Allreduce, &[256 << 10; 24], cost);
        (0..4).for_each(|rank| sketch.phase(rank, "backward", PhaseKind::Training, 5 * MS));
        let second = sketch.submit(Collective::Allreduce, &[20 << 20, 300], cost);
        (0..4).for_each(|rank| sketch.wait(rank, first));
        (0..4).for_each(|rank| sketch.wait(rank, second));
        if number % 20 == 19 {
            sketch.phase(0, "evaluation <b>", PhaseKind::Evaluation, 260 * MS);
            sketch.checkpoint(0, 90 * MS);
            sketch.allreduce(4, EXCHANGE);
        }
    }
    let mut history = sketch.finish();
    history.clock_error_ns = 12_000;
    history
}
