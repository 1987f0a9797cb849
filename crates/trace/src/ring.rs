//! A ring of records with one writer at a time and any number of readers, none of whom ever waits.
//!
//! The ring holds a fixed number of records (its capacity), each four words, and remembers how many were ever
//! *written*. The writer puts record `i` at place `i` modulo the capacity, over the one that was written so many
//! records before, and then counts it. A reader copies what it wants and then looks at the count again: whatever the
//! writer may have begun to overwrite meanwhile is thrown away and counted as dropped. So a reader that is too slow
//! loses old records and never sees half of one.
//!
//! Why that holds. *Torn record*: a reader that has seen one word of record `i + capacity` in the place of record `i`
//! must find, when it looks at the count afterwards, at least `i + capacity`. The writer counted record
//! `i + capacity - 1` before it began to write, with a release fence in between; the reader's loads are followed by an
//! acquire fence; so a word that was seen carries the count with it. *Half-written last record*: the count of a record
//! is stored with release after its words and loaded with acquire before. `tests/loom_ring.rs` tries every order that
//! the memory model allows.
//!
//! Memory is taken in blocks when they are first written to, so a ring that is hardly used costs next to nothing.

use std::sync::{Arc, OnceLock};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a record. Two are enough to be torn apart, and a model has fewer orders to try.
pub(crate) const WORDS: usize = if cfg!(loom) { 2 } else { 4 };

/// Records of a block: 64 KiB. One in a model, so that three records go once around.
const BLOCK_RECORDS: usize = if cfg!(loom) { 1 } else { 2048 };

type Block = Box<[[AtomicU64; WORDS]]>;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Ring {
    blocks: Box<[OnceLock<Block>]>,
    /// Records ever written. Stored by the writer alone.
    written: AtomicU64,
}

impl Ring {
    /// A ring with room for at least so many records.
    pub(crate) fn new(records: usize) -> Arc<Ring> {
        let blocks = records.div_ceil(BLOCK_RECORDS).max(1).next_power_of_two();
        Arc::new(Ring { blocks: (0..blocks).map(|_| OnceLock::new()).collect(), written: AtomicU64::new(0) })
    }

    /// Records that it holds; a power of two.
    fn capacity(&self) -> u64 {
        (self.blocks.len() * BLOCK_RECORDS) as u64
    }

    /// Records that were ever written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Adds a record. Only one thread may do so at a time: the one that has the ring's only [`Producer`].
    #[inline]
    fn write(&self, index: u64, words: [u64; WORDS]) {
        let place = (index & (self.capacity() - 1)) as usize;
        let block = self.blocks[place / BLOCK_RECORDS].get_or_init(new_block);
        // Torn record: readers who see one of these words also see the count of the record before.
        fence(Ordering::Release);
        for (cell, word) in block[place % BLOCK_RECORDS].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.written.store(index + 1, Ordering::Release);
    }

    /// Copies the records from number `from` on into `into`, oldest first; says up to which number that was, and how
    /// many of them are lost because they were overwritten.
    pub(crate) fn read(&self, from: u64, into: &mut Vec<[u64; WORDS]>) -> (u64, u64) {
        let capacity = self.capacity();
        let until = self.written.load(Ordering::Acquire);
        let first = from.max(until.saturating_sub(capacity));
        let start = into.len();
        for index in first..until {
            let place = (index & (capacity - 1)) as usize;
            let block = self.blocks[place / BLOCK_RECORDS].get().expect("invariant: what was written has a block");
            let cells = &block[place % BLOCK_RECORDS];
            into.push(std::array::from_fn(|word| cells[word].load(Ordering::Relaxed)));
        }
        fence(Ordering::Acquire);
        // The record with this number may be half-way over the one that lay in its place.
        let begun = self.written.load(Ordering::Relaxed);
        let first_good = first.max((begun + 1).saturating_sub(capacity)).min(until);
        into.drain(start..start + (first_good - first) as usize);
        (until, first_good - from.min(first_good))
    }
}

fn new_block() -> Block {
    (0..BLOCK_RECORDS).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect()
}

/// The right to write to a ring. There is one for each ring, and writing takes it exclusively.
#[derive(Debug)]
pub(crate) struct Producer {
    ring: Arc<Ring>,
    /// The number of the next record.
    next: u64,
}

impl Producer {
    /// A new ring and the right to write to it.
    pub(crate) fn new(records: usize) -> (Producer, Arc<Ring>) {
        let ring = Ring::new(records);
        (Producer { ring: Arc::clone(&ring), next: 0 }, ring)
    }

    #[inline]
    pub(crate) fn write(&mut self, words: [u64; WORDS]) {
        self.ring.write(self.next, words);
        self.next += 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn what_was_written_is_read_once_and_in_order() {
        let (mut producer, ring) = Producer::new(BLOCK_RECORDS);
        (0..5).for_each(|number| producer.write([number; 4]));
        let mut read = Vec::new();
        assert_eq!(ring.read(0, &mut read), (5, 0));
        assert_eq!(read, [[0; 4], [1; 4], [2; 4], [3; 4], [4; 4]]);
        producer.write([5; 4]);
        read.clear();
        assert_eq!(ring.read(5, &mut read), (6, 0));
        assert_eq!(read, [[5; 4]]);
        assert_eq!(ring.read(6, &mut Vec::new()), (6, 0));
    }

    #[test]
    fn the_newest_survive_and_the_lost_are_counted() {
        let (mut producer, ring) = Producer::new(2 * BLOCK_RECORDS);
        let capacity = ring.capacity();
        (0..capacity + 100).for_each(|number| producer.write([number; 4]));
        let mut read = Vec::new();
        let (until, lost) = ring.read(0, &mut read);
        assert_eq!(until, capacity + 100);
        // The oldest that is still there lies where the next would be written, so nobody can be sure of it.
        assert_eq!((read[0], read.len() as u64, lost), ([101; 4], capacity - 1, 101));
        let mut rest = Vec::new();
        assert_eq!(ring.read(capacity, &mut rest), (capacity + 100, 0));
        assert_eq!(rest.len(), 100);
    }

    #[test]
    fn a_ring_that_is_hardly_used_takes_one_block() {
        let (mut producer, ring) = Producer::new(64 * BLOCK_RECORDS);
        producer.write([1; 4]);
        assert_eq!(ring.blocks.iter().filter(|block| block.get().is_some()).count(), 1);
    }

    #[test]
    fn a_reader_never_sees_half_a_record() {
        let (mut producer, ring) = Producer::new(BLOCK_RECORDS);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..2_000_000_u64).for_each(|number| producer.write([number, number ^ 1, number ^ 2, number ^ 3]));
                over.store(true, Ordering::Release);
            });
            let (mut next, mut seen, mut lost, mut read) = (0, 0, 0, Vec::new());
            loop {
                let last_look = over.load(Ordering::Acquire);
                read.clear();
                let (until, dropped) = ring.read(next, &mut read);
                assert_eq!(until - next, dropped + read.len() as u64);
                for (record, number) in read.iter().zip(next + dropped..) {
                    assert_eq!(*record, [number, number ^ 1, number ^ 2, number ^ 3]);
                }
                (next, seen, lost) = (until, seen + read.len() as u64, lost + dropped);
                if last_look {
                    break;
                }
            }
            assert_eq!(seen + lost, 2_000_000);
        });
    }
}
