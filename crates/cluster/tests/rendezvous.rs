//! Ranks that meet, strangers that try to, and ranks that do not come.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::{Address, Error, Rendezvous, Server};
use farandole_plan::Rank;
use farandole_transport::Key;

const PATIENCE: Duration = Duration::from_secs(20);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn local_tcp() -> Address {
    "tcp:127.0.0.1:0".parse().unwrap()
}

fn meet_all(rendezvous: &Rendezvous, ranks: usize, round: u8) {
    thread::scope(|scope| {
        let visits: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || rendezvous.exchange(Rank::from(rank), &[round, rank as u8], soon())))
            .collect();
        let expected: Vec<Vec<u8>> = (0..ranks).map(|rank| vec![round, rank as u8]).collect();
        for visit in visits {
            assert_eq!(visit.join().unwrap().unwrap(), expected);
        }
    });
}

#[test]
fn everybody_takes_home_all_messages_and_may_meet_again() {
    let key = Key::random().unwrap();
    let folder = std::env::temp_dir().join(format!("farandole-meet-{}", std::process::id()));
    for at in [
        local_tcp(),
        Address::UnixAbstract(format!("meet-{}", std::process::id())),
        Address::UnixPath(folder.display().to_string()),
    ] {
        let server = Server::serve(&at, 5, &key).unwrap();
        let rendezvous = Rendezvous::new(server.address().clone(), 5, key.clone());
        for round in 0..3 {
            meet_all(&rendezvous, 5, round);
        }
    }
    assert!(!folder.exists(), "a server takes its socket away with it");
}

#[test]
fn ranks_may_come_before_the_server() {
    let key = Key::random().unwrap();
    let at = Address::UnixAbstract(format!("early-{}", std::process::id()));
    let rendezvous = Rendezvous::new(at.clone(), 1, key.clone());
    let early = thread::spawn(move || rendezvous.exchange(Rank(0), b"early", soon()));
    thread::sleep(Duration::from_millis(50));
    let _server = Server::serve(&at, 1, &key).unwrap();
    assert_eq!(early.join().unwrap().unwrap(), [b"early".to_vec()]);
}

#[test]
fn those_who_came_learn_who_did_not() {
    let key = Key::random().unwrap();
    let server = Server::serve(&local_tcp(), 4, &key).unwrap();
    let rendezvous = Rendezvous::new(server.address().clone(), 4, key);
    let soon = Instant::now() + Duration::from_millis(400);
    let errors = thread::scope(|scope| {
        let visits = [0, 2].map(|rank| {
            let rendezvous = &rendezvous;
            scope.spawn(move || rendezvous.exchange(Rank(rank), b"", soon))
        });
        visits.map(|visit| visit.join().unwrap().unwrap_err())
    });
    for error in errors {
        let Error::Missing { ranks, .. } = error else { panic!("{error}") };
        assert!(ranks.contains(&Rank(1)) && ranks.contains(&Rank(3)), "{ranks:?}");
    }
    meet_all(&rendezvous, 4, 7);
}

#[test]
fn a_wrong_key_is_noticed_on_both_sides_and_disturbs_nobody() {
    let key = Key::random().unwrap();
    let server = Server::serve(&local_tcp(), 2, &key).unwrap();
    let stranger = Rendezvous::new(server.address().clone(), 2, Key::random().unwrap());
    assert!(matches!(stranger.exchange(Rank(0), b"", soon()), Err(Error::Untrusted { .. })));
    meet_all(&Rendezvous::new(server.address().clone(), 2, key), 2, 0);
}

#[test]
fn strangers_who_talk_nonsense_or_not_at_all_disturb_nobody() {
    let key = Key::random().unwrap();
    let server = Server::serve(&local_tcp(), 2, &key).unwrap();
    let Address::Tcp(at) = server.address().clone() else { panic!("served over TCP") };
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&at).unwrap()).collect();
    let mut loud = TcpStream::connect(&at).unwrap();
    loud.write_all(b"GET / HTTP/1.1\r\nHost: rendezvous\r\n\r\n").unwrap();
    meet_all(&Rendezvous::new(server.address().clone(), 2, key), 2, 0);
    loud.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let _ = loud.read_to_end(&mut answer);
    assert_eq!(answer, b"", "a stranger is told nothing");
    drop(silent);
}

#[test]
fn two_processes_with_one_rank_or_other_sizes_are_turned_away_with_the_reason() {
    let key = Key::random().unwrap();
    let server = Server::serve(&local_tcp(), 2, &key).unwrap();
    let rendezvous = Rendezvous::new(server.address().clone(), 2, key.clone());
    let first = {
        let rendezvous = rendezvous.clone();
        thread::spawn(move || rendezvous.exchange(Rank(0), b"first", soon()))
    };
    thread::sleep(Duration::from_millis(300));
    let refused = |rendezvous: &Rendezvous, rank| match rendezvous.exchange(Rank(rank), b"", soon()) {
        Err(Error::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&rendezvous, 0), "another process is rank 0 already");
    assert_eq!(refused(&rendezvous, 9), "there is no rank 9 in a job of 2");
    let bigger = Rendezvous::new(server.address().clone(), 3, key);
    assert_eq!(refused(&bigger, 1), "rank 1 believes in 3 ranks, but the job has 2");
    rendezvous.exchange(Rank(1), b"second", soon()).unwrap();
    assert_eq!(first.join().unwrap().unwrap(), [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn nobody_at_the_address_is_an_error_at_the_deadline() {
    let at = Address::UnixAbstract(format!("nobody-{}", std::process::id()));
    let rendezvous = Rendezvous::new(at, 2, Key::random().unwrap());
    let began = Instant::now();
    let error = rendezvous.exchange(Rank(0), b"", began + Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn a_message_that_is_too_long_is_refused_here() {
    let at = Address::UnixAbstract("unused".into());
    let rendezvous = Rendezvous::new(at, 2, Key::random().unwrap());
    let error = rendezvous.exchange(Rank(0), &vec![0; 70_000], soon()).unwrap_err();
    assert!(matches!(error, Error::TooLong { bytes: 70_000, .. }), "{error}");
}
