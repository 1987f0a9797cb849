//! Streams of a state, over sockets: what a source hands over arrives in order, and what ends a stream is told.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, Instant};

use farandole_cluster::streaming::{StateReceiver, StateSource, StreamLimits, StreamPeer, Streamed};
use farandole_testing::at_least;
use farandole_transport::{JobId, Key};

const DEADLINE: Duration = Duration::from_secs(20);

const LIMITS: StreamLimits = StreamLimits { least_bytes: 10, most_log: 2, bytes_per_second: None };

fn key() -> Key {
    Key::from_bytes([0x5a; 32])
}

fn peer(host: &str, member: u64) -> StreamPeer {
    StreamPeer { key: key(), job: JobId::named("streams"), host: host.to_owned(), member }
}

/// A source, and somebody who follows it, from the same host or from another one.
fn pair(limits: StreamLimits, follower_host: &str) -> (StateSource, StateReceiver) {
    let source = StateSource::new(limits);
    let contact = source.listen(&peer("here", 0), &["127.0.0.1:0".parse().unwrap()]).unwrap();
    assert_eq!(source.listen(&peer("here", 0), &[]).unwrap(), contact, "it listens once");
    let receiver = StateReceiver::connect(&contact, &peer(follower_host, 7)).unwrap();
    farandole_testing::wait_until("somebody who wants the state", DEADLINE, || source.wants_snapshot());
    (source, receiver)
}

/// What comes next besides words of waiting.
fn next(receiver: &mut StateReceiver) -> Streamed {
    let until = Instant::now() + DEADLINE;
    loop {
        assert!(Instant::now() < until, "nothing comes");
        match receiver.receive().unwrap() {
            Streamed::Wait => {}
            other => return other,
        }
    }
}

fn assert_ends(receiver: &mut StateReceiver, why: &str) {
    let word = next(receiver);
    assert!(matches!(&word, Streamed::JoinNow(text) if text.contains(why)), "{word:?}");
    assert!(receiver.receive().is_err(), "nothing comes after that");
}

#[test]
fn a_snapshot_and_all_updates_arrive_in_order() {
    for host in ["here", "there"] {
        let (source, mut receiver) = pair(LIMITS, host);
        source.give_update(b"early", vec![1; 5]);
        let state: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
        source.give_snapshot(b"k", state.clone());
        assert!(source.is_followed() && !source.wants_snapshot());
        source.give_update(b"k+1", vec![1; 100]);
        source.give_update(b"k+2", Vec::new());
        let snapshot = next(&mut receiver);
        assert!(
            matches!(snapshot, Streamed::Snapshot { note, state: got, .. } if note == b"k" && got == state),
            "{host}"
        );
        let first = next(&mut receiver);
        assert_eq!(first, Streamed::Update { note: b"k+1".to_vec(), update: vec![1; 100], left_bytes: 0 });
        let second = next(&mut receiver);
        assert_eq!(second, Streamed::Update { note: b"k+2".to_vec(), update: Vec::new(), left_bytes: 0 });
        assert_eq!(receiver.receive().unwrap(), Streamed::Wait, "whoever waits is told so");
        drop(receiver);
        farandole_testing::wait_until("the source to forget the follower", DEADLINE, || {
            source.give_update(b"later", vec![1]);
            !source.is_followed()
        });
    }
}

#[test]
fn a_log_that_grows_too_long_ends_the_stream() {
    // A second for a hundred bytes: the snapshot is still on its way.
    let (source, mut receiver) = pair(StreamLimits { bytes_per_second: Some(100), ..LIMITS }, "here");
    source.give_snapshot(b"k", vec![1; 100]);
    source.give_update(b"k+1", vec![1; 150]);
    source.give_update(b"k+2", vec![1; 150]);
    assert!(!source.is_followed());
    assert_ends(&mut receiver, "faster than they can be sent");
}

#[test]
fn a_change_without_an_update_needs_another_snapshot_and_not_for_ever() {
    let (source, mut receiver) = pair(LIMITS, "here");
    for round in 0..3 {
        source.give_snapshot(&[round], vec![round; 50]);
        let expected = Streamed::Snapshot { note: vec![round], state: vec![round; 50], left_bytes: 0 };
        assert_eq!(next(&mut receiver), expected);
        source.begin_anew();
        assert!(source.wants_snapshot() && !source.is_followed());
        assert_eq!(next(&mut receiver), Streamed::Again);
    }
    source.give_snapshot(b"", vec![0; 50]);
    assert_ends(&mut receiver, "in other ways");
}

#[test]
fn where_a_stream_is_of_no_use_it_ends_with_the_reason() {
    let (source, mut receiver) = pair(LIMITS, "here");
    source.give_snapshot(b"k", vec![1; 9]);
    assert_ends(&mut receiver, "only 9 bytes");

    let (source, mut receiver) = pair(LIMITS, "here");
    source.refuse("the job is full");
    assert_ends(&mut receiver, "the job is full");
}

#[test]
fn members_that_stand_still_are_not_waited_for() {
    let (source, mut receiver) = pair(StreamLimits { bytes_per_second: Some(1000), ..LIMITS }, "here");
    source.note_boundary();
    source.note_training();
    source.give_snapshot(b"k", vec![1; 1_000_000]);
    source.note_boundary();
    // A recovery may take a moment.
    at_least(Duration::from_millis(900), || assert_ends(&mut receiver, "make no steps"));
}

#[test]
fn strangers_and_other_jobs_get_nothing() {
    let source = StateSource::new(LIMITS);
    let contact = source.listen(&peer("here", 0), &[]).unwrap();
    let stranger = StreamPeer { key: Key::from_bytes([0x77; 32]), ..peer("here", 1) };
    assert!(StateReceiver::connect(&contact, &stranger).is_err());
    let other = StreamPeer { job: JobId::named("another"), ..peer("here", 1) };
    assert!(StateReceiver::connect(&contact, &other).unwrap().receive().is_err());
    assert!(!source.wants_snapshot());
    assert!(StateReceiver::connect(b"nowhere", &peer("here", 1)).is_err());
}

#[test]
fn there_is_an_end_to_the_number_of_followers() {
    let (source, _first) = pair(LIMITS, "here");
    let contact = source.listen(&peer("here", 0), &[]).unwrap();
    let mut others: Vec<StateReceiver> =
        (0..8).map(|member| StateReceiver::connect(&contact, &peer("here", member)).unwrap()).collect();
    // Whoever came last is turned away, and handshakes may overtake each other.
    source.give_snapshot(b"k", vec![1; 50]);
    let until = Instant::now() + DEADLINE;
    let turned_away = others.iter_mut().filter_map(|other| {
        loop {
            source.give_snapshot(b"k", vec![1; 50]);
            assert!(Instant::now() < until);
            match other.receive().ok()? {
                Streamed::Wait => {}
                Streamed::JoinNow(why) => return Some(why),
                _ => return None,
            }
        }
    });
    assert_eq!(turned_away.collect::<Vec<_>>(), ["many others are being sent it"]);
}
