//! Who is let in, seen by another user of this machine. These tests need root: only root can become somebody else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use farandole_cluster::live::{JobState, JobView, LiveEndpoint, find};
use rustix::process::{Uid, geteuid};

/// Runs something as another user, on a thread of its own: the kernel lets a thread change its user alone.
fn as_somebody_else<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    assert!(geteuid().is_root(), "this test needs root, to become another user");
    let thread = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(Uid::from_raw(65_534)).expect("root may become anybody");
        what()
    });
    thread.join().unwrap()
}

fn open(size: usize) -> LiveEndpoint {
    LiveEndpoint::open(Arc::new(JobState::new(JobView { size, ..JobView::default() }, &[])), None).unwrap()
}

fn address(endpoint: &LiveEndpoint) -> SocketAddr {
    SocketAddr::from_abstract_name(endpoint.name().unwrap()).unwrap()
}

fn read_all(address: &SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    UnixStream::connect_addr(address).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_visitor_of_another_user_gets_nothing_from_a_live_endpoint() {
    let endpoint = open(1);
    let theirs = address(&endpoint);
    assert!(as_somebody_else(move || read_all(&theirs)).is_empty());
    assert!(!read_all(&address(&endpoint)).is_empty(), "whoever may look is served all the same");
}

#[test]
fn a_socket_of_another_user_is_not_taken_for_a_job_of_ours() {
    let endpoint = open(1);
    // The next name of this process, which the other user took.
    let name = endpoint.name().unwrap().rsplit_once('-').unwrap().0.to_owned() + "-9003";
    let squatted = SocketAddr::from_abstract_name(&name).unwrap();
    let _squatter = as_somebody_else(move || UnixListener::bind_addr(&squatted).unwrap());
    let found: Vec<String> = find().unwrap().into_iter().map(|job| job.name).collect();
    assert!(found.contains(&endpoint.name().unwrap().to_owned()), "{found:?}");
    assert!(!found.contains(&name), "{found:?}");
}
