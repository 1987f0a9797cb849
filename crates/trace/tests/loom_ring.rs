//! Tries every order in which a ring can be written and read on small programs.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p farandole-trace --test loom_ring --release`. A fence or an ordering
//! in `ring.rs` that is weakened makes one of these fail.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub)]

#[path = "../src/ring.rs"]
mod ring;

use loom::thread;
use ring::{Producer, WORDS};

/// Record `number`: every word tells which record it belongs to, and none is zero as a fresh block is.
fn record(number: u64) -> [u64; WORDS] {
    [number + 1; WORDS]
}

/// Reads once while `writes` records are written to a ring with room for two, and compares what was read with what was
/// written.
fn read_while_writing(writes: u64) {
    loom::model(move || {
        let (mut producer, ring) = Producer::new(2);
        let writer = thread::spawn(move || (0..writes).for_each(|number| producer.write(record(number))));
        let mut read = Vec::new();
        let (until, lost) = ring.read(0, &mut read);
        assert!(until <= writes);
        assert_eq!(lost + read.len() as u64, until, "what is not lost is read");
        for (words, number) in read.into_iter().zip(lost..) {
            assert_eq!(words, record(number), "half a record, or another one");
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_record_that_is_counted_is_whole() {
    read_while_writing(1);
}

#[test]
fn a_record_that_is_being_overwritten_is_not_read() {
    read_while_writing(3);
}

#[test]
fn two_readers_in_a_row_lose_nothing_between_them() {
    loom::model(|| {
        let (mut producer, ring) = Producer::new(4);
        let writer = thread::spawn(move || (0..2).for_each(|number| producer.write(record(number))));
        let mut read = Vec::new();
        let (until, _) = ring.read(0, &mut read);
        let (until, lost) = ring.read(until, &mut read);
        assert_eq!((read.len() as u64, lost), (until, 0));
        for (words, number) in read.into_iter().zip(0..) {
            assert_eq!(words, record(number));
        }
        writer.join().unwrap();
    });
}
