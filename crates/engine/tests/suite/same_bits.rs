//! The path does not show in the result: named requests (alone, fused, large, in batches, in process sets) and direct
//! calls (small, window, mapped, each algorithm over links), in memory, in shared memory, over TCP and on two hosts,
//! give the same bits.
//!
//! `programs.rs` does the same at random; this goes through element types, operations, factors and sizes one by one.
#![allow(clippy::unwrap_used)]

use crate::harness::direct_paths;
use std::sync::Arc;

use crate::harness::reference::{Call, Inputs, Solved};
use crate::harness::{Transport, direct_ranks, ranks};
use farandole_engine::{Engine, Submission, wait_all};
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, GroupId, Rank, ReduceOp, Request};
use farandole_tensor::element::{as_bytes, as_bytes_mut};
use farandole_tensor::{OwnedBytes, Region};
use half::f16;

const FOLDS: [ReduceOp; 5] = [ReduceOp::Average, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Factors for contributions and results. Prescales are powers of two, so that everything stays exact.
const FACTORS: [(f64, f64); 5] = [(1.0, 1.0), (0.25, 1.0), (1.0, 0.1), (4.0, 0.25), (0.5, 3.0)];

fn call(collective: Collective, dtype: Dtype, rows: u64, inputs: Inputs) -> Call {
    Call { number: 0, group: GroupId::WORLD, collective, dtype, rows, row_elems: 1, batch: None, priority: 0, inputs }
}

/// Every reduction of every type, with factors in turn.
fn reductions(elems: &[u64], size: usize) -> Vec<Solved> {
    let mut turn = 0;
    let mut solved = Vec::new();
    for dtype in Dtype::ALL {
        for op in FOLDS {
            for &rows in elems {
                turn += 1;
                let (prescale, postscale) = FACTORS[turn % FACTORS.len()];
                let allreduce = Collective::Allreduce { op, prescale, postscale };
                let scatter = match turn % 2 {
                    0 => Collective::ReduceScatter { op, prescale, postscale },
                    _ => Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 },
                };
                for collective in [allreduce, scatter] {
                    let call = call(collective, dtype, rows, Inputs::Extreme);
                    solved.push(Solved::new(&call, turn as u64, &vec![false; size]));
                }
            }
        }
    }
    solved
}

fn submission(solved: &Solved, me: usize, name: &str) -> Submission {
    let call = &solved.call;
    let request = Request::new(name, call.collective.clone(), call.dtype, [call.rows]).in_batch(call.batch.clone());
    let bytes = OwnedBytes::from_slice(&solved.inputs[me]);
    Submission::new(request, Region::from_owned_bytes(bytes, call.dtype)).in_group(call.group)
}

/// Runs each call alone, and all together.
fn check_named(engine: &Engine, me: usize, all: &[Solved]) {
    let right = |solved: &Solved, how: &str, result: Region| {
        let expected = &solved.expected.as_ref().unwrap()[me];
        assert!(result.as_bytes() == &expected[..], "rank {me} got a wrong result, {how}, of {:?}", solved.call);
    };
    for solved in all {
        let outcome = engine.run(submission(solved, me, "alone")).unwrap();
        right(solved, "alone", outcome.into_result().unwrap());
    }
    // With a place of its own for the result, the input stays as it was.
    for solved in all.iter().filter(|solved| matches!(solved.call.collective, Collective::Allreduce { .. })) {
        let output = OwnedBytes::from_slice(&vec![0xa5; solved.inputs[me].len()]);
        let output = Region::from_owned_bytes(output, solved.call.dtype);
        let outcome = engine.run(submission(solved, me, "apart").with_output(output)).unwrap();
        assert!(outcome.input.unwrap().as_bytes() == &solved.inputs[me][..], "the input of {:?} changed", solved.call);
        right(solved, "in an output of its own", outcome.output.unwrap());
    }
    let together = |(index, solved)| engine.submit(submission(solved, me, &format!("call{index}"))).unwrap();
    let tickets: Vec<_> = all.iter().enumerate().map(together).collect();
    for (solved, outcome) in all.iter().zip(wait_all(tickets)) {
        right(solved, "together with others", outcome.unwrap().into_result().unwrap());
    }
}

/// Named and direct calls on all transports.
fn check_everywhere(size: usize, solved: Vec<Solved>) {
    let solved = Arc::new(solved);
    for transport in Transport::EVERY {
        let named = Arc::clone(&solved);
        ranks(size, transport, move |engine| {
            let me = engine.rank().index();
            // The mapped fusion buffer is there from the third time on.
            for _ in 0..3 {
                check_named(&engine, me, &named);
            }
        });
        let direct = Arc::clone(&solved);
        let paths = direct_ranks(size, transport, direct_paths::settings(), move |mut communicator| {
            direct.iter().map(|solved| direct_paths::check(&mut communicator, solved)).sum::<usize>()
        });
        assert!(paths[0] > solved.len(), "there are more direct paths than calls");
    }
}

#[test]
fn every_path_gives_the_same_bits_for_every_type_operation_and_factor() {
    for size in [3, 4] {
        check_everywhere(size, reductions(&[1, 130, 3000], size));
    }
}

#[test]
fn large_tensors_of_half_precision_take_every_path_to_the_same_bits() {
    let size = 4;
    let mut solved = Vec::new();
    for dtype in [Dtype::F16, Dtype::BF16] {
        for (op, (prescale, postscale)) in FOLDS.into_iter().zip(FACTORS) {
            // Beyond what is staged.
            let collective = Collective::Allreduce { op, prescale, postscale };
            solved.push(Solved::new(&call(collective, dtype, 200_003, Inputs::Extreme), 5, &[false; 4]));
        }
    }
    check_everywhere(size, solved);
}

#[test]
fn large_tensors_take_every_path_to_the_same_bits() {
    for size in [2, 3] {
        let mut solved = Vec::new();
        // Staged, beyond that in one tile and in several, and in tiles that the last does not fill.
        for (turn, rows) in [40_000, 70_000, 300_003, 1_000_000].into_iter().enumerate() {
            let (op, (prescale, postscale)) = (FOLDS[turn], FACTORS[turn % 3]);
            let collective = Collective::Allreduce { op, prescale, postscale };
            solved.push(Solved::new(&call(collective, Dtype::F32, rows, Inputs::Extreme), 7, &vec![false; size]));
        }
        check_everywhere(size, solved);
    }
}

/// What started this: four ranks with 30000 gave infinity when the tensor was small or fused.
#[test]
fn the_f16_average_of_four_times_30000_is_30000_on_every_path() {
    let thirty_thousand = |elems: usize| vec![f16::from_f32(30000.0); elems];
    // Small, staged and large.
    const SIZES: [usize; 3] = [3, 40_000, 200_000];
    fn average(name: &str, data: Vec<f16>, batch: Option<Batch>, collective: Collective) -> Submission {
        let request = Request::new(name, collective, Dtype::F16, [data.len() as u64]).in_batch(batch);
        Submission::new(request, Region::from_vec(data))
    }
    let right = |what: &str, result: &[u8]| {
        let halves: Vec<f16> = result.chunks(2).map(|bytes| f16::from_ne_bytes([bytes[0], bytes[1]])).collect();
        assert!(halves.iter().all(|&x| x.to_f32() == 30000.0), "{what} gave {}", halves[0]);
    };
    let factors = [(1.0, 1.0), (4.0, 0.25)];
    for transport in Transport::EVERY {
        let all_are_done = std::sync::Barrier::new(4);
        ranks(4, transport, move |engine| {
            let groups = [GroupId::WORLD, engine.add_group(&[Rank(0), Rank(1), Rank(3)]).unwrap()];
            let member = |group: GroupId| group == GroupId::WORLD || engine.rank() != Rank(2);
            for (prescale, postscale) in factors {
                let reduce = Collective::Allreduce { op: ReduceOp::Average, prescale, postscale };
                let scatter = Collective::ReduceScatter { op: ReduceOp::Average, prescale, postscale };
                for group in groups.into_iter().filter(|&group| member(group)) {
                    for (elems, collective) in
                        SIZES.into_iter().flat_map(|elems| [(elems, reduce.clone()), (elems + 4, scatter.clone())])
                    {
                        let submission = average("alone", thirty_thousand(elems), None, collective);
                        let outcome = engine.run(submission.in_group(group)).unwrap();
                        right("a named tensor", outcome.into_result().unwrap().as_bytes());
                    }
                    let batch = Some(Batch { name: "batch".into(), members: 3 });
                    let tickets: Vec<_> = SIZES
                        .into_iter()
                        .map(|elems| {
                            let name = format!("{elems} in a batch");
                            let submission = average(&name, thirty_thousand(elems), batch.clone(), reduce.clone());
                            engine.submit(submission.in_group(group)).unwrap()
                        })
                        .collect();
                    for outcome in wait_all(tickets) {
                        right("a batch", outcome.unwrap().into_result().unwrap().as_bytes());
                    }
                }
            }
            // A rank that leaves ends what the others have under way.
            all_are_done.wait();
        });
        direct_ranks(4, transport, direct_paths::settings(), move |mut communicator| {
            for elems in SIZES {
                for (prescale, postscale) in factors {
                    let mut data = thirty_thousand(elems);
                    let bytes = as_bytes_mut(&mut data);
                    communicator.allreduce_bytes(bytes, Dtype::F16, ReduceOp::Average, prescale, postscale).unwrap();
                    right("a direct call", as_bytes(&data));
                }
                let mut own = vec![f16::ZERO; elems];
                communicator
                    .reduce_scatter(&thirty_thousand(4 * elems), &[elems; 4], &mut own, ReduceOp::Average)
                    .unwrap();
                right("direct reducescatter", as_bytes(&own));
            }
        });
    }
}
