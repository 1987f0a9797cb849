//! Ranks that meet, strangers that try to, and ranks that do not come.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::channel::VERSION;
use farandole_cluster::rendezvous::RendezvousEvent;
use farandole_cluster::{Address, Error, Lifeline, Rendezvous, Server};
use farandole_plan::Rank;
use farandole_testing::{NEVER, Sleeper, lapse, wait_for, wait_until};
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
    let folder = farandole_testing::Folder::new();
    let socket = folder.join("socket");
    for at in [
        local_tcp(),
        Address::UnixAbstract(format!("meet-{}", std::process::id())),
        Address::UnixPath(socket.display().to_string()),
    ] {
        let server = host::serve(&at, 5, &key);
        let rendezvous = Rendezvous::new(server.address().clone(), 5, key.clone());
        for round in 0..3 {
            meet_all(&rendezvous, 5, round);
        }
    }
    assert!(!socket.exists(), "a server takes its socket away with it");
}

#[test]
fn ranks_may_come_before_the_server() {
    let key = Key::random().unwrap();
    let at = Address::UnixAbstract(format!("early-{}", std::process::id()));
    let rendezvous = Rendezvous::new(at.clone(), 1, key.clone());
    let early = Sleeper::spawn(move || rendezvous.exchange(Rank(0), b"early", soon()));
    let _server = host::serve(&at, 1, &key);
    assert_eq!(early.join().unwrap().unwrap(), [b"early".to_vec()]);
}

#[test]
fn those_who_came_learn_who_did_not() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 4, &key);
    let rendezvous = Rendezvous::new(server.address().clone(), 4, key);
    let soon = Instant::now() + Duration::from_secs(1);
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
    let server = host::serve(&local_tcp(), 2, &key);
    let stranger = Rendezvous::new(server.address().clone(), 2, Key::random().unwrap());
    // It is not tried again until the deadline.
    let never = Instant::now() + NEVER;
    assert!(matches!(stranger.exchange(Rank(0), b"", never), Err(Error::Untrusted { .. })));
    meet_all(&Rendezvous::new(server.address().clone(), 2, key), 2, 0);
}

#[test]
fn strangers_who_talk_nonsense_or_not_at_all_disturb_nobody() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 2, &key);
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
    let server = host::serve(&local_tcp(), 2, &key);
    let rendezvous = Rendezvous::new(server.address().clone(), 2, key.clone());
    // Two come as rank 0, and either may be the first. It waits for rank 1; the other one is turned away.
    let (ended, ends) = mpsc::channel();
    let pair = [0, 1].map(|_| {
        let (rendezvous, ended) = (rendezvous.clone(), ended.clone());
        thread::spawn(move || ended.send(rendezvous.exchange(Rank(0), b"first", soon())).unwrap())
    });
    let why_refused = |outcome| match outcome {
        Err(Error::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    let refused = |rendezvous: &Rendezvous, rank| why_refused(rendezvous.exchange(Rank(rank), b"", soon()));
    assert_eq!(why_refused(ends.recv().unwrap()), "another process is rank 0 already");
    assert_eq!(refused(&rendezvous, 9), "there is no rank 9 in a job of 2");
    let bigger = Rendezvous::new(server.address().clone(), 3, key);
    assert_eq!(refused(&bigger, 1), "rank 1 believes in 3 ranks, but the job has 2");
    rendezvous.exchange(Rank(1), b"second", soon()).unwrap();
    assert_eq!(ends.recv().unwrap().unwrap(), [b"first".to_vec(), b"second".to_vec()]);
    pair.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_process_cannot_come_as_a_rank_that_another_one_is_and_stays() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 2, &key);
    let way = Rendezvous::new(server.address().clone(), 2, key);
    let join = |way: &Rendezvous| {
        thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || way.join(Rank(rank), b"", soon()).unwrap().1));
            ranks.map(|rank| rank.join().unwrap())
        })
    };
    let _staying = join(&way);
    // Another job with the same key and address, and no name: its rank 1 would wait for the next meeting of this one.
    match way.clone().on_host("elsewhere/boot/net").join(Rank(1), b"", soon()) {
        Err(Error::Refused { why }) => assert!(why.contains("is rank 1 already and still runs"), "{why}"),
        other => panic!("{other:?}"),
    }
    // The processes themselves may meet again.
    let _again = join(&way);
}

#[test]
fn nobody_at_the_address_is_an_error_at_the_deadline() {
    let at = Address::UnixAbstract(format!("nobody-{}", std::process::id()));
    let rendezvous = Rendezvous::new(at, 2, Key::random().unwrap());
    let error = rendezvous.exchange(Rank(0), b"", Instant::now() + Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn a_message_that_is_too_long_is_refused_here() {
    let at = Address::UnixAbstract("unused".into());
    let rendezvous = Rendezvous::new(at, 2, Key::random().unwrap());
    let error = rendezvous.exchange(Rank(0), &vec![0; 70_000], soon()).unwrap_err();
    assert!(matches!(error, Error::TooLong { bytes: 70_000, .. }), "{error}");
}

/// What went up and what came down.
type Passed = (Vec<u8>, Vec<u8>);

/// A TCP proxy in front of a server that keeps what passes, in both directions, until both sides have closed.
fn recording(server: &Address) -> (Address, thread::JoinHandle<Passed>) {
    let Address::Tcp(server) = server.clone() else { panic!("served over TCP") };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = Address::Tcp(listener.local_addr().unwrap().to_string());
    let recorder = thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(server).unwrap();
        let back = {
            let (from, to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || pass(from, to))
        };
        (pass(near, far), back.join().unwrap())
    });
    (at, recorder)
}

fn pass(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let mut passed = Vec::new();
    let mut bytes = [0; 4096];
    from.set_read_timeout(Some(PATIENCE)).unwrap();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        passed.extend_from_slice(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    passed
}

/// How many frames follow a handshake of this many bytes.
fn frames_after(handshake_bytes: usize, bytes: &[u8]) -> usize {
    let (mut rest, mut frames) = (&bytes[handshake_bytes..], 0);
    while let Some((length, behind)) = rest.split_first_chunk() {
        rest = &behind[usize::from(u16::from_le_bytes(*length))..];
        frames += 1;
    }
    assert!(rest.is_empty(), "frames end where the connection does");
    frames
}

#[test]
fn what_was_recorded_of_an_honest_rank_opens_nothing() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 1, &key);
    let (proxy, recorder) = recording(server.address());
    Rendezvous::new(proxy, 1, key.clone()).exchange(Rank(0), b"secret", soon()).unwrap();
    let (up, _) = recorder.join().unwrap();
    assert!(!up.windows(6).any(|bytes| bytes == b"secret"), "what ranks say is encrypted");

    let Address::Tcp(at) = server.address().clone() else { panic!("served over TCP") };
    let mut intruder = TcpStream::connect(at).unwrap();
    intruder.write_all(&up).unwrap();
    intruder.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let _ = intruder.read_to_end(&mut answer);
    assert!(answer.len() <= 56, "a handshake that leads nowhere, and nothing of the meeting");
    meet_all(&Rendezvous::new(server.address().clone(), 1, key), 1, 0);
}

#[test]
fn five_hundred_connections_of_strangers_keep_nobody_out() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 3, &key);
    let Address::Tcp(at) = server.address().clone() else { panic!("served over TCP") };
    let strangers: Vec<TcpStream> = (0..500)
        .map(|index| {
            let mut stranger = TcpStream::connect(&at).unwrap();
            // A third is silent, a third has begun a handshake, a third talks nonsense.
            let words: &[u8] = [&b""[..], b"FRNDCHN\x01\x01\0\0\0", &[0xa5; 300]][index % 3];
            let _ = stranger.write_all(words);
            stranger
        })
        .collect();
    meet_all(&Rendezvous::new(server.address().clone(), 3, key), 3, 0);
    // The ranks have met while strangers still held their connections.
    drop(strangers);
}

#[test]
fn another_version_is_named_to_both_sides() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 1, &key);
    let Address::Tcp(at) = server.address().clone() else { panic!("served over TCP") };
    let mut newer = TcpStream::connect(at).unwrap();
    newer.write_all(&[&b"FRNDCHN"[..], &[VERSION + 1; 80]].concat()).unwrap();
    newer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 8];
    newer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, &[&b"FRNDCHN"[..], &[VERSION]].concat()[..]);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let newer = Address::Tcp(listener.local_addr().unwrap().to_string());
    let newer_server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[&b"FRNDCHN"[..], &[VERSION + 1]].concat()).unwrap();
        let _ = stream.read(&mut [0; 64]);
    });
    let error = Rendezvous::new(newer, 1, key).exchange(Rank(0), b"", soon()).unwrap_err();
    assert!(matches!(error, Error::Version { theirs, .. } if theirs == VERSION + 1), "{error}");
    assert!(error.to_string().contains("install the same farandole everywhere"), "{error}");
    newer_server.join().unwrap();
}

#[test]
fn parts_of_a_meeting_gather_their_ranks_and_are_told_about_the_others() {
    let key = Key::random().unwrap();
    let (teller, told) = mpsc::channel();
    let part = |name: &str, seats: [u32; 2]| {
        let at = Address::UnixAbstract(format!("part-{name}-{}", std::process::id()));
        let teller = teller.clone();
        let on_event = Box::new(move |event| teller.send(event).unwrap());
        Server::serve_part(&at, 4, &seats.map(Rank), &key, on_event).unwrap()
    };
    let parts = [part("a", [0, 2]), part("b", [1, 3])];
    let way = |rank: u32| Rendezvous::new(parts[rank as usize % 2].address().clone(), 4, key.clone());
    let refused = way(1).exchange(Rank(0), b"", soon()).unwrap_err();
    assert!(refused.to_string().contains("rank 0 belongs to another host"), "{refused}");
    thread::scope(|scope| {
        let visits = [0, 1, 2, 3].map(|rank| {
            let way = way(rank);
            scope.spawn(move || way.exchange(Rank(rank), &[rank as u8], soon()))
        });
        let mut blobs = vec![Vec::new(); 4];
        for _ in 0..2 {
            let RendezvousEvent::Gathered { epoch: 0, blobs: some } = told.recv_timeout(PATIENCE).unwrap() else {
                panic!("nothing else can happen")
            };
            assert_eq!(some.len(), 2);
            some.into_iter().for_each(|(rank, blob)| blobs[rank.index()] = blob);
        }
        parts.iter().for_each(|part| part.tell(blobs.clone()));
        for visit in visits {
            assert_eq!(visit.join().unwrap().unwrap(), [[0], [1], [2], [3]]);
        }
    });
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let shortly = || Instant::now() + Duration::from_millis(300);
    thread::scope(|scope| {
        let patient = scope.spawn(|| way(2).exchange(Rank(2), b"", soon()));
        let hasty = scope.spawn(|| way(0).exchange(Rank(0), b"", shortly()));
        assert!(matches!(next(), RendezvousEvent::Gathered { epoch: 1, .. }));
        assert_eq!(next(), RendezvousEvent::Overdue { epoch: 1, missing: vec![] });
        parts[1].count();
        assert_eq!(next(), RendezvousEvent::Missing { epoch: 1, ranks: vec![Rank(1), Rank(3)] });
        parts[0].refuse(vec![Rank(1), Rank(3)]);
        assert_eq!(next(), RendezvousEvent::Withdrawn { epoch: 1, rank: Rank(0) });
        let error = hasty.join().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Missing { ranks, .. } if *ranks == [1, 3].map(Rank)), "{error}");
        // It comes again, and the one who waited on is not forgotten.
        let again = scope.spawn(|| way(0).exchange(Rank(0), b"", soon()));
        assert!(matches!(next(), RendezvousEvent::Gathered { epoch: 1, .. }));
        parts[0].tell(vec![Vec::new(); 4]);
        assert_eq!([patient, again].map(|visit| visit.join().unwrap().unwrap().len()), [4, 4]);
    });
}

#[test]
fn an_owner_that_does_not_answer_keeps_nobody_waiting() {
    let key = Key::random().unwrap();
    let at = Address::UnixAbstract(format!("part-mute-{}", std::process::id()));
    let part = Server::serve_part(&at, 4, &[0, 2].map(Rank), &key, Box::new(|_| {})).unwrap();
    let way = Rendezvous::new(part.address().clone(), 4, key);
    let error = way.exchange(Rank(0), b"", Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert!(matches!(&error, Error::Missing { ranks, .. } if *ranks == [Rank(2)]), "{error}");
}

#[test]
fn ranks_that_have_left_meet_again_and_wait_for_those_who_have_not() {
    const RANKS: u32 = 3;
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), RANKS as usize, &key);
    let way = Rendezvous::new(server.address().clone(), RANKS as usize, key);
    thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|rank| {
            let way = &way;
            scope.spawn(move || {
                for epoch in 0..20u8 {
                    let (blobs, lifeline) = way.join(Rank(rank), &[epoch], soon()).unwrap();
                    assert_eq!(blobs, [[epoch]; RANKS as usize], "nobody is of another epoch");
                    if u32::from(epoch) % RANKS == rank {
                        lapse("the rank that leaves last", Duration::from_millis(10));
                    }
                    assert_eq!(lifeline.notice(), None, "who leaves in order is not dead");
                }
            })
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        // All have left in order. Those who want to go on without rank 1 hear whom they miss.
        let shortly = Instant::now() + Duration::from_millis(300);
        let waiting = [0, 2].map(|rank| {
            let way = &way;
            scope.spawn(move || way.exchange(Rank(rank), b"", shortly).unwrap_err())
        });
        for error in waiting.map(|rank| rank.join().unwrap()) {
            assert!(matches!(&error, Error::Missing { ranks, .. } if ranks.contains(&Rank(1))), "{error}");
        }
    });
}

#[test]
fn a_verdict_on_one_epoch_does_not_reach_the_next() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 2, &key);
    let way = Rendezvous::new(server.address().clone(), 2, key);
    let meet = || {
        let other = thread::spawn({
            let way = way.clone();
            move || way.join(Rank(1), b"", soon()).unwrap().1
        });
        (way.join(Rank(0), b"", soon()).unwrap().1, other.join().unwrap())
    };
    let (old, other) = meet();
    other.blame(Some(Rank(0)), "it does not answer");
    wait_until("the belief in a blame", PATIENCE, || old.notice().is_some());
    drop((old, other));
    let (new, other) = meet();
    // The first cause stays: an old one would be it.
    other.blame(Some(Rank(0)), "its disk is full");
    for lifeline in [new, other] {
        let notice = wait_for("a notice", PATIENCE, || lifeline.notice());
        assert!(notice.to_string().contains("its disk is full"), "{notice}");
    }
}

#[test]
fn a_host_of_the_meeting_that_gives_up_says_who_was_missing() {
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), 3, &key);
    let way = Rendezvous::new(server.address().clone(), 3, key);
    let waiting = thread::spawn({
        let way = way.clone();
        move || way.exchange(Rank(1), b"", Instant::now() + NEVER).unwrap_err()
    });
    // Rank 0 is of this process, as the server is.
    let hasty = Instant::now() + Duration::from_millis(300);
    assert!(way.join(Rank(0), b"", hasty).is_err());
    drop(server);
    let error = waiting.join().unwrap();
    assert!(matches!(&error, Error::Missing { ranks, .. } if *ranks == [Rank(2)]), "{error}");
}

#[test]
fn two_hundred_and_fifty_six_ranks_meet_with_one_message_up_and_one_down_each() {
    const RANKS: usize = 256;
    let key = Key::random().unwrap();
    let server = host::serve(&local_tcp(), RANKS, &key);
    let direct = Rendezvous::new(server.address().clone(), RANKS, key.clone()).with_silence(None);
    let (proxy, recorder) = recording(server.address());
    let recorded = Rendezvous::new(proxy, RANKS, key).with_silence(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    thread::scope(|scope| {
        let visits: Vec<_> = (0..RANKS)
            .map(|rank| {
                let way = if rank == 100 { &recorded } else { &direct };
                let visit = move || way.join(Rank::from(rank), &(rank as u32).to_le_bytes(), deadline);
                thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, visit).unwrap()
            })
            .collect();
        let expected: Vec<Vec<u8>> = (0..RANKS as u32).map(|rank| rank.to_le_bytes().to_vec()).collect();
        let lifelines: Vec<Lifeline> = visits
            .into_iter()
            .map(|visit| {
                let (blobs, lifeline) = visit.join().unwrap().unwrap();
                assert_eq!(blobs, expected);
                lifeline
            })
            .collect();
        assert!(lifelines.iter().all(|lifeline| lifeline.notice().is_none()));
    });
    let (up, down) = recorder.join().unwrap();
    // Up: the confirmation of the handshake, the arrival, the goodbye. Down: everybody's messages.
    assert_eq!((frames_after(64, &up), frames_after(56, &down)), (3, 1));
}
