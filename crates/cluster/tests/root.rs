//! Who is let in: processes of another user of this machine are not, ranks in PID namespaces of their own are. These
//! tests need root, which alone may become another user or make a PID namespace.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed; a copy says the key"
)]

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_cluster::environment::RendezvousPoint;
use farandole_cluster::live::{JobState, JobView, LiveEndpoint, find};
use farandole_cluster::membership::simulated::Whereabouts;
use farandole_cluster::membership::{Endpoint, EndpointOptions, Limits, MemberId};
use farandole_cluster::streaming::{StateSource, StreamLimits, StreamPeer};
use farandole_cluster::{Address, Environment, RendezvousAccess, Result, Server};
use farandole_plan::Rank;
use farandole_testing::{finish, lapse, wait_until};
use farandole_transport::{JobId, Key};
use rustix::process::{Uid, geteuid};

/// What a copy of this program is told: the key socket and its rank; unset in the test run itself.
const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

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

/// What a caller gets that says to be of another version; a listener answers that with its own version.
fn answer_to_another_version(name: &str) -> Vec<u8> {
    let mut caller = UnixStream::connect_addr(&address_of(name)).unwrap();
    caller.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = caller.write_all(b"FRNDCHN\0");
    let mut bytes = [0; 64];
    let count = caller.read(&mut bytes).unwrap_or_default();
    bytes[..count].to_vec()
}

#[test]
fn a_process_of_another_user_was_heard_at_abstract_sockets() {
    let (key, job) = (Key::random().unwrap(), JobId::named("root test"));
    let name_in = |contact: &[u8]| Whereabouts::decode(contact).unwrap().unix_name;
    let rendezvous = format!("farandole-root-{}-rendezvous", std::process::id());
    let state = Arc::new(JobState::new(JobView::default(), &[]));
    let _server = Server::serve(&Address::UnixAbstract(rendezvous.clone()), job, 2, &key, state).unwrap();
    let limits = Limits { min_members: 1, max_members: 2, silence: None };
    let member = Endpoint::bind(EndpointOptions::new(key.clone(), job, limits)).unwrap();
    member.found(MemberId(0), vec![(MemberId(0), Vec::new(), member.contact())]);
    let source = StateSource::new(StreamLimits { least_bytes: 0, most_log: 1, bytes_per_second: None });
    let own = StreamPeer { key: key.clone(), job, host: "here".into(), member: 0 };
    let stream = source.listen(&own, &[]).unwrap();
    for name in [rendezvous, name_in(&member.contact()), name_in(&stream)] {
        let theirs = name.clone();
        assert_eq!(as_somebody_else(move || answer_to_another_version(&theirs)), b"", "{name}");
        assert_eq!(answer_to_another_version(&name)[..7], *b"FRNDCHN", "{name}");
    }
}

/// A key socket that only this test uses.
fn key_socket(test: &str) -> String {
    format!("farandole-root-{}-{test}", std::process::id())
}

fn address_of(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// Makes this process one of `size` ranks of a job on this host, whose key is at this socket: rank 0 serves the key,
/// others fetch it.
fn open_rank(rank: u32, size: usize, key_socket: &str) -> Result<RendezvousAccess> {
    let mut environment = Environment::from_lookup(|_| None).unwrap();
    let rendezvous = RendezvousPoint::OnThisHost { key_socket: key_socket.to_owned() };
    (environment.rank, environment.size, environment.rendezvous) = (Rank(rank), size, Some(rendezvous));
    environment.open(Instant::now() + PATIENCE)
}

/// Waits until nobody holds the key socket. A process that binds to it, unlike one that connects, is no visitor.
fn wait_until_closed(key_socket: &str) {
    wait_until("rank 0 closes the key socket", PATIENCE, || UnixListener::bind_addr(&address_of(key_socket)).is_ok());
}

#[test]
fn a_key_socket_that_another_user_holds_is_named_and_its_key_is_not_taken() {
    let socket = key_socket("squatter");
    let theirs = address_of(&socket);
    let squatter = as_somebody_else(move || UnixListener::bind_addr(&theirs).unwrap());
    // It would even have a key to give.
    std::thread::spawn(move || {
        for stream in squatter.incoming() {
            let _ = stream.unwrap().write_all("0".repeat(64).as_bytes());
        }
    });
    for rank in [1, 0] {
        let error = open_rank(rank, 2, &socket).unwrap_err().to_string();
        assert!(error.contains("of user 65534, who is not you"), "{error}");
    }
}

#[test]
fn a_visitor_of_another_user_gets_no_key_and_is_not_counted() {
    let socket = key_socket("visitor");
    let host = open_rank(0, 2, &socket).unwrap();
    let theirs = address_of(&socket);
    let got = as_somebody_else(move || read_all(&theirs));
    assert!(got.is_empty(), "{got:?}");
    assert_eq!(open_rank(1, 2, &socket).unwrap().key, host.key, "the key socket is still open for the rank");
}

#[test]
fn another_user_who_takes_the_socket_name_of_a_rank_keeps_nobody_out() {
    let socket = key_socket("namesake");
    let host = open_rank(0, 2, &socket).unwrap();
    let name = address_of(&format!("{socket}-rank-1"));
    let _namesake = as_somebody_else(move || UnixListener::bind_addr(&name).unwrap());
    assert_eq!(open_rank(1, 2, &socket).unwrap().key, host.key);
    wait_until_closed(&socket);
}

#[test]
fn ranks_in_pid_namespaces_of_their_own_get_the_key_and_are_counted() {
    let socket = key_socket("namespaces");
    let host = open_rank(0, 3, &socket).unwrap();
    let visit = |rank: u32| {
        let mut copy = Command::new("unshare");
        copy.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        copy.args(["a_rank_fetches_the_key", "--ignored", "--exact", "--nocapture"]);
        let output = finish(copy.env(ROLE, format!("{socket} {rank}")), PATIENCE + PATIENCE);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("key {}", host.key.to_hex())), "unshare needs root: {said}{errors}");
    };
    visit(1);
    // The same rank once more is not another one: the key socket stays open for rank 2.
    visit(1);
    lapse("the key socket, which might close", Duration::from_millis(50));
    visit(2);
    wait_until_closed(&socket);
}

#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_fetches_the_key() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    let (socket, rank) = role.split_once(' ').unwrap();
    println!("key {}", open_rank(rank.parse().unwrap(), 3, socket).unwrap().key.to_hex());
}
