//! Measured tables: they change what is chosen, on all ranks alike, and never what comes out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_engine::tables::{self, Notice, Shelf, this_machine};
use farandole_engine::{Communicator, Config, DirectSettings, Engine, Hooks, Submission};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::table::{Class, Form, Measurement, Table, Way};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request, Topology};
use farandole_tensor::{Finish, Region, verifiable};

const DEADLINE: Duration = Duration::from_secs(60);

fn media() -> [Medium; 2] {
    [Medium::Pipes(farandole_transport::memory::MemoryOptions::default()), Medium::Windows]
}

/// Runs the program on `n` ranks as threads; panics when one does not finish in time.
fn ranks<R: Send + 'static>(
    n: usize,
    medium: Medium,
    program: impl Fn(farandole_engine::connector::ThreadConnector) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    let thread_world = ThreadWorld::new(n, medium);
    let (results, collected) = mpsc::channel();
    for rank in 0..n {
        let (connector, program, results) = (thread_world.enter(Rank::from(rank)), program.clone(), results.clone());
        thread::spawn(move || {
            let _ = results.send((rank, program(connector)));
        });
    }
    drop(results);
    let mut all: Vec<(usize, R)> =
        (0..n).map(|_| collected.recv_timeout(DEADLINE).expect("every rank finishes in time")).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, result)| result).collect()
}

fn join(mut connector: farandole_engine::connector::ThreadConnector) -> Communicator {
    let settings = DirectSettings { deadline: Duration::from_secs(20), ..DirectSettings::default() };
    Communicator::join(&mut connector, settings, Duration::from_secs(10)).unwrap()
}

/// A table by which nothing but this algorithm has ever been measured.
fn only(algorithm: Algorithm, n: usize) -> Table {
    let mut table = Table::new(Class::of(&Topology::one_host(n)));
    table.insert(Measurement { way: Way::Allreduce(algorithm), bytes: 1024, time_us: 1.0 });
    for form in [Form::FewSteps, Form::FewBytes] {
        let time_us = if form == Form::FewBytes { 1.0 } else { 2.0 };
        table.insert(Measurement { way: Way::Broadcast(form), bytes: 1024, time_us });
        table.insert(Measurement { way: Way::Allgather(form), bytes: 1024, time_us });
    }
    table
}

fn exact_sum(communicator: &mut Communicator, elems: usize) {
    let (dtype, op) = (Dtype::F32, ReduceOp::Sum);
    let (rank, size) = (communicator.rank().0.into(), communicator.size() as u64);
    let mut data = vec![0; elems * 4];
    verifiable::fill(dtype, op, rank, size, 11, &mut data);
    communicator.allreduce_bytes(&mut data, dtype, op, 1.0, 1.0).unwrap();
    let mut expected = vec![0; data.len()];
    verifiable::expected(dtype, op, size, 11, Finish::new(dtype, op, size, 1.0), &mut expected);
    assert!(data == expected, "{elems} elements on {size} ranks");
}

#[test]
fn ranks_that_bring_different_tables_all_choose_by_that_of_rank_0() {
    for medium in media() {
        for n in [1, 2, 3, 5] {
            let chosen = ranks(n, medium, move |connector| {
                let mut communicator = join(connector);
                let before = communicator.algorithm_for(1 << 20);
                let brought = [Algorithm::Tree, Algorithm::Halving][communicator.rank().index().min(1)];
                let agreed = communicator.agree_on_table(Some(&only(brought, n))).unwrap();
                assert_eq!(*agreed.unwrap(), only(Algorithm::Tree, n));
                for elems in [1, 50, 5000, 300_000] {
                    exact_sum(&mut communicator, elems);
                }
                (before, communicator.algorithm_for(1 << 20), communicator.algorithm_for(4))
            });
            for (before, large, small) in chosen {
                assert_ne!(before, Algorithm::Tree);
                assert_eq!((large, small), (Algorithm::Tree, Algorithm::Tree));
            }
        }
    }
}

#[test]
fn every_choice_of_a_table_gives_the_same_bits_and_taking_it_away_restores_the_limits() {
    for medium in media() {
        for algorithm in Algorithm::ALL {
            ranks(4, medium, move |connector| {
                let mut communicator = join(connector);
                let usual = communicator.algorithm_for(1 << 20);
                communicator.agree_on_table(Some(&only(algorithm, 4))).unwrap().unwrap();
                for elems in [1, 1000, 100_003] {
                    exact_sum(&mut communicator, elems);
                }
                let mut word = vec![communicator.rank().0; 3000];
                communicator.broadcast(&mut word, Rank(3)).unwrap();
                assert_eq!(word, vec![3; 3000]);
                let mut all = vec![0u32; 4000];
                communicator.allgather(&vec![communicator.rank().0; 1000], &[1000; 4], &mut all).unwrap();
                assert!(all.chunks(1000).zip(0..).all(|(part, rank)| part.iter().all(|&x| x == rank)));
                assert_eq!(communicator.agree_on_table(None).unwrap(), None);
                assert_eq!(communicator.algorithm_for(1 << 20), usual);
                exact_sum(&mut communicator, 1000);
            });
        }
    }
}

#[test]
fn a_table_for_another_placement_is_used_by_nobody() {
    let tables = ranks(2, Medium::Windows, |connector| join(connector).agree_on_table(Some(&only(Algorithm::Ring, 3))));
    assert!(tables.into_iter().all(|table| table.unwrap().is_none()));
}

#[test]
fn rank_0_alone_reads_the_shelf_and_says_what_is_wrong_with_it() {
    let folder = farandole_testing::Folder::new();
    let adopt = |shelf: Shelf| {
        ranks(2, Medium::Windows, move |connector| {
            let mut communicator = join(connector);
            // The second rank would find another table, if it looked.
            let elsewhere = Shelf::in_folder("/nonexistent");
            let shelf = if communicator.rank() == Rank(0) { &shelf } else { &elsewhere };
            tables::adopt(&mut communicator, shelf).unwrap()
        })
    };
    let shelf = Shelf::in_folder(&*folder);
    let missing = adopt(shelf.clone());
    assert!(matches!(&missing[0], (None, Some(Notice::Debug(text))) if text.contains("farandole calibrate")));
    assert_eq!(missing[1], (None, None));
    let file = shelf.put(&this_machine(), &only(Algorithm::Doubling, 2)).unwrap();
    for (table, _) in adopt(shelf.clone()) {
        assert_eq!(*table.unwrap(), only(Algorithm::Doubling, 2));
    }
    std::fs::write(&file, "garbage").unwrap();
    let damaged = adopt(shelf.clone());
    let (None, Some(Notice::Warning(text))) = &damaged[0] else { panic!("{damaged:?}") };
    assert!(text.contains(&file.display().to_string()) && text.contains("not a table"), "{text}");
    assert!(damaged[1].0.is_none());
    assert!(matches!(&adopt(Shelf::OFF)[0], (None, Some(Notice::Debug(_)))));
    std::fs::remove_dir_all(&folder).unwrap();
}

fn request(name: &str, elems: usize) -> Request {
    Request::new(name, Collective::allreduce(ReduceOp::Sum), Dtype::I32, [elems as u64])
}

fn start(connector: farandole_engine::connector::ThreadConnector, table: Option<Table>) -> Engine {
    let config = Config { deadline: Duration::from_secs(20), ..Config::default() };
    Engine::start_with(connector, config, Hooks { table: table.map(Arc::new), ..Hooks::default() }).unwrap()
}

#[test]
fn named_requests_come_out_the_same_by_every_table() {
    for medium in media() {
        for algorithm in Algorithm::ALL {
            ranks(3, medium, move |connector| {
                let engine = start(connector, Some(only(algorithm, 3)));
                assert!(engine.table().is_some());
                for round in 0..6 {
                    for elems in [1, 700, 90_001] {
                        let data: Vec<i32> =
                            (0..elems).map(|i| (i as i32 + round) * (engine.rank().0 as i32 + 1)).collect();
                        let submission = Submission::new(request(&format!("t{elems}"), elems), Region::from_vec(data));
                        let sum = engine.run(submission).unwrap().into_result().unwrap().into_vec::<i32>().unwrap();
                        assert!(sum.iter().enumerate().all(|(i, &x)| x == (i as i32 + round) * 6), "{algorithm}");
                    }
                }
            });
        }
    }
}

#[test]
fn engines_with_different_tables_fail_by_name_at_the_first_request() {
    for medium in media() {
        let outcomes = ranks(2, medium, |connector| {
            let table = [Algorithm::Ring, Algorithm::Doubling]
                [farandole_engine::connector::Connector::rank(&connector).index()];
            let engine = start(connector, Some(only(table, 2)));
            engine.run(Submission::new(request("t", 100), Region::from_vec(vec![1i32; 100]))).map(drop)
        });
        for outcome in outcomes {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("rank"), "{text}");
        }
    }
}
