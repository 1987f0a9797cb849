//! Frames over connections of every make: what goes in on one side comes out on the other.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::io::Write;

use farandole_transport::frame::{Checksum, Header, Trailer};
use farandole_transport::memory::pipe;
use farandole_transport::stream::{FrameOptions, StreamLink};
use farandole_transport::{Error, Link, Progress, RecvCursor, SendCursor, Tag, Waiter};
use support::*;

fn shape(stripe_from_bytes: u64, checksum: Checksum) -> FrameOptions {
    FrameOptions { stripe_from_bytes, checksum }
}

/// Sends a payload of every length in both directions at once, in all ways of receiving.
fn both_directions(make: Make, connections: usize, shape: FrameOptions, sealed: bool, lengths: &[usize]) {
    let (mut one, mut other) = link_pair(make, connections, shape, sealed);
    let run = |side: &mut LinkSide, mine: u64, theirs: u64| {
        for (message, &len) in lengths.iter().enumerate() {
            let how = if (message as u64 + mine).is_multiple_of(2) { How::Memory } else { How::Pieces };
            let out = pattern(len, mine + len as u64);
            let mut into = vec![0xee; len];
            exchange(side, tag(7, message as u32), Some(&out), Some((&mut into, how))).unwrap();
            assert!(into == pattern(len, theirs + len as u64), "{len} bytes, {how:?}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&mut one, 1, 2));
        scope.spawn(|| run(&mut other, 2, 1));
    });
}

fn lengths() -> [usize; 10] {
    let large = if is_brief() { 160 << 10 } else { 1 << 20 };
    [0, 1, 63, 64, 65, 4 << 10, (16 << 10) + 1, large + 3, 0, 257]
}

#[test]
fn every_make_carries_every_length() {
    for make in [Make::Memory(100), Make::Memory(64 << 10), Make::Tcp, Make::TightTcp, Make::Unix] {
        for connections in [1, 3] {
            both_directions(make, connections, shape(4 << 10, Checksum::Off), false, &lengths());
        }
    }
}

#[test]
fn checksums_and_seals_change_nothing_for_honest_peers() {
    for make in [Make::Memory(1000), Make::TightTcp, Make::Unix] {
        for (checksum, sealed) in [(Checksum::Crc32c, false), (Checksum::Off, true), (Checksum::Crc32c, true)] {
            both_directions(make, 2, shape(4 << 10, checksum), sealed, &lengths());
        }
    }
}

#[test]
fn large_payloads_pass_in_both_directions_at_once() {
    let bytes = if is_brief() { 5 << 20 } else { 20 << 20 };
    both_directions(Make::Tcp, 4, shape(256 << 10, Checksum::Crc32c), false, &[bytes, bytes]);
}

#[test]
fn payloads_at_the_stripe_threshold_are_whole() {
    let lengths: Vec<usize> = (4090..4110).chain([4 * 4096 - 1, 4 * 4096 + 63]).collect();
    both_directions(Make::Memory(333), 4, shape(4100, Checksum::Off), false, &lengths);
}

#[test]
fn frames_of_given_up_operations_are_skipped() {
    for (make, connections) in [(Make::Memory(100), 1), (Make::Memory(5000), 3), (Make::TightTcp, 2)] {
        let (mut one, mut other) = link_pair(make, connections, shape(4 << 10, Checksum::Crc32c), false);
        let (large, small) = (pattern(1 << 20, 1), pattern(100, 2));
        // The sender gives up in the middle of a large frame, the receiver before, in the middle of, or after nothing
        // of it.
        for (operation, receiver_began) in [(10, false), (20, true), (30, false)] {
            let mut cursor = SendCursor::default();
            while one.1.send(tag(operation, 0), &large, &mut cursor).unwrap() == Progress::Moved {}
            assert!(cursor.taken < large.len() as u64, "it does not all fit");
            if receiver_began {
                let mut cursor = RecvCursor::default();
                let mut scrap = vec![0; large.len()];
                let _ = other.1.recv_into(tag(operation, 0), &mut scrap, &mut cursor).unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| send(&mut one, tag(operation + 1, 0), &small).unwrap());
                assert_eq!(recv(&mut other, tag(operation + 1, 0), 100, How::Pieces).unwrap(), small);
            });
            std::thread::scope(|scope| {
                scope.spawn(|| send(&mut one, tag(operation + 1, 1), &large).unwrap());
                assert!(recv(&mut other, tag(operation + 1, 1), large.len(), How::Memory).unwrap() == large);
            });
        }
    }
}

#[test]
fn a_frame_given_up_by_its_sender_alone_is_an_error() {
    let (mut one, mut other) = link_pair(Make::Memory(1000), 1, FrameOptions::default(), false);
    let large = pattern(5000, 1);
    let mut cursor = SendCursor::default();
    while one.1.send(tag(1, 0), &large, &mut cursor).unwrap() == Progress::Moved {}
    let error = std::thread::scope(|scope| {
        scope.spawn(|| send(&mut one, tag(2, 0), &large));
        let error = recv(&mut other, tag(1, 0), 5000, How::Memory).unwrap_err();
        drop(other);
        error
    });
    assert!(matches!(&error, Error::Garbled { what, .. } if what.contains("gave up operation 1")), "{error}");
}

#[test]
fn a_link_that_waits_for_one_of_its_connections_says_so() {
    // The first connection takes its stripe at once, the second is full: a driver must not be kept running in circles.
    let waiters = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let (wide, _wide_end) = pipe(&waiters.0.bell(), &waiters.1.bell(), 1 << 20);
    let (narrow, _narrow_end) = pipe(&waiters.0.bell(), &waiters.1.bell(), 100);
    let mut link = StreamLink::new(OTHER, vec![wide, narrow], shape(1000, Checksum::Off));
    let (payload, mut cursor) = (pattern(5000, 1), SendCursor::default());
    assert_eq!(link.send(tag(1, 0), &payload, &mut cursor).unwrap(), Progress::Moved);
    assert_eq!(link.send(tag(1, 0), &payload, &mut cursor).unwrap(), Progress::Pending);
}

/// What the receiver says to a frame that is not the one it wants.
fn mismatch(sent: Tag, sent_bytes: usize, wanted: Tag, wanted_bytes: usize) -> String {
    let (mut one, mut other) = link_pair(Make::Unix, 1, FrameOptions::default(), false);
    send(&mut one, sent, &pattern(sent_bytes, 1)).unwrap();
    let error = recv(&mut other, wanted, wanted_bytes, How::Pieces).unwrap_err();
    assert!(matches!(error, Error::Garbled { peer: ONE, .. } | Error::Disagree { peer: ONE, .. }), "{error}");
    let again = recv(&mut other, wanted, wanted_bytes, How::Pieces).unwrap_err();
    assert!(again.to_string().contains("failed before"), "{again}");
    error.to_string()
}

#[test]
fn differences_of_opinion_are_named() {
    let says = mismatch(tag(9, 0), 10, tag(8, 0), 10);
    assert!(says.contains("operation 9 while this rank is at operation 8"), "{says}");
    let says = mismatch(tag(8, 2), 10, tag(8, 1), 10);
    assert!(says.contains("message 2 of operation 8, expected message 1"), "{says}");
    let says = mismatch(tag(8, 1), 10, tag(8, 1), 11);
    assert!(says.contains("10 bytes as message 1 of operation 8, expected 11"), "{says}");
    let says = mismatch(Tag { descriptor: 1, ..tag(8, 1) }, 10, Tag { descriptor: 2, ..tag(8, 1) }, 10);
    assert!(
        says.contains("takes operation 8 to be 0000000000000001, this rank takes it to be 0000000000000002"),
        "{says}"
    );
}

#[test]
fn different_striping_is_noticed() {
    let waiters = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let (ours, theirs) = (0..2).map(|_| pipe(&waiters.0.bell(), &waiters.1.bell(), 1 << 20)).unzip();
    let mut one: LinkSide = (waiters.0, Box::new(StreamLink::new(OTHER, ours, shape(100, Checksum::Off))));
    let mut other: LinkSide = (waiters.1, Box::new(StreamLink::new(ONE, theirs, shape(1000, Checksum::Off))));
    send(&mut one, tag(1, 0), &pattern(500, 1)).unwrap();
    let error = recv(&mut other, tag(1, 0), 500, How::Memory).unwrap_err();
    assert!(error.to_string().contains("differ in their connection settings"), "{error}");
}

#[test]
fn damage_on_the_way_is_noticed() {
    for (checksum, sealed) in [(Checksum::Off, false), (Checksum::Crc32c, false), (Checksum::Crc32c, true)] {
        let (mut one, mut other) = link_pair(Make::Unix, 2, shape(1000, checksum), sealed);
        for len in [10, 5000] {
            send(&mut one, tag(1, len), &pattern(len as usize, 1)).unwrap();
            recv(&mut other, tag(1, len), len as usize, How::Memory).unwrap();
        }
        assert!(one.1.damage_next());
        send(&mut one, tag(2, 0), &pattern(5000, 1)).unwrap();
        let error = recv(&mut other, tag(2, 0), 5000, How::Memory).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. } | Error::Garbled { .. }), "{error}");
    }
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_frame_is_gone() {
    for make in [Make::Memory(1000), Make::TightTcp, Make::Unix] {
        for how in [How::Memory, How::Pieces] {
            let (mut one, mut other) = link_pair(make, 2, shape(1000, Checksum::Off), false);
            let large = pattern(8 << 20, 1);
            let mut cursor = SendCursor::default();
            while one.1.send(tag(1, 0), &large, &mut cursor).unwrap() == Progress::Moved {}
            drop(one);
            let error = recv(&mut other, tag(1, 0), large.len(), how).unwrap_err();
            assert!(matches!(error, Error::PeerGone { peer: ONE, .. }), "{make:?} {error}");
        }
    }
}

#[test]
fn a_sender_notices_that_its_peer_is_gone() {
    for make in [Make::Memory(1000), Make::TightTcp, Make::Unix] {
        let (mut one, other) = link_pair(make, 1, FrameOptions::default(), false);
        let large = pattern(8 << 20, 1);
        let mut cursor = SendCursor::default();
        while one.1.send(tag(1, 0), &large, &mut cursor).unwrap() == Progress::Moved {}
        drop(other);
        let (waiter, link) = &mut one;
        let error = drive(waiter, || link.send(tag(1, 0), &large, &mut cursor)).unwrap_err();
        assert!(matches!(error, Error::PeerGone { peer: OTHER, .. }), "{make:?} {error}");
    }
}

#[test]
fn garbage_instead_of_a_frame_is_named() {
    for at in [0, 47, 48, 60, 148] {
        let (mut raw, socket) = socket_pair(Make::Unix);
        let waiter = Waiter::new().unwrap();
        waiter.watch(&socket).unwrap();
        let link = StreamLink::new(ONE, vec![socket], shape(1 << 20, Checksum::Crc32c));
        let mut other: LinkSide = (waiter, Box::new(link));
        // A right frame of 100 bytes, spoilt from some byte on.
        let header = Header { tag: tag(1, 0), payload_bytes: 100, stripe: 0, stripes: 1, checksum: Checksum::Crc32c };
        let body = pattern(100, 1);
        let trailer = Trailer::Whole { crc: crc32c::crc32c(&body) };
        let mut bytes = [&header.encode()[..], &body, &trailer.encode()].concat();
        bytes[at..].iter_mut().for_each(|byte| *byte ^= 0x5a);
        raw.write_all(&bytes).unwrap();
        let error = recv(&mut other, tag(1, 0), 100, How::Memory).unwrap_err();
        assert!(matches!(error, Error::Garbled { .. } | Error::Corrupt { .. }), "spoilt from {at}: {error}");
    }
}
