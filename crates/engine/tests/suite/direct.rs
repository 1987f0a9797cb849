//! Direct collectives on threads: right for every dtype, operation, size and medium; wrong use and death have names.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_engine::{Communicator, DirectSettings};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_tensor::{Finish, verifiable};
use farandole_testing::lapse;

const DEADLINE: Duration = Duration::from_secs(60);

fn settings() -> DirectSettings {
    DirectSettings { deadline: Duration::from_secs(20), ..DirectSettings::default() }
}

fn media() -> [Medium; 2] {
    [Medium::Pipes(farandole_transport::memory::MemoryOptions::default()), Medium::Windows]
}

/// Runs the same program on `n` ranks and gives back what each returned. Panics when they take too long.
fn ranks<T: Send + 'static>(
    n: usize,
    medium: Medium,
    settings: DirectSettings,
    program: impl Fn(Communicator) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let thread_world = ThreadWorld::new(n, medium);
    let (results, collected) = mpsc::channel();
    for rank in 0..n {
        let (mut connector, program, results) =
            (thread_world.enter(Rank::from(rank)), program.clone(), results.clone());
        thread::spawn(move || {
            let communicator = Communicator::join(&mut connector, settings, Duration::from_secs(10)).unwrap();
            let _ = results.send((rank, program(communicator)));
        });
    }
    drop(results);
    let mut all: Vec<(usize, T)> =
        (0..n).map(|_| collected.recv_timeout(DEADLINE).expect("every rank finishes in time")).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, result)| result).collect()
}

fn check_allreduce(communicator: &mut Communicator, dtype: Dtype, op: ReduceOp, elems: usize, seed: u64) {
    let (rank, size) = (communicator.rank().0.into(), communicator.size() as u64);
    let mut data = vec![0; elems * dtype.size_bytes()];
    verifiable::fill(dtype, op, rank, size, seed, &mut data);
    communicator.allreduce_bytes(&mut data, dtype, op, 1.0, 1.0).unwrap();
    let mut expected = vec![0; data.len()];
    verifiable::expected(dtype, op, size, seed, Finish::new(dtype, op, size, 1.0), &mut expected);
    assert!(data == expected, "{op} of {elems} {dtype} on {size} ranks");
}

const FOLDS: [ReduceOp; 5] = [ReduceOp::Average, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

#[test]
fn allreduce_is_exact_for_every_dtype_and_operation() {
    for medium in media() {
        for n in [1, 2, 3, 5] {
            ranks(n, medium, settings(), |mut communicator| {
                for dtype in Dtype::ALL {
                    for op in FOLDS {
                        for elems in [0, 1, 7, 130] {
                            check_allreduce(&mut communicator, dtype, op, elems, elems as u64);
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn allreduce_is_exact_for_sizes_around_every_limit() {
    let small = DirectSettings { small_bytes: 4096, tile_bytes: 8192, ..settings() };
    for medium in media() {
        for n in [2, 3, 4] {
            ranks(n, medium, small, |mut communicator| {
                for elems in [11, 12, 13, 1023, 1024, 1025, 2047, 2049, 30_000, 100_001] {
                    check_allreduce(&mut communicator, Dtype::F32, ReduceOp::Sum, elems, 3);
                    check_allreduce(&mut communicator, Dtype::BF16, ReduceOp::Average, elems, 4);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_gives_the_same_result() {
    for medium in media() {
        for algorithm in Algorithm::ALL {
            let forced = DirectSettings { algorithm: Some(algorithm), tile_bytes: 4096, ..settings() };
            for n in [2, 3, 5] {
                ranks(n, medium, forced, |mut communicator| {
                    for elems in [1, 5, 1000, 50_003] {
                        check_allreduce(&mut communicator, Dtype::I32, ReduceOp::Sum, elems, 9);
                    }
                });
            }
        }
    }
}

#[test]
fn the_other_collectives_move_the_right_elements() {
    for medium in media() {
        for n in [1, 2, 3, 4] {
            ranks(n, medium, DirectSettings { tile_bytes: 4096, ..settings() }, move |mut communicator| {
                let me = communicator.rank().index();
                for scale in [1, 1000] {
                    let counts: Vec<usize> = (0..n).map(|rank| rank * scale + rank % 2).collect();
                    let own: Vec<u32> = (0..counts[me]).map(|i| (me * 100_000 + i) as u32).collect();
                    let mut all = vec![0u32; counts.iter().sum()];
                    communicator.allgather(&own, &counts, &mut all).unwrap();
                    let expected: Vec<u32> =
                        (0..n).flat_map(|rank| (0..counts[rank]).map(move |i| (rank * 100_000 + i) as u32)).collect();
                    assert_eq!(all, expected);

                    let root = Rank::from(n - 1);
                    let mut data = vec![me as i64; 700 * scale];
                    communicator.broadcast(&mut data, root).unwrap();
                    assert!(data.iter().all(|&x| x == n as i64 - 1));

                    let total: usize = counts.iter().sum();
                    let ones = vec![me as f64 + 1.0; total];
                    let mut mine = vec![0.0; counts[me]];
                    communicator.reduce_scatter(&ones, &counts, &mut mine, ReduceOp::Sum).unwrap();
                    assert!(mine.iter().all(|&x| x == (n * (n + 1) / 2) as f64));

                    let send: Vec<usize> = (0..n).map(|to| scale * (me + to) % 977).collect();
                    let recv: Vec<usize> = (0..n).map(|from| scale * (from + me) % 977).collect();
                    let data: Vec<u16> = (0..n).flat_map(|to| vec![(me * n + to) as u16; send[to]]).collect();
                    let mut got = vec![0u16; recv.iter().sum()];
                    communicator.alltoall(&data, &send, &mut got, &recv).unwrap();
                    let expected: Vec<u16> = (0..n).flat_map(|from| vec![(from * n + me) as u16; recv[from]]).collect();
                    assert_eq!(got, expected);
                    communicator.barrier().unwrap();
                }
            });
        }
    }
}

#[test]
fn alltoall_mixes_senders_of_short_and_of_long_parts() {
    let tiny = DirectSettings { small_bytes: 1024, tile_bytes: 4096, ..settings() };
    // Long parts go in tiles, are read from where they lie, or the longest decide for all.
    let read_from = [usize::MAX, 4096, 12_020];
    for (medium, single_copy_bytes) in media().into_iter().flat_map(|medium| read_from.map(|bytes| (medium, bytes))) {
        for n in [2, 3, 5] {
            ranks(n, medium, DirectSettings { single_copy_bytes, ..tiny }, move |mut communicator| {
                let me = communicator.rank().index();
                for round in 0..20 {
                    // One rank after the other has long parts; ranks know their own lengths only.
                    let len = |from: usize, to: usize| if from == round % (n + 1) { 3000 + 7 * to } else { from + to };
                    let send: Vec<usize> = (0..n).map(|to| len(me, to)).collect();
                    let recv: Vec<usize> = (0..n).map(|from| len(from, me)).collect();
                    let value = |from: usize, to: usize| (round * 1000 + from * 10 + to) as u32;
                    let data: Vec<u32> = (0..n).flat_map(|to| vec![value(me, to); send[to]]).collect();
                    let mut got = vec![0; recv.iter().sum()];
                    communicator.alltoall(&data, &send, &mut got, &recv).unwrap();
                    let expected: Vec<u32> = (0..n).flat_map(|from| vec![value(from, me); recv[from]]).collect();
                    assert_eq!(got, expected, "round {round}");
                }
            });
        }
    }
}

#[test]
fn alltoall_parts_of_different_lengths_are_told_on_both_ranks() {
    // Shown at once, in tiles, read from where they lie.
    for (len, single_copy_bytes) in [(4, 4), (40_000, usize::MAX), (40_000, 4096)] {
        let errors =
            ranks(2, Medium::Windows, DirectSettings { single_copy_bytes, ..settings() }, move |mut communicator| {
                let me = communicator.rank().index();
                // Rank 0 sends `len` elements, rank 1 expects one more.
                let (send, recv) = if me == 0 { ([1, len], [1, 1]) } else { ([1, 1], [len + 1, 1]) };
                let data = vec![1u32; send.iter().sum()];
                let mut got = vec![0; recv.iter().sum()];
                let call = communicator.alltoall(&data, &send, &mut got, &recv);
                call.and_then(|()| communicator.barrier()).unwrap_err().to_string()
            });
        for error in errors {
            assert!(error.contains(&format!("{} bytes", 4 * len)) && error.contains("expects"), "{error}");
        }
    }
}

#[test]
fn shared_buffers_are_reduced_where_they_lie() {
    for medium in media() {
        for n in [1, 2, 3] {
            ranks(n, medium, settings(), move |mut communicator| {
                for elems in [1usize, 1000, 70_001] {
                    let mut buffer = communicator.shared_buffer(elems * 4).unwrap();
                    for round in 1..=3 {
                        buffer.elements_mut::<f32>().fill(communicator.rank().0 as f32 + round as f32);
                        communicator.allreduce_shared(&mut buffer, Dtype::F32, ReduceOp::Sum).unwrap();
                        let sum = (0..n).map(|rank| rank as f32 + round as f32).sum::<f32>();
                        assert!(buffer.elements::<f32>().iter().all(|&x| x == sum));
                    }
                    communicator.drop_shared_buffer(buffer);
                }
            });
        }
    }
}

#[test]
fn operations_of_different_kinds_follow_each_other_without_a_barrier() {
    let tiny_tiles = DirectSettings { small_bytes: 1024, tile_bytes: 4096, ..settings() };
    for n in [2, 3] {
        ranks(n, Medium::Windows, tiny_tiles, move |mut communicator| {
            let me = communicator.rank().index();
            for round in 0..300u64 {
                check_allreduce(&mut communicator, Dtype::F32, ReduceOp::Sum, 3, round);
                let mut data = vec![if me == round as usize % n { round } else { 0 }; 3000];
                communicator.broadcast(&mut data, Rank::from(round as usize % n)).unwrap();
                assert!(data.iter().all(|&x| x == round));
                check_allreduce(&mut communicator, Dtype::F32, ReduceOp::Sum, 5000, round);
                check_allreduce(&mut communicator, Dtype::I8, ReduceOp::Max, 1000, round);
            }
        });
    }
}

#[test]
fn ranks_that_make_different_calls_are_told_which() {
    let errors = ranks(2, Medium::Windows, settings(), |mut communicator| {
        let mut data = vec![1f32; 4 + communicator.rank().index()];
        let error = communicator.allreduce(&mut data, ReduceOp::Sum).unwrap_err().to_string();
        let again = communicator.allreduce(&mut data, ReduceOp::Sum).unwrap_err().to_string();
        assert_eq!(error, again, "the first cause is remembered");
        error
    });
    for error in errors {
        assert!(error.contains("allreduce (Sum) of 4 float32") && error.contains("of 5 float32"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_to_the_others() {
    for medium in media() {
        let errors = ranks(3, medium, settings(), |mut communicator| {
            communicator.barrier().unwrap();
            if communicator.rank() == Rank(1) {
                return None;
            }
            Some(communicator.allreduce(&mut vec![1f32; 100_000], ReduceOp::Sum).unwrap_err().to_string())
        });
        for error in errors.into_iter().flatten() {
            assert!(error.contains("rank 1 left the job"), "{error}");
        }
    }
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    let short = DirectSettings { deadline: Duration::from_millis(300), ..settings() };
    // Rank 1 stays until rank 0 has its error: a rank that has left is another cause.
    let told = Arc::new(Barrier::new(2));
    let errors = ranks(2, Medium::Windows, short, move |mut communicator| {
        let error = (communicator.rank() == Rank(0)).then(|| communicator.barrier().unwrap_err().to_string());
        told.wait();
        error
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("for rank 1") && error.contains("barrier"), "{error}");
    assert!(error.contains("waited ") && error.contains("FARANDOLE_TIMEOUT_SECONDS"), "{error}");
}

/// A minute was once enough to end the job of a rank that wrote a checkpoint.
#[test]
fn a_rank_that_is_late_is_waited_for_unless_the_user_has_set_a_limit() {
    assert_eq!(DirectSettings::default().deadline, Duration::ZERO, "there is no limit by default");
    for medium in media() {
        ranks(2, medium, DirectSettings::default(), |mut communicator| {
            if communicator.rank() == Rank(1) {
                lapse("rank 1, which is late", Duration::from_millis(700));
            }
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn wrong_arguments_cost_nothing() {
    ranks(2, Medium::Windows, settings(), |mut communicator| {
        assert!(communicator.broadcast(&mut [0u8; 4], Rank(2)).is_err());
        assert!(communicator.allgather(&[1u8], &[1, 1, 1], &mut [0; 3]).is_err());
        assert!(communicator.allgather(&[1u8], &[1, 1], &mut [0; 3]).is_err());
        assert!(communicator.allreduce_bytes(&mut [0; 5], Dtype::F32, ReduceOp::Sum, 1.0, 1.0).is_err());
        let mut data = [communicator.rank().0; 2];
        communicator.allreduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [1, 1]);
    });
}
