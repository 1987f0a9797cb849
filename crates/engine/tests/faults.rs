//! A fault at every rank and every step of every collective of small worlds: always a named error on all survivors, before
//! the deadline; never a hang, a wrong result, a leaked thread or a leaked descriptor.
#![allow(clippy::unwrap_used)]

mod harness;

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_engine::meeting::{Hall, Medium, Meeting};
use farandole_engine::{Config, Engine, Error, Submission};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp};
use farandole_tensor::Region;
use farandole_transport::fault::{Action, At, Fault, Faults};
use farandole_transport::frame::Checksum;
use farandole_transport::memory::Settings;
use farandole_transport::stream::Shape;
use harness::{reduce, request, run};

/// Nothing moves for so long: then the engine gives up. Short, because each lost frame costs it.
const DEADLINE: Duration = Duration::from_millis(150);

/// An error later than this is late: the deadline, and the linger of the last rank.
const LATE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Case {
    what: What,
    size: usize,
    medium: Medium,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// An allreduce of this many elements: the size decides which algorithm runs.
    Allreduce(u64),
    Adasum,
    Broadcast,
    Allgather,
    ReduceScatter,
    Alltoall,
    Barrier,
}

impl What {
    const ALL: [What; 9] = [
        What::Allreduce(7),
        What::Allreduce(20_000),
        What::Allreduce(200_000),
        What::Adasum,
        What::Broadcast,
        What::Allgather,
        What::ReduceScatter,
        What::Alltoall,
        What::Barrier,
    ];

    fn submission(self) -> Submission {
        let op = ReduceOp::Sum;
        let (collective, elems) = match self {
            What::Allreduce(elems) => (reduce(op), elems),
            What::Adasum => (reduce(ReduceOp::Adasum), 100),
            What::Broadcast => (Collective::Broadcast { root: Rank(0) }, 100),
            What::Allgather => (Collective::Allgather, 100),
            What::ReduceScatter => (Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 }, 100),
            What::Alltoall => (Collective::Alltoall { splits: None }, 120),
            What::Barrier => {
                return Submission::without_memory(request("gradient", Collective::Barrier, Dtype::F32, &[]));
            }
        };
        let request = request("gradient", collective, Dtype::F32, &[elems]);
        Submission::new(request, Region::from_vec(vec![1f32; elems as usize]))
    }
}

/// Runs a case with one fault. Says whether the fault struck at all.
fn strike(case: Case, fault: Fault) -> bool {
    let faults = Faults::new([fault]);
    let wrap = {
        let faults = faults.clone();
        Arc::new(move |_group, mesh, bell: &farandole_transport::Bell| faults.wrap(mesh, bell))
    };
    let hall = Hall::new(case.size, case.medium).with_wrap(wrap);
    let meetings = (0..case.size).map(|rank| Box::new(hall.enter(Rank::from(rank))) as Box<dyn Meeting>).collect();
    let config = Config { deadline: DEADLINE, ..harness::config() };
    let begun = Instant::now();
    let errors = run(meetings, config, move |engine: Engine| {
        let first = engine.run(case.what.submission()).err();
        // Whoever was not needed after the fault learns of it here, at the latest.
        first.or_else(|| {
            engine.run(Submission::without_memory(request("after", Collective::Barrier, Dtype::U8, &[]))).err()
        })
    });
    assert!(begun.elapsed() < LATE, "{case:?} {fault:?} took {:?}", begun.elapsed());
    if !faults.has_struck() {
        assert!(errors.iter().all(Option::is_none), "{case:?} {fault:?} struck nobody, but {errors:?}");
        return false;
    }
    let survivors = (0..case.size).filter(|&rank| !faults.is_killed(Rank::from(rank)));
    for rank in survivors {
        match fault.action {
            Action::Delay(_) => {}
            // Damage on a receiving event is done to the next frame that goes the other way, which may be one of the
            // barrier afterwards, and that this rank may have no reason to wait for.
            Action::Corrupt if errors[rank].is_none() => {}
            _ => check(case, fault, rank, errors[rank].as_ref()),
        }
    }
    true
}

fn check(case: Case, fault: Fault, rank: usize, error: Option<&Error>) {
    let Some(Error::Failed(failure)) = error else {
        panic!("{case:?} {fault:?}: rank {rank} did not fail but got {error:?}");
    };
    let named = match fault.action {
        Action::Kill => failure.what.contains(&format!("rank {} on localhost is gone", fault.rank)),
        Action::Corrupt => failure.what.contains("damaged") || failure.what.contains("unexpected"),
        Action::Drop => failure.what.contains("waited") || failure.what.contains("unexpected"),
        _ => failure.what.contains("is gone"),
    };
    assert!(named, "{case:?} {fault:?}: rank {rank} says {:?}", failure.what);
}

fn every_step(case: Case) -> usize {
    let mut strikes = 0;
    for rank in 0..case.size {
        // Shared memory has no checksum: nothing lies between two ranks that could damage it.
        let actions: &[Action] = match case.medium {
            Medium::Windows => &[Action::Kill, Action::Cut, Action::Drop],
            Medium::Pipes(_) => {
                &[Action::Kill, Action::Cut, Action::Corrupt, Action::Drop, Action::Delay(Duration::from_millis(20))]
            }
        };
        for &action in actions {
            for event in 0.. {
                let fault = Fault { rank: Rank::from(rank), at: At::Operation { operation: 0, event }, action };
                if !strike(case, fault) {
                    break;
                }
                strikes += 1;
            }
        }
    }
    strikes
}

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn a_fault_at_any_step_ends_in_a_named_error_on_all_survivors() {
    let shape = Shape { checksum: Checksum::Crc32c, ..Shape::default() };
    let pipes = Medium::Pipes(Settings { shape, ..Settings::default() });
    let (fds, threads) = (count("fd"), count("task"));
    let strikes: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = What::ALL
            .into_iter()
            .map(|what| {
                scope.spawn(move || {
                    let over_pipes: usize = (2..=4).map(|size| every_step(Case { what, size, medium: pipes })).sum();
                    // Of what goes between ranks that share memory, only these are messages that faults can strike.
                    let over_rings = match what {
                        What::Alltoall | What::Adasum => every_step(Case { what, size: 3, medium: Medium::Windows }),
                        _ => 0,
                    };
                    over_pipes + over_rings
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(strikes > 500, "only {strikes} faults struck");
    assert_eq!((count("fd"), count("task")), (fds, threads), "descriptors or threads were left behind");
}
