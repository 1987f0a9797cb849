//! Shared memory between threads: rings keep order and content, windows hand over in turn, mapped buffers are shared.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use farandole_transport::shm::{Layout, Windows};
use farandole_transport::{Bell, Link, Progress, RecvCursor, SendCursor, Tag, Waiter};

/// Small numbers, so that wrapping, waiting for slots and padding all happen with little data.
fn tight(ranks: usize) -> Layout {
    Layout { ranks, small_bytes: 4096, tile_bytes: 4096, slots: 2, ring_bytes: 4096 }
}

fn windows(ranks: usize) -> (Vec<Windows>, Vec<Waiter>) {
    let waiters: Vec<Waiter> = (0..ranks).map(|_| Waiter::new().unwrap()).collect();
    let bells: Vec<Bell> = waiters.iter().map(Waiter::bell).collect();
    (Windows::for_threads(tight(ranks), &bells).unwrap(), waiters)
}

fn tag(operation: u64, message: u32) -> Tag {
    Tag { operation, message, descriptor: 7 }
}

/// Calls until done, sleeping as a driver would: raise the flag, look again, block.
fn drive(waiter: &Waiter, windows: &Windows, mut step: impl FnMut() -> Progress) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while step() != Progress::Done {
        assert!(Instant::now() < deadline, "the other side never came");
        windows.raise_asleep();
        if step() == Progress::Done {
            windows.lower_asleep();
            return;
        }
        waiter.wait(Duration::from_secs(5)).unwrap();
        windows.lower_asleep();
    }
}

fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + salt * 7 + (i >> 8)) as u8).collect()
}

#[test]
fn rings_deliver_frames_of_every_size_in_both_directions() {
    let sizes = [0, 1, 63, 64, 65, 1000, 4032, 4096, 4097, 100_003];
    let (all, waiters) = windows(2);
    std::thread::scope(|scope| {
        for (me, (windows, waiter)) in all.into_iter().zip(waiters).enumerate() {
            scope.spawn(move || {
                let mut link = windows.link(1 - me);
                for (message, &size) in sizes.iter().enumerate() {
                    let (mine, theirs) = (bytes(size, me), bytes(size, 1 - me));
                    let mut got = vec![0; size];
                    let (mut out, mut into) = (SendCursor::default(), RecvCursor::default());
                    let (mut sent, mut received) = (false, false);
                    drive(&waiter, &windows, || {
                        let tag = tag(1, message as u32);
                        sent = sent || link.send(tag, &mine, &mut out).unwrap() == Progress::Done;
                        received = received || link.recv_into(tag, &mut got, &mut into).unwrap() == Progress::Done;
                        if sent && received { Progress::Done } else { Progress::Pending }
                    });
                    assert_eq!(got, theirs, "size {size}");
                }
            });
        }
    });
}

#[test]
fn a_frame_of_a_given_up_operation_is_paid_and_skipped() {
    let (all, waiters) = windows(2);
    let mut links: Vec<_> = all.iter().enumerate().map(|(me, windows)| windows.link(1 - me)).collect();
    let (mut receiver, mut sender) = (links.pop().unwrap(), links.pop().unwrap());
    // Operation 1 fills the ring and is given up in the middle, on both sides.
    let mut cursor = SendCursor::default();
    assert_eq!(sender.send(tag(1, 0), &bytes(10_000, 1), &mut cursor).unwrap(), Progress::Moved);
    let mut half = RecvCursor::default();
    assert_eq!(receiver.recv_into(tag(1, 0), &mut vec![0; 10_000], &mut half).unwrap(), Progress::Moved);
    let mut sides = all.into_iter().zip(waiters);
    let ((sending, waiter_s), (receiving, waiter_r)) = (sides.next().unwrap(), sides.next().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut cursor = SendCursor::default();
            let payload = bytes(5000, 2);
            drive(&waiter_s, &sending, || sender.send(tag(2, 0), &payload, &mut cursor).unwrap());
        });
        scope.spawn(move || {
            let mut cursor = RecvCursor::default();
            let mut got = vec![0; 5000];
            drive(&waiter_r, &receiving, || receiver.recv_into(tag(2, 0), &mut got, &mut cursor).unwrap());
            assert_eq!(got, bytes(5000, 2));
        });
    });
}

#[test]
fn a_frame_that_both_sides_see_differently_is_an_error() {
    let (all, _waiters) = windows(2);
    let (mut one, mut two) = (all[0].link(1), all[1].link(0));
    let _ = one.send(tag(3, 0), &[1, 2, 3], &mut SendCursor::default()).unwrap();
    let error = two.recv_into(tag(3, 0), &mut [0; 4], &mut RecvCursor::default()).unwrap_err();
    assert!(error.to_string().contains("expected"), "{error}");
}

#[test]
fn windows_pass_tiles_in_order_without_losing_any() {
    const TILES: u64 = 200;
    let (all, waiters) = windows(3);
    std::thread::scope(|scope| {
        for (mut windows, waiter) in all.into_iter().zip(waiters) {
            scope.spawn(move || {
                for operation in 1..=5 {
                    pass_tiles(&mut windows, &waiter, operation, TILES);
                }
            });
        }
    });
}

/// Every rank publishes a number for each rank, returns the sum of all that it got, and fetches what everybody returned
/// to it.
fn pass_tiles(windows: &mut Windows, waiter: &Waiter, operation: u64, tiles: u64) {
    let me = windows.me() as u64;
    windows.begin(operation, 5, &[]);
    let size = windows.size();
    let value = |from: u64, to: u64, tile: u64| (operation * 100_000 + tile * 100 + from * 10 + to).to_le_bytes();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    for tile in 0..tiles {
        until(windows, waiter, |windows| {
            let Some(slot) = windows.vacant_slot(tile, 8 * size) else { return false };
            for (to, chunk) in (0..).zip(slot.chunks_exact_mut(8)) {
                chunk.copy_from_slice(&value(me, to, tile));
            }
            windows.mark_filled(tile);
            true
        });
        until(windows, waiter, |windows| {
            let Some(chunks) = windows.chunks(tile, 8 * me as usize, 8) else { return false };
            let others: u64 = chunks.iter().map(|chunk| number(chunk)).sum();
            let sum = others + number(&value(me, me, tile));
            chunks.into_iter().for_each(|chunk| chunk.copy_from_slice(&sum.to_le_bytes()));
            windows.release_chunks(tile);
            true
        });
        let peers: Vec<usize> = windows.peers().collect();
        for local_rank in peers {
            let expected: u64 = (0..size as u64).map(|from| number(&value(from, local_rank as u64, tile))).sum();
            until(windows, waiter, |windows| {
                windows.returned(local_rank, tile, 8 * local_rank, 8).map(number).is_some_and(|got| {
                    assert_eq!(got, expected);
                    true
                })
            });
        }
    }
    windows.finish();
}

fn until(windows: &mut Windows, waiter: &Waiter, mut done: impl FnMut(&mut Windows) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done(windows) {
        assert!(Instant::now() < deadline, "the others never came");
        windows.raise_asleep();
        if done(windows) {
            windows.lower_asleep();
            return;
        }
        waiter.wait(Duration::from_secs(5)).unwrap();
        windows.lower_asleep();
    }
}

#[test]
fn small_contributions_travel_inline_and_in_slots() {
    let (all, waiters) = windows(3);
    std::thread::scope(|scope| {
        for (mut windows, waiter) in all.into_iter().zip(waiters) {
            scope.spawn(move || {
                let me = windows.me();
                for (operation, len) in [0, 1, 4, 48, 49, 4096, 8, 4095].into_iter().enumerate() {
                    windows.begin(operation as u64 + 1, 9, &bytes(len, me));
                    until(&mut windows, &waiter, |windows| windows.all_begun().unwrap());
                    for local_rank in windows.peers() {
                        let mut inline = [0; 48];
                        assert_eq!(windows.small(local_rank, len, &mut inline), bytes(len, local_rank));
                    }
                }
            });
        }
    });
}

#[test]
fn ranks_that_mean_different_things_find_out() {
    let (mut all, _waiters) = windows(2);
    let (mut two, mut one) = (all.pop().unwrap(), all.pop().unwrap());
    one.begin(1, 11, &[]);
    two.begin(1, 12, &[]);
    assert!(one.all_begun().unwrap_err().to_string().contains("do not make the same calls"));
    assert!(two.all_begun().is_err());
}

#[test]
fn a_mapped_buffer_shows_what_its_owner_wrote() {
    let (mut all, _waiters) = windows(2);
    let (mut two, mut one) = (all.pop().unwrap(), all.pop().unwrap());
    let (r1, r2) = (one.reserve(10_000).unwrap(), two.reserve(10_000).unwrap());
    let (mut m1, mut m2) = (one.map_reserved(r1).unwrap(), two.map_reserved(r2).unwrap());
    m1.own_mut()[9_999] = 3;
    m2.own_mut()[9_999] = 4;
    one.begin(1, 1, &[]);
    two.begin(1, 1, &[]);
    one.expose();
    assert!(!one.all_exposed());
    two.expose();
    let parts = m1.across(&one, 9_999..10_000);
    assert_eq!((parts[0][0], parts[1][0]), (3, 4));
    for part in parts {
        part[0] = 7;
    }
    one.settle();
    two.settle();
    assert!(one.all_settled() && two.all_settled());
    assert_eq!((m1.own()[9_999], m2.own()[9_999]), (7, 7));
}
