//! Ranks that stay connected: who falls silent, who dies, who leaves in order, and who is told.
//!
//! Ranks are threads here; a rank that dies is a connection of its own making, cut. Stopped processes are real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;

use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::rendezvous::RendezvousEvent;
use farandole_cluster::{Address, FailureKind, FailureNotice, Lifeline, Rendezvous, Server};
use farandole_plan::Rank;
use farandole_testing::{NEVER, lapse};
use farandole_transport::Key;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_millis(600);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn place(name: &str) -> Address {
    Address::UnixAbstract(format!("lifeline-{name}-{}", std::process::id()))
}

/// A rank's lifeline, and what it is told.
struct Held {
    lifeline: Lifeline,
    told: Receiver<FailureNotice>,
}

impl Held {
    fn notice(&self) -> FailureNotice {
        self.told.recv_timeout(PATIENCE).expect("a notice is pronounced")
    }
}

fn hold(lifeline: Lifeline) -> Held {
    let (teller, told) = mpsc::channel();
    lifeline.on_failure(move |notice| teller.send(notice.clone()).unwrap());
    Held { lifeline, told }
}

/// All ranks join; `way(rank)` says how.
fn join_all(ranks: u32, way: impl Fn(u32) -> Rendezvous + Sync) -> Vec<Held> {
    thread::scope(|scope| {
        let way = &way;
        let visits: Vec<_> =
            (0..ranks).map(|rank| scope.spawn(move || way(rank).join(Rank(rank), b"", soon()).unwrap().1)).collect();
        visits.into_iter().map(|visit| hold(visit.join().unwrap())).collect()
    })
}

/// Copies of this program play ranks that die or are stopped.
const ROLE: &str = "LIFELINE_TEST_RANK";

#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_in_a_process_of_its_own() {
    let words = std::env::var(ROLE).expect("a test starts this, with a role");
    let [rank, ranks, at, key, host] = words.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let rendezvous = Rendezvous::new(at.parse().unwrap(), ranks.parse().unwrap(), key.parse().unwrap());
    let rendezvous = rendezvous.on_host(host).with_silence(Some(SILENCE));
    let held = rendezvous.join(Rank(rank.parse().unwrap()), b"", soon()).unwrap();
    lapse("a rank that waits to be killed", NEVER);
    drop(held);
}

/// A rank that is a process; killed at the end, whatever happens.
struct Process(Child);

impl Process {
    fn start(rank: u32, ranks: usize, server: &Server, key: &Key, host: &str) -> Process {
        let words = format!("{rank} {ranks} {} {} {host}", server.address(), key.to_hex());
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", "a_rank_in_a_process_of_its_own"]).env(ROLE, words);
        Process(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_is_named_to_all_others_at_once() {
    let key = Key::random().unwrap();
    let server = host::serve(&place("killed"), 4, &key);
    let victim = Process::start(3, 4, &server, &key, "h");
    // Its silence would be noticed never.
    let way = || Rendezvous::new(server.address().clone(), 4, key.clone()).with_silence(Some(NEVER));
    let held = join_all(3, |_| way());
    victim.signal(Signal::KILL);
    for rank in &held {
        let notice = rank.notice();
        assert_eq!((notice.rank, notice.pid, notice.kind), (Some(Rank(3)), Some(victim.0.id()), FailureKind::Gone));
        assert!(notice.to_string().starts_with("rank 3 on host h (pid "), "{notice}");
        assert_eq!(rank.lifeline.notice(), Some(notice));
    }
}

#[test]
fn a_stopped_process_is_named_as_such_by_the_server_or_by_its_neighbour() {
    let key = Key::random().unwrap();
    let own_host = farandole_cluster::environment::host_identity();
    // The server sees processes of its own host; on another one it asks the rank that is there, too.
    for (name, host) in [("seen", own_host.as_str()), ("asked", "elsewhere/1/2")] {
        let server = host::serve(&place(name), 3, &key);
        let victim = Process::start(2, 3, &server, &key, host);
        let way = || Rendezvous::new(server.address().clone(), 3, key.clone()).with_silence(Some(SILENCE));
        let held = join_all(2, |rank| way().on_host(if rank == 0 { host } else { "third" }));
        victim.signal(Signal::STOP);
        for rank in &held {
            let notice = rank.notice();
            assert_eq!((notice.rank, notice.kind), (Some(Rank(2)), FailureKind::Stopped), "{name}: {notice}");
            assert_eq!(notice.pid, Some(victim.0.id()));
        }
        victim.signal(Signal::CONT);
    }
}

#[test]
fn a_rank_that_is_stopped_for_less_than_the_allowed_silence_harms_nobody() {
    let key = Key::random().unwrap();
    let server = host::serve(&place("short"), 2, &key);
    let victim = Process::start(1, 2, &server, &key, "h");
    let silence = Some(Duration::from_secs(8));
    let held = join_all(1, |_| Rendezvous::new(server.address().clone(), 2, key.clone()).with_silence(silence));
    victim.signal(Signal::STOP);
    lapse("the rank that is stopped", SILENCE / 2);
    victim.signal(Signal::CONT);
    assert!(held[0].told.recv_timeout(SILENCE * 2).is_err(), "nothing has happened");
}

#[test]
fn a_host_whose_ranks_are_all_silent_is_lost() {
    let key = Key::random().unwrap();
    let server = host::serve(&place("host"), 3, &key);
    let victims = [1, 2].map(|rank| Process::start(rank, 3, &server, &key, "far"));
    let way = Rendezvous::new(server.address().clone(), 3, key).with_silence(Some(SILENCE)).on_host("near");
    let held = hold(way.join(Rank(0), b"", soon()).unwrap().1);
    for victim in &victims {
        victim.signal(Signal::STOP);
    }
    let notice = held.notice();
    assert_eq!((notice.kind, notice.host.as_deref()), (FailureKind::HostLost, Some("far")), "{notice}");
}

mod timings {
    use super::*;

    #[test]
    fn ranks_that_compute_for_longer_than_the_allowed_silence_are_not_missed() {
        let key = Key::random().unwrap();
        let server = host::serve(&place("busy"), 3, &key);
        let silence = Duration::from_secs(3);
        let way = || Rendezvous::new(server.address().clone(), 3, key.clone()).with_silence(Some(silence));
        let held = join_all(3, |_| way());
        for rank in &held {
            assert!(rank.told.recv_timeout(2 * silence).is_err(), "nobody is missed");
        }
    }
}

#[test]
fn ranks_that_leave_in_order_are_not_mourned() {
    let key = Key::random().unwrap();
    for at in [place("order"), "tcp:127.0.0.1:0".parse().unwrap()] {
        let server = host::serve(&at, 3, &key);
        // A loaded machine may keep a rank from saying that it lives.
        let way = || Rendezvous::new(server.address().clone(), 3, key.clone()).with_silence(Some(NEVER));
        let mut held = join_all(3, |_| way());
        drop(held.remove(1));
        assert!(held[0].told.recv_timeout(SILENCE).is_err(), "nobody is missed");
        // The server may go first, too.
        drop(server);
        for rank in &held {
            assert!(rank.told.recv_timeout(SILENCE).is_err(), "a server that closes in order is not missed");
        }
    }
}

#[test]
fn a_blame_is_believed_when_nothing_better_comes_to_light() {
    let key = Key::random().unwrap();
    let server = host::serve(&place("blame"), 3, &key);
    let held = join_all(3, |_| Rendezvous::new(server.address().clone(), 3, key.clone()));
    held[0].lifeline.blame(Some(Rank(2)), "the connection to rank 2 timed out");
    for rank in &held {
        let notice = rank.notice();
        assert_eq!(notice.to_string(), "rank 0 failed: the connection to rank 2 timed out");
    }
}

#[test]
fn a_death_that_follows_a_blame_is_the_cause() {
    let key = Key::random().unwrap();
    let server = host::serve(&place("cause"), 3, &key);
    let victim = Process::start(2, 3, &server, &key, "h");
    let held = join_all(2, |_| Rendezvous::new(server.address().clone(), 3, key.clone()));
    held[0].lifeline.blame(Some(Rank(2)), "the connection to rank 2 was reset");
    victim.signal(Signal::KILL);
    for rank in &held {
        assert_eq!(rank.notice().kind, FailureKind::Gone);
    }
}

#[test]
fn the_owner_of_a_part_hears_everything_and_pronounces() {
    let key = Key::random().unwrap();
    let (teller, told) = mpsc::channel();
    let on_event = Box::new(move |event| teller.send(event).unwrap());
    let server = Server::serve_part(&place("part"), 4, &[1, 2, 3].map(Rank), &key, on_event).unwrap();
    let (killed, stopped) = (Process::start(2, 4, &server, &key, "h"), Process::start(3, 4, &server, &key, "h"));
    let way = Rendezvous::new(server.address().clone(), 4, key).with_silence(Some(SILENCE));
    let visit = thread::spawn(move || hold(way.join(Rank(1), b"", soon()).unwrap().1));
    let next = || told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(next(), RendezvousEvent::Gathered { epoch: 0, blobs } if blobs.len() == 3));
    server.tell(vec![Vec::new(); 4]);
    let held = visit.join().unwrap();
    held.lifeline.blame(None, "disk full");
    assert_eq!(next(), RendezvousEvent::Blamed { by: Rank(1), peer: None, cause: "disk full".into() });
    killed.signal(Signal::KILL);
    assert!(matches!(next(), RendezvousEvent::Lost { rank: Rank(2), .. }));
    stopped.signal(Signal::STOP);
    assert!(matches!(next(), RendezvousEvent::Silent { rank: Rank(3), since } if since >= SILENCE));
    let notice = FailureNotice::new(FailureKind::Stopped).on_rank(Rank(3)).saying("seen by the agent");
    server.pronounce(&notice);
    assert_eq!(held.notice(), notice);
    drop(held);
    assert_eq!(next(), RendezvousEvent::Left { rank: Rank(1) });
}
