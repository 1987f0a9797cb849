//! Direct collectives between several hosts: threads that take each other for ranks of other machines, over loopback
//! TCP between hosts and shared memory within.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use farandole_engine::connector::ProcessConnector;
use farandole_engine::{Communicator, DirectSettings};
use farandole_plan::algorithm::Algorithm;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_tensor::{Finish, verifiable};
use farandole_transport::Key;
use farandole_transport::connect::{Local, Options};
use farandole_transport::listen::Listener;

/// Runs a program on ranks that are placed on these hosts.
fn on_hosts(
    hosts: &[&str],
    options: Options,
    settings: DirectSettings,
    program: impl Fn(&mut Communicator) + Send + Sync + Clone + 'static,
) {
    let key = Key::random().unwrap();
    let listeners: Vec<Arc<Listener>> = hosts
        .iter()
        .map(|_| Arc::new(Listener::bind(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))), &key).unwrap()))
        .collect();
    let contacts: Vec<_> = listeners.iter().zip(hosts).map(|(listener, host)| listener.contact(*host)).collect();
    let (done, finished) = mpsc::channel();
    for (rank, listener) in listeners.into_iter().enumerate() {
        let (contacts, program, done) = (contacts.clone(), program.clone(), done.clone());
        thread::spawn(move || {
            let mut connector = ProcessConnector { rank: Rank::from(rank), contacts, listener, options, epoch: 0 };
            let mut communicator = Communicator::join(&mut connector, settings, Duration::from_secs(20)).unwrap();
            program(&mut communicator);
            communicator.barrier().unwrap();
            let _ = done.send(());
        });
    }
    drop(done);
    for _ in hosts {
        finished.recv_timeout(Duration::from_secs(60)).expect("every rank finishes in time");
    }
}

fn check_allreduce(communicator: &mut Communicator, dtype: Dtype, op: ReduceOp, elems: usize) {
    let (rank, size) = (communicator.rank().0.into(), communicator.size() as u64);
    let mut data = vec![0; elems * dtype.size_bytes()];
    verifiable::fill(dtype, op, rank, size, 5, &mut data);
    communicator.allreduce_bytes(&mut data, dtype, op, 1.0, 1.0).unwrap();
    let mut expected = vec![0; data.len()];
    verifiable::expected(dtype, op, size, 5, Finish::new(dtype, op, size, 1.0), &mut expected);
    assert!(data == expected, "{op} of {elems} {dtype} on {size} ranks");
}

#[test]
fn allreduce_is_exact_on_even_and_uneven_hosts() {
    let placements: [&[&str]; 4] =
        [&["a", "b"], &["a", "a", "b", "b"], &["a", "b", "a", "c", "a"], &["a", "a", "b", "b", "c", "c"]];
    for hosts in placements {
        on_hosts(hosts, Options::default(), DirectSettings::default(), |communicator| {
            for elems in [1, 100, 5000, 300_001] {
                check_allreduce(communicator, Dtype::F32, ReduceOp::Sum, elems);
                check_allreduce(communicator, Dtype::F16, ReduceOp::Average, elems);
            }
        });
    }
}

#[test]
fn every_algorithm_is_exact_across_hosts() {
    for algorithm in Algorithm::ALL {
        let forced = DirectSettings { algorithm: Some(algorithm), tile_bytes: 8192, ..DirectSettings::default() };
        on_hosts(&["a", "a", "b", "b"], Options::default(), forced, |communicator| {
            for elems in [1, 7, 1000, 70_003] {
                check_allreduce(communicator, Dtype::I64, ReduceOp::Sum, elems);
            }
        });
    }
}

#[test]
fn without_shared_memory_hosts_talk_over_sockets() {
    let options = Options { local: Local::Stream, ..Options::default() };
    on_hosts(&["a", "a", "b"], options, DirectSettings::default(), |communicator| {
        for elems in [1, 5000, 300_001] {
            check_allreduce(communicator, Dtype::F64, ReduceOp::Max, elems);
        }
    });
}

#[test]
fn kinds_follow_each_other_across_hosts() {
    on_hosts(&["a", "a", "b", "b"], Options::default(), DirectSettings::default(), |communicator| {
        for round in 0..50 {
            check_allreduce(communicator, Dtype::F32, ReduceOp::Sum, 20_000 + round);
            check_allreduce(communicator, Dtype::F32, ReduceOp::Sum, 3);
            let mut data = vec![communicator.rank().0; 100];
            communicator.broadcast(&mut data, Rank(3)).unwrap();
            assert_eq!(data, [3; 100]);
            communicator.barrier().unwrap();
        }
    });
}
