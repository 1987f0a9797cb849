//! A forked child has copies of the handles of its parent, but not the threads behind them: it can drop them, and the
//! parent does not notice.

#![allow(unsafe_code, clippy::unwrap_used, reason = "a test that cannot go on has failed, and forks")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_cluster::blocks::{BlockContact, BlockExchange, BlockListener, BlockPeer};
use farandole_cluster::environment::{Environment, RendezvousPoint};
use farandole_plan::Rank;
use farandole_transport::{JobId, Key};

/// Runs the closure in a forked child, which must end before long, and says how.
fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child is a copy of this thread alone. It calls the closure, which must not wait for other threads,
    // and leaves by `_exit`, so that nothing of the parent's runs twice.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        body();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process that nobody else waits for, and `status` is valid for writing.
    let mut ended = || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child;
    // A child that hangs ends with this process, which leads its group: the runner kills all of it.
    farandole_testing::wait_until("the end of a child", Duration::from_secs(60), &mut ended);
    status
}

#[test]
fn a_child_can_drop_what_rank_zero_hosts() {
    let rank = |rank: u32| {
        let mut environment = Environment::from_lookup(|_| None).unwrap();
        let key_socket = format!("farandole-fork-{}", std::process::id());
        (environment.rank, environment.size) = (Rank(rank), 2);
        environment.rendezvous = Some(RendezvousPoint::OnThisHost { key_socket });
        environment
    };
    let deadline = Instant::now() + Duration::from_secs(40);
    let mut hosted = Some(rank(0).open(deadline).unwrap());
    assert_eq!(in_child(|| drop(hosted.take())), 0);
    // The key_socket and the meeting behind it are open as before.
    let other = std::thread::spawn(move || {
        let access = rank(1).open(deadline).unwrap();
        access.rendezvous.unwrap().exchange(Rank(1), b"one", deadline).unwrap()
    });
    let blobs = hosted.as_ref().unwrap().rendezvous.as_ref().unwrap().exchange(Rank(0), b"zero", deadline).unwrap();
    assert_eq!((blobs, other.join().unwrap().len()), (vec![b"zero".to_vec(), b"one".to_vec()], 2));
}

/// A rank that has no cache refuses connections at once, so that others read from storage without a delay. Its data
/// loader may fork workers that open remote sources.
#[test]
fn a_child_does_not_listen_on_the_block_socket_of_its_parent() {
    let peer = |rank| BlockPeer { key: Key::from_bytes([7; 32]), job: JobId::named("fork"), rank };
    let listener = || BlockListener::reserve("here", &[]).unwrap();
    let contact = |listener: &BlockListener| BlockContact { host: "here".into(), place: listener.contact().to_vec() };
    let (first, second) = (listener(), listener());
    let contacts = vec![contact(&first), contact(&second)];
    let (parent, asking) =
        (BlockExchange::new(peer(0), first, contacts.clone()), BlockExchange::new(peer(1), second, contacts));
    let ask = || asking.ask(0, b"question", 1, Duration::from_secs(20));
    assert_eq!(in_child(|| parent.serve(Arc::new(|_| None)).unwrap()), 0);
    assert_eq!(ask().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    // The parent answers when it has a cache itself, and goes on after a child has dropped its copy.
    let mut parent = Some(parent);
    parent.as_ref().unwrap().serve(Arc::new(|_| Some(Arc::new(vec![9])))).unwrap();
    assert_eq!(in_child(|| drop(parent.take())), 0);
    assert_eq!(ask().unwrap().unwrap().block, [9]);
}
