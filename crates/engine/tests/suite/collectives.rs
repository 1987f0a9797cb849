//! Every collective on every transport, against results worked out by hand.
#![allow(clippy::unwrap_used)]

use crate::harness::{Transport, config, ranks, ranks_with, reduce, request, result, sum};
use farandole_engine::{Config, Submission, wait_all};
use farandole_plan::{Collective, Dtype, GroupId, Rank, ReduceOp};
use farandole_tensor::Region;

#[test]
fn allreduce_sums_over_all_transports() {
    for transport in Transport::ALL {
        for n in 1..=4 {
            let all = ranks(n, transport, move |engine| {
                let me = engine.rank().0 as f32;
                result::<f32>(&engine, sum("t", vec![me, 1.0, 2.0 * me]))
            });
            let total: f32 = (0..n).map(|rank| rank as f32).sum();
            for result in all {
                assert_eq!(result, [total, n as f32, 2.0 * total], "{transport:?} {n}");
            }
        }
    }
}

#[test]
fn a_large_tensor_is_reduced_in_place() {
    for transport in Transport::ALL {
        let all = ranks(3, transport, |engine| {
            let me = engine.rank().0 as i64;
            result::<i64>(&engine, sum("t", (0..300_000).map(|i| i * (me + 1)).collect()))
        });
        for result in all {
            assert!(result.iter().enumerate().all(|(i, &value)| value == i as i64 * 6), "{transport:?}");
        }
    }
}

#[test]
fn many_names_in_any_order_are_all_reduced() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            for _ in 0..5 {
                let me = engine.rank().0 as usize;
                let order: Vec<usize> = (0..50).map(|i| (i * 7 + me * 13) % 50).collect();
                let tickets: Vec<_> = order
                    .iter()
                    .map(|i| engine.submit(sum(&format!("t{i}"), vec![*i as i32 + me as i32; i + 1])).unwrap())
                    .collect();
                for (i, outcome) in order.iter().zip(wait_all(tickets)) {
                    let values = outcome.unwrap().into_result().unwrap().into_vec::<i32>().unwrap();
                    assert_eq!(values, vec![3 * *i as i32 + 3; i + 1]);
                }
            }
        });
    }
}

#[test]
fn allgather_concatenates_rows_of_different_numbers() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            let me = engine.rank().0;
            let rows = vec![me as u16; 2 * me as usize];
            let request = request("g", Collective::Allgather, Dtype::U16, &[u64::from(me), 2]);
            let outcome = engine.run(Submission::new(request, Region::from_vec(rows))).unwrap();
            assert_eq!(outcome.shape, [3, 2]);
            assert_eq!(bytes_as_u16(outcome.into_result().unwrap()), [1, 1, 2, 2, 2, 2]);
        });
    }
}

#[test]
fn broadcast_spreads_the_roots_tensor() {
    for transport in Transport::ALL {
        ranks(4, transport, |engine| {
            let me = engine.rank().0 as f64;
            let request = request("b", Collective::Broadcast { root: Rank(2) }, Dtype::F64, &[1000]);
            let values = result::<f64>(&engine, Submission::new(request, Region::from_vec(vec![me; 1000])));
            assert_eq!(values, vec![2.0; 1000]);
        });
    }
}

#[test]
fn alltoall_exchanges_uneven_parts() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            let me = engine.rank().0 as u64;
            // Rank i sends i + j rows to rank j.
            let splits: Vec<u64> = (0..3).map(|to| me + to).collect();
            let rows: Vec<u16> = (0..3u64).flat_map(|to| vec![(10 * me + to) as u16; (me + to) as usize]).collect();
            let shape = [rows.len() as u64];
            let request = request("a", Collective::Alltoall { splits: Some(splits) }, Dtype::U16, &shape);
            let outcome = engine.run(Submission::new(request, Region::from_vec(rows))).unwrap();
            assert_eq!(outcome.received_splits, (0..3).map(|from| from + me).collect::<Vec<_>>());
            let expected: Vec<u16> =
                (0..3u64).flat_map(|from| vec![(10 * from + me) as u16; (from + me) as usize]).collect();
            assert_eq!(bytes_as_u16(outcome.output.unwrap()), expected);
        });
    }
}

#[test]
fn reducescatter_leaves_each_rank_its_rows() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            let me = engine.rank().0;
            let rows: Vec<u16> = (0..8).map(|i| i + me as u16).collect();
            let collective = Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
            let request = request("r", collective, Dtype::U16, &[4, 2]);
            let outcome = engine.run(Submission::new(request, Region::from_vec(rows))).unwrap();
            let expected: [&[u16]; 3] = [&[3, 6, 9, 12], &[15, 18], &[21, 24]];
            assert_eq!(outcome.shape, [expected[me as usize].len() as u64 / 2, 2]);
            assert_eq!(bytes_as_u16(outcome.output.unwrap()), expected[me as usize]);
        });
    }
}

#[test]
fn barrier_and_join_need_no_memory() {
    for transport in Transport::ALL {
        let last = ranks(3, transport, |engine| {
            let barrier = request("barrier", Collective::Barrier, Dtype::U8, &[]);
            engine.run(Submission::without_memory(barrier)).unwrap();
            if engine.rank() == Rank(1) {
                // The others have no data any more; this rank goes on for two more steps.
                for step in 0..2 {
                    assert_eq!(result::<i32>(&engine, sum(&format!("late{step}"), vec![5; 3])), [5, 5, 5]);
                }
            }
            let join = request("join", Collective::Join, Dtype::U8, &[]);
            engine.run(Submission::without_memory(join)).unwrap().last_joined.unwrap()
        });
        assert!(last.iter().all(|&rank| rank == last[0]), "{transport:?} {last:?}");
    }
}

#[test]
fn a_rank_that_has_joined_finishes_its_share_of_a_large_average() {
    for transport in Transport::ALL {
        ranks(3, transport, |engine| {
            if engine.rank() != Rank(0) {
                let request = request("large", reduce(ReduceOp::Average), Dtype::I64, &[100_000]);
                let submission = Submission::new(request, Region::from_vec(vec![6i64; 100_000]));
                assert_eq!(result::<i64>(&engine, submission), vec![4; 100_000]);
            }
            let join = request("join", Collective::Join, Dtype::U8, &[]);
            engine.run(Submission::without_memory(join)).unwrap();
        });
    }
}

#[test]
fn a_broadcast_beside_a_joined_rank_is_refused_only_where_the_settings_say_so() {
    for join_everything in [true, false] {
        let settings = Config { join_everything, ..config() };
        ranks_with(3, Transport::Memory, settings, move |engine| {
            if engine.rank() != Rank(2) {
                let broadcast = request("weights", Collective::Broadcast { root: Rank(1) }, Dtype::I32, &[1]);
                let data = Region::from_vec(vec![engine.rank().0 as i32]);
                let outcome = engine.run(Submission::new(broadcast, data));
                if join_everything {
                    assert_eq!(outcome.unwrap().into_result().unwrap().into_vec::<i32>().unwrap(), [1]);
                } else {
                    let text = outcome.unwrap_err().to_string();
                    assert!(text.contains("Broadcast is not supported with Join at this time."), "{text}");
                }
                assert_eq!(result::<i32>(&engine, sum("gradient", vec![5])), [10]);
            }
            let join = request("join", Collective::Join, Dtype::U8, &[]);
            engine.run(Submission::without_memory(join)).unwrap();
        });
    }
}

#[test]
fn averages_scales_and_outputs_of_their_own() {
    ranks(4, Transport::Memory, |engine| {
        let me = engine.rank().0 as f32;
        let collective = Collective::Allreduce { op: ReduceOp::Average, prescale: 2.0, postscale: 10.0 };
        let submission = Submission::new(request("t", collective, Dtype::F32, &[2]), Region::from_vec(vec![me, 1.0]))
            .with_output(Region::from_vec(vec![0f32; 2]));
        let outcome = engine.run(submission).unwrap();
        assert_eq!(outcome.input.unwrap().into_vec::<f32>().unwrap(), [me, 1.0]);
        assert_eq!(outcome.output.unwrap().into_vec::<f32>().unwrap(), [30.0, 20.0]);
    });
}

#[test]
fn adasum_of_orthogonal_vectors_is_their_sum_and_of_equal_ones_their_mean() {
    for n in 1..=5 {
        ranks(n, Transport::Memory, move |engine| {
            let me = engine.rank().index();
            let mut orthogonal = vec![0f32; 8];
            orthogonal[me] = 3.0;
            let request_for = |name: &str| request(name, reduce(ReduceOp::Adasum), Dtype::F32, &[8]);
            let one = engine.submit(Submission::new(request_for("one"), Region::from_vec(orthogonal))).unwrap();
            let two = engine.submit(Submission::new(request_for("two"), Region::from_vec(vec![4f32; 8]))).unwrap();
            let expected: Vec<f32> = (0..8).map(|i| if i < n { 3.0 } else { 0.0 }).collect();
            assert_eq!(one.wait().unwrap().into_result().unwrap().into_vec::<f32>().unwrap(), expected);
            assert_eq!(two.wait().unwrap().into_result().unwrap().into_vec::<f32>().unwrap(), vec![4.0; 8]);
        });
    }
}

#[test]
fn nothing_and_non_finite_values_are_legal() {
    for transport in Transport::ALL {
        ranks(2, transport, |engine| {
            assert!(result::<f32>(&engine, sum("nothing", Vec::<f32>::new())).is_empty());
            let values = result::<f32>(&engine, sum("odd", vec![f32::INFINITY, f32::NAN, -0.0]));
            assert!(values[0] == f32::INFINITY && values[1].is_nan() && values[2] == 0.0);
        });
    }
}

#[test]
fn groups_in_opposite_order_do_not_wait_for_each_other() {
    for transport in Transport::ALL {
        let all_are_done = std::sync::Barrier::new(3);
        ranks(3, transport, move |engine| {
            let low = engine.add_group(&[Rank(0), Rank(1)]).unwrap();
            let high = engine.add_group(&[Rank(1), Rank(2)]).unwrap();
            assert_eq!((low, high), (GroupId(1), GroupId(2)));
            for step in 0..6 {
                let mut groups = vec![low, high, GroupId::WORLD];
                groups.rotate_left((engine.rank().index() + step) % 3);
                let mut tickets = Vec::new();
                for group in groups {
                    if engine.rank_in(group).unwrap().is_some() {
                        tickets.push((group, engine.submit(sum("t", vec![1u32; 1000]).in_group(group)).unwrap()));
                    }
                }
                for (group, ticket) in tickets {
                    let size = engine.group(group).unwrap().len() as u32;
                    let values = ticket.wait().unwrap().into_result().unwrap().into_vec::<u32>().unwrap();
                    assert_eq!(values, vec![size; 1000]);
                }
            }
            engine.remove_group(low).unwrap();
            assert!(engine.submit(sum("t", vec![1u32]).in_group(low)).is_err());
            // Its number is used again, with the same names, by other ranks.
            let outer = engine.add_group(&[Rank(0), Rank(2)]).unwrap();
            assert_eq!(outer, low);
            if engine.rank_in(outer).unwrap().is_some() {
                assert_eq!(result::<u32>(&engine, sum("t", vec![3u32]).in_group(outer)), [6]);
            }
            if engine.rank_in(high).unwrap().is_some() {
                assert_eq!(result::<u32>(&engine, sum("t", vec![1u32]).in_group(high)), [2]);
            }
            // A rank that leaves ends what the others have under way.
            all_are_done.wait();
        });
    }
}

fn bytes_as_u16(region: Region) -> Vec<u16> {
    region.as_bytes().chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect()
}
