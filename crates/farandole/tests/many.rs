//! Many ranks, as threads: they meet over loopback, form a world and work together.

#[path = "../../cluster/tests/host/mod.rs"]
mod host;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farandole::{Communicator, DirectSettings, Rank, ReduceOp};
use farandole_cluster::{Address, Rendezvous};
use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_transport::{Key, memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const RANKS: usize = 256;

/// A loaded machine with two cores needs some seconds.
const DEADLINE: Duration = Duration::from_secs(90);

/// All ranks in one process need more descriptors than a process has by default.
fn allow_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("the limit may be raised to its maximum");
}

#[test]
fn two_hundred_and_fifty_six_ranks_form_a_world_and_reduce() {
    allow_many_descriptors();
    let key = Key::random().expect("the system has randomness");
    let at: Address = "tcp:127.0.0.1:0".parse().expect("an address");
    let server = host::serve(&at, RANKS, &key);
    let rendezvous = Arc::new(Rendezvous::new(server.address().clone(), RANKS, key).with_silence(Some(DEADLINE)));
    let thread_world = ThreadWorld::new(
        RANKS,
        Medium::Pipes(memory::MemoryOptions { capacity_bytes: 4096, ..memory::MemoryOptions::default() }),
    );
    let deadline = Instant::now() + DEADLINE;
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let (rendezvous, thread_world) = (rendezvous.clone(), thread_world.clone());
            let life = move || {
                let own = (rank as u32).to_le_bytes();
                let (blobs, lifeline) = rendezvous.join(Rank::from(rank), &own, deadline).expect("all ranks come");
                let numbers: Vec<u32> = blobs
                    .iter()
                    .map(|blob| u32::from_le_bytes(blob.as_slice().try_into().expect("four bytes")))
                    .collect();
                assert!(numbers.iter().copied().eq(0..RANKS as u32), "everybody's message, in rank order");
                let mut world =
                    Communicator::join(&mut thread_world.enter(Rank::from(rank)), DirectSettings::default(), DEADLINE)
                        .expect("ranks find each other");
                let mut data = vec![rank as i64; 1000];
                world.allreduce(&mut data, ReduceOp::Sum).expect("all ranks reduce");
                let sum = (RANKS * (RANKS - 1) / 2) as i64;
                assert!(data.iter().all(|&x| x == sum), "the sum is exact on rank {rank}");
                assert_eq!(lifeline.notice(), None, "nobody is missed");
            };
            thread::Builder::new().stack_size(1 << 20).spawn(life).expect("a thread can be started")
        })
        .collect();
    let have_ended = || ranks.iter().all(thread::JoinHandle::is_finished);
    farandole_testing::wait_until("the end of all ranks", DEADLINE, have_ended);
    for rank in ranks {
        rank.join().expect("a rank does not panic");
    }
}
