//! Control lines: whole messages in order, aborts, deaths, and peers that talk nonsense.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::io::Write;

use farandole_plan::{ErrorClass, Rank};
use farandole_transport::stream::{MESSAGE_LIMIT_BYTES, Sealed, StreamControl};
use farandole_transport::{Control, Error, Progress, Waiter};
use support::*;

#[test]
fn messages_arrive_whole_and_in_order_whatever_their_size() {
    let waiters = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let (one, other) = farandole_transport::memory::pipe(&waiters.0.bell(), &waiters.1.bell(), 777);
    let (mut one, mut other) = (StreamControl::new(OTHER, one), StreamControl::new(ONE, other));
    let lengths = [0, 1, 5, 776, 777, 778, 100_000, 0, 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for len in lengths {
                one.send(&pattern(len, len as u64)).unwrap();
            }
            drive(&waiters.0, || one.flush()).unwrap();
        });
        for len in lengths {
            assert_eq!(next_message(&waiters.1, &mut other).unwrap(), pattern(len, len as u64));
        }
    });
    assert!(other.recv().unwrap().is_none());
}

#[test]
fn an_abort_is_the_last_word_and_stays() {
    let (mut one, mut other) = control_pair();
    one.send(b"before").unwrap();
    one.send_abort(Some(Rank(5)), ErrorClass::RankLost, "rank 5 is gone (it closed the connection)").unwrap();
    one.send(b"after").unwrap();
    drop(one);
    assert_eq!(other.recv().unwrap().unwrap(), b"before");
    for _ in 0..3 {
        let error = other.recv().unwrap_err();
        assert!(
            matches!(&error, Error::PeerAborted { blamed: Some(Rank(5)), cause, .. } if cause.starts_with("rank 5 is gone")),
            "{error}"
        );
        assert_eq!(error.class(), ErrorClass::RankLost);
    }
}

#[test]
fn a_closed_line_is_a_dead_peer() {
    let (mut one, mut other) = control_pair();
    one.send(b"last").unwrap();
    drop(one);
    assert_eq!(other.recv().unwrap().unwrap(), b"last");
    assert!(matches!(other.recv().unwrap_err(), Error::PeerGone { peer: ONE, .. }));
    assert!(matches!(other.recv().unwrap_err(), Error::PeerGone { peer: ONE, .. }));
    assert!(matches!(other.send(b"hello?").unwrap_err(), Error::PeerGone { peer: ONE, .. }));
}

#[test]
fn a_message_cut_off_by_death_is_not_delivered() {
    let (mut raw, socket) = socket_pair(Make::Unix);
    let mut control = StreamControl::new(ONE, socket);
    raw.write_all(&[10, 0, 0, 0, 0, 1, 2, 3]).unwrap();
    assert!(control.recv().unwrap().is_none());
    drop(raw);
    assert!(matches!(control.recv().unwrap_err(), Error::PeerGone { .. }));
}

#[test]
fn absurd_lengths_and_kinds_are_refused_without_allocating() {
    for prefix in [[0xff, 0xff, 0xff, 0xff, 0], [1, 0, 0, 0, 9], *b"GET /"] {
        let (mut raw, socket) = socket_pair(Make::Unix);
        let mut control = StreamControl::new(ONE, socket);
        raw.write_all(&prefix).unwrap();
        assert!(matches!(control.recv().unwrap_err(), Error::Garbled { peer: ONE, .. }));
    }
    let (mut one, _other) = control_pair();
    let error = one.send(&vec![0; MESSAGE_LIMIT_BYTES + 1]).unwrap_err();
    assert!(matches!(error, Error::Local { .. }), "{error}");
}

#[test]
fn sealed_lines_carry_messages_and_notice_every_change() {
    let (our_keys, their_keys) = session_keys();
    let (one, other) = socket_pair(Make::Unix);
    let mut one = StreamControl::new(OTHER, Sealed::new(one, &our_keys));
    let mut other = StreamControl::new(ONE, Sealed::new(other, &their_keys));
    for len in [0, 1, 70_000] {
        one.send(&pattern(len, 1)).unwrap();
        let _ = one.flush().unwrap();
        assert_eq!(other.recv().unwrap().unwrap(), pattern(len, 1));
    }
    // A record recorded on the wire, then changed, repeated, or opened with the keys of the other direction.
    let record = |message: &[u8]| {
        let (tap, socket) = socket_pair(Make::Unix);
        let mut control = StreamControl::new(OTHER, Sealed::new(socket, &our_keys));
        control.send(message).unwrap();
        let mut bytes = vec![0; 200];
        let count = std::io::Read::read(&mut { tap }, &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    };
    let good = record(b"attack at dawn");
    assert!(!good.windows(6).any(|window| window == b"attack"), "the text is not on the wire");
    let replay = [&good[..], &good[..]].concat();
    for bit in (0..good.len() * 8).step_by(7) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (mut raw, socket) = socket_pair(Make::Unix);
        let mut control = StreamControl::new(ONE, Sealed::new(socket, &their_keys));
        raw.write_all(&bad).unwrap();
        drop(raw);
        let error = control.recv().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. } | Error::PeerGone { .. }), "bit {bit}: {error}");
    }
    let (mut raw, socket) = socket_pair(Make::Unix);
    let mut control = StreamControl::new(ONE, Sealed::new(socket, &their_keys));
    raw.write_all(&replay).unwrap();
    assert_eq!(control.recv().unwrap().unwrap(), b"attack at dawn");
    assert!(matches!(control.recv().unwrap_err(), Error::Corrupt { .. }));
    let (mut raw, socket) = socket_pair(Make::Unix);
    let mut control = StreamControl::new(ONE, Sealed::new(socket, &our_keys));
    raw.write_all(&good).unwrap();
    assert!(matches!(control.recv().unwrap_err(), Error::Corrupt { .. }));
}

#[test]
fn a_full_line_keeps_messages_until_there_is_room() {
    let waiters = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let (one, other) = farandole_transport::memory::pipe(&waiters.0.bell(), &waiters.1.bell(), 10);
    let (mut one, mut other) = (StreamControl::new(OTHER, one), StreamControl::new(ONE, other));
    one.send(b"0123456789").unwrap();
    assert_eq!(one.flush().unwrap(), Progress::Pending);
    assert!(other.recv().unwrap().is_none());
    assert_eq!(one.flush().unwrap(), Progress::Done);
    assert_eq!(other.recv().unwrap().unwrap(), b"0123456789");
}
