//! Reduce, gather and scatter: from and to every root, over every transport, against results worked out by hand.
#![allow(clippy::unwrap_used)]

use crate::harness::{Transport, ranks, result, sum};
use farandole_engine::{Engine, Outcome, Submission};
use farandole_plan::{Batch, Collective, Dtype, Rank, ReduceOp, Request};
use farandole_tensor::{Element, Region};

fn run<T: Element>(engine: &Engine, collective: Collective, shape: Vec<u64>, data: Vec<T>) -> Outcome {
    engine.run(Submission::new(Request::new("t", collective, T::DTYPE, shape), Region::from_vec(data))).unwrap()
}

fn reduce(root: Rank, op: ReduceOp) -> Collective {
    Collective::Reduce { root, op, prescale: 1.0, postscale: 1.0 }
}

/// The result, wherever it lies.
fn values(outcome: Outcome) -> Vec<u32> {
    let region = outcome.into_result().unwrap();
    region.as_bytes().chunks_exact(4).map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn the_root_of_a_reduce_gets_the_sum_and_the_others_keep_their_tensors() {
    for transport in Transport::EVERY {
        for n in 1..=4u32 {
            // One that fits a message, one of several segments and tiles.
            for count in [5, 600_000] {
                ranks(n as usize, transport, move |engine| {
                    let me = engine.rank();
                    for root in (0..n).map(Rank) {
                        let mine: Vec<u32> = (0..count).map(|index| index * (me.0 + 1)).collect();
                        let reduced = run(&engine, reduce(root, ReduceOp::Sum), vec![u64::from(count)], mine.clone());
                        let all: u32 = (1..=n).sum();
                        let total: Vec<u32> = (0..count).map(|index| index * all).collect();
                        assert_eq!(values(reduced), if me == root { total } else { mine }, "{transport:?} {n}");
                    }
                });
            }
        }
    }
}

#[test]
fn a_reduce_scales_averages_and_leaves_its_input_where_it_has_an_output() {
    for transport in Transport::ALL {
        ranks(3, transport, move |engine| {
            let me = engine.rank().0 as f32;
            let root = Rank(1);
            for (op, prescale, postscale, expected) in
                [(ReduceOp::Average, 1.0, 4.0, 8.0), (ReduceOp::Sum, 0.5, 2.0, 6.0), (ReduceOp::Max, 2.0, 1.0, 6.0)]
            {
                let collective = Collective::Reduce { root, op, prescale, postscale };
                let request = Request::new("t", collective, Dtype::F32, vec![1000]);
                let submission = Submission::new(request, Region::from_vec(vec![me + 1.0; 1000]))
                    .with_output(Region::from_vec(vec![-1.0f32; 1000]));
                let outcome = engine.run(submission).unwrap();
                let input = outcome.input.unwrap().into_vec::<f32>().unwrap();
                assert_eq!(input, vec![me + 1.0; 1000], "{transport:?} {op}");
                if engine.rank() == root {
                    let output = outcome.output.unwrap().into_vec::<f32>().unwrap();
                    assert_eq!(output, vec![expected; 1000], "{transport:?} {op}");
                }
            }
            // Half precision is added in single precision: each of these alone would be lost.
            let half = |bits: u16| half_region(&[bits; 100]);
            let request = Request::new("h", reduce(root, ReduceOp::Sum), Dtype::F16, vec![100]);
            // 2048, 1 and 1.
            let mine = half(if engine.rank() == Rank(0) { 0x6800 } else { 0x3c00 });
            let outcome = engine.run(Submission::new(request, mine)).unwrap();
            if engine.rank() == root {
                // 2050.
                assert_eq!(outcome.into_result().unwrap().as_bytes()[..2], 0x6801u16.to_ne_bytes(), "{transport:?}");
            }
        });
    }
}

fn half_region(bits: &[u16]) -> Region {
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    let mut owned = farandole_tensor::OwnedBytes::zeroed(bytes.len());
    owned.copy_from_slice(&bytes);
    Region::from_owned_bytes(owned, Dtype::F16)
}

#[test]
fn the_root_of_a_gather_gets_rows_of_all_in_order() {
    for transport in Transport::ALL {
        for n in 1..=4u32 {
            ranks(n as usize, transport, move |engine| {
                let me = engine.rank();
                for root in (0..n).map(Rank) {
                    for scale in [1, 100_000] {
                        // Rank r has r rows of two elements.
                        let rows = me.0 * scale;
                        let mine = vec![me.0; 2 * rows as usize];
                        let outcome = run(&engine, Collective::Gather { root }, vec![u64::from(rows), 2], mine);
                        let all: Vec<u32> = (0..n).flat_map(|rank| vec![rank; 2 * (rank * scale) as usize]).collect();
                        let counts: Vec<u64> = (0..n).map(|rank| u64::from(rank * scale)).collect();
                        let expected = if me == root { (all, counts) } else { (vec![], vec![0; n as usize]) };
                        assert_eq!(outcome.received_splits, expected.1, "{transport:?} {n}");
                        assert!(values(outcome) == expected.0, "{transport:?} {n}");
                    }
                }
            });
        }
    }
}

#[test]
fn every_rank_gets_its_part_of_a_scatter() {
    for transport in Transport::ALL {
        for n in 1..=4u32 {
            ranks(n as usize, transport, move |engine| {
                let me = engine.rank();
                for root in (0..n).map(Rank) {
                    for even in [true, false] {
                        let rows = |rank: u32| if even { 3 } else { u64::from(rank) * 50_000 };
                        let splits: Vec<u64> = (0..n).map(rows).collect();
                        let total = splits.iter().sum();
                        let data: Vec<u32> = (0..n).flat_map(|rank| vec![rank; rows(rank) as usize]).collect();
                        let (shape, data) = if me == root { (total, data) } else { (0, vec![]) };
                        let splits = (me == root && !even).then_some(splits);
                        let outcome = run(&engine, Collective::Scatter { root, splits }, vec![shape], data);
                        assert_eq!(outcome.shape, [rows(me.0)]);
                        assert_eq!(values(outcome), vec![me.0; rows(me.0) as usize], "{transport:?} {n}");
                    }
                }
            });
        }
    }
}

#[test]
fn rooted_collectives_are_replayed() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            let me = engine.rank();
            for step in 0..60 {
                let root = Rank(1);
                let reduced = run(&engine, reduce(root, ReduceOp::Sum), vec![3], vec![step; 3]);
                assert_eq!(values(reduced), vec![if me == root { 3 * step } else { step }; 3]);
                let name = |name: &'static str, collective, rows: u64, data: Vec<u32>| {
                    let request = Request::new(name, collective, Dtype::U32, vec![rows]);
                    values(engine.run(Submission::new(request, Region::from_vec(data))).unwrap())
                };
                let gathered = name("g", Collective::Gather { root }, 1, vec![me.0 + step]);
                assert_eq!(gathered, if me == root { vec![step, step + 1, step + 2] } else { vec![] });
                let whole = if me == root { vec![step, step + 1, step + 2] } else { vec![] };
                let part = name("s", Collective::Scatter { root, splits: None }, whole.len() as u64, whole);
                assert_eq!(part, [step + me.0]);
            }
        });
    }
}

#[test]
fn ranks_that_name_different_roots_are_refused() {
    ranks(2, Transport::Memory, |engine| {
        let me = engine.rank();
        for collective in [reduce(me, ReduceOp::Sum), Collective::Gather { root: me }] {
            let word = collective.word().to_uppercase();
            let request = Request::new("t", collective, Dtype::U32, vec![1]);
            let error = engine.run(Submission::new(request, Region::from_vec(vec![1u32]))).unwrap_err();
            assert!(error.to_string().contains(&format!("Mismatched {word} root ranks")), "{error}");
        }
        // Only the root has rows.
        let scatter = Collective::Scatter { root: Rank(0), splits: None };
        let request = Request::new("t", scatter, Dtype::U32, vec![2]);
        let error = engine.run(Submission::new(request, Region::from_vec(vec![1u32, 2]))).unwrap_err();
        assert!(error.to_string().contains("SCATTER takes rows of its root only"), "{error}");
        assert_eq!(result::<u32>(&engine, sum("end", vec![1u32])), [2]);
    });
}

/// An output of the right size takes the result; one of another size is given up.
#[test]
fn results_go_to_an_output_that_is_as_large_as_they_are() {
    for transport in Transport::EVERY {
        ranks(3, transport, move |engine| {
            let me = engine.rank().0;
            let rows = |rank: u32| 3 * (u64::from(rank) + 1);
            let all: u64 = (0..3).map(rows).sum();
            let reduce_scatter = Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
            let splits = Some(vec![rows(me) / 3; 3]);
            for (collective, input_rows, result_rows) in [
                (Collective::Allgather, rows(me), all),
                (Collective::Alltoall { splits }, rows(me), all / 3),
                (Collective::Gather { root: Rank(1) }, rows(me), if me == 1 { all } else { 0 }),
                (Collective::Scatter { root: Rank(1), splits: None }, if me == 1 { 6 } else { 0 }, 2),
                (reduce_scatter, 6, 2),
            ] {
                let request = |name| Request::new(name, collective.clone(), Dtype::U32, vec![input_rows]);
                let input = || Region::from_vec(vec![me + 7; input_rows as usize]);
                let expected = values(engine.run(Submission::new(request("plain"), input())).unwrap());
                assert_eq!(expected.len() as u64, result_rows);
                for (name, size) in [("fits", result_rows), ("does not fit", result_rows + 1)] {
                    let output = Region::from_vec(vec![99u32; size as usize]);
                    let outcome = engine.run(Submission::new(request(name), input()).with_output(output)).unwrap();
                    assert_eq!(outcome.shape, [result_rows], "{transport:?} {collective:?}");
                    let given_back = outcome.input.as_ref().unwrap().as_bytes().to_vec();
                    assert_eq!(given_back, input().as_bytes(), "{transport:?} {collective:?}: the input was changed");
                    let output = outcome.output.unwrap();
                    let result: Vec<u32> =
                        output.as_bytes().chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect();
                    assert_eq!(result, expected, "{transport:?} {collective:?} {name}");
                    let is_own = output.into_vec::<u32>().is_ok();
                    assert_eq!(is_own, name == "fits", "{transport:?} {collective:?} {name}");
                }
            }
        });
    }
}

#[test]
fn results_of_requests_that_travel_together_go_to_their_outputs() {
    for transport in Transport::ALL {
        ranks(2, transport, move |engine| {
            let me = engine.rank().0;
            let reduce_scatter = Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
            for (collective, rows) in [(Collective::Allgather, 4), (reduce_scatter, 1)] {
                let batch = Batch { name: "batch".into(), members: 3 };
                let tickets = ["a", "b", "c"].map(|name| {
                    let request = Request::new(name, collective.clone(), Dtype::U32, vec![2]).in_batch(batch.clone());
                    let output = Region::from_vec(vec![99u32; rows]);
                    let submission = Submission::new(request, Region::from_vec(vec![me + 1; 2])).with_output(output);
                    engine.submit(submission).unwrap()
                });
                for ticket in tickets {
                    let output = ticket.wait().unwrap().output.unwrap().into_vec::<u32>().unwrap();
                    assert_eq!(output, if rows == 4 { vec![1, 1, 2, 2] } else { vec![3] }, "{transport:?}");
                }
            }
        });
    }
}
