//! The memory of batches: one piece for each batch, reused and counted.
//!
//! A [`Pool`] lends pieces of memory of one size. A step's piece is split into parts that different threads write, and
//! joined again without a copy; dropping a [`BatchMemory`] returns its memory to the pool. The pool never refuses: the
//! number of steps that are made ahead bounds it, and a consumer that keeps batches keeps their memory.
//!
//! **Invariant:** the ledger counts every byte from its allocation until its last part is freed. Memory begins at a
//! multiple of [`ALIGN_BYTES`].
//!
//! What is deliberately not here: the scratch memory of decoders, which is bounded by the largest image and the number
//! of workers.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

/// Batches begin at a multiple of this. JAX and XLA take memory over without a copy only from such an address, and it
/// is the length of a cache line and of the longest vector.
pub(crate) const ALIGN_BYTES: usize = 64;

/// How much memory there is for batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBytes {
    /// Allocated now: batches that are being made, ready, held by the consumer or free for reuse, and the buffers that
    /// workers read into.
    pub now: usize,
    /// The most that ever was.
    pub peak: usize,
}

/// What is allocated. Written by all threads that make or use batches; read by callers of the loader.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Ledger {
    pub(crate) fn read(&self) -> MemoryBytes {
        // Two numbers of about the same time are enough for people.
        MemoryBytes { now: self.now.load(Ordering::Relaxed), peak: self.peak.load(Ordering::Relaxed) }
    }
}

/// An entry of the ledger, struck out when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(ledger: &Arc<Ledger>, bytes: usize) -> Charge {
        let now = ledger.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        ledger.peak.fetch_max(now, Ordering::Relaxed);
        Charge { ledger: Arc::clone(ledger), bytes }
    }

    /// Replaces the entry by one of `bytes`.
    pub(crate) fn change(&mut self, bytes: usize) {
        if bytes != self.bytes {
            *self = Charge::new(&self.ledger, bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A part of an allocation; its neighbours are other slices.
#[derive(Debug)]
pub(crate) struct Slice {
    bytes: BytesMut,
    /// Of the whole allocation.
    charge: Arc<Charge>,
}

impl Slice {
    /// Splits the first `bytes` off.
    pub(crate) fn split(&mut self, bytes: usize) -> Slice {
        Slice { bytes: self.bytes.split_to(bytes), charge: Arc::clone(&self.charge) }
    }

    /// Puts together what was cut.
    fn join(&mut self, next: Slice) {
        let (address, len) = (self.bytes.as_ptr() as usize, self.bytes.len());
        assert!(
            len == 0 || next.bytes.is_empty() || address + len == next.bytes.as_ptr() as usize,
            "invariant: {SIDE}"
        );
        self.bytes.unsplit(next.bytes);
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

const SIDE: &str = "parts of a batch lie side by side";

/// Memory of batches that is used again.
#[derive(Debug)]
pub(crate) struct Pool {
    ledger: Arc<Ledger>,
    /// Of a whole batch.
    size_bytes: usize,
    /// Free pieces. Workers take one when they start a step; dropping a batch returns one. None after the loader was
    /// dropped: memory that is returned later is freed.
    free: Mutex<Option<Vec<Slice>>>,
    /// More than this is not kept.
    most_free: usize,
}

impl Pool {
    pub(crate) fn new(ledger: &Arc<Ledger>, size_bytes: usize, most_free: usize) -> Pool {
        Pool { ledger: Arc::clone(ledger), size_bytes, free: Mutex::new(Some(Vec::new())), most_free }
    }

    /// Memory of `bytes`, at most a whole batch, and the rest of its piece.
    pub(crate) fn take(&self, bytes: usize) -> (Slice, Slice) {
        assert!(bytes <= self.size_bytes, "invariant: no batch is larger than the largest");
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Vec::pop);
        let mut whole = used.unwrap_or_else(|| self.allocate());
        (whole.split(bytes), whole)
    }

    fn allocate(&self) -> Slice {
        let size = self.size_bytes + ALIGN_BYTES;
        let charge = Arc::new(Charge::new(&self.ledger, size));
        // The system gives zeros without writing them.
        let mut bytes = BytesMut::zeroed(size);
        let skip = (bytes.as_ptr() as usize).wrapping_neg() % ALIGN_BYTES;
        let _ = bytes.split_to(skip);
        bytes.truncate(self.size_bytes);
        Slice { bytes, charge }
    }

    fn give_back(&self, slice: Slice) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.as_mut().filter(|free| free.len() < self.most_free) {
            free.push(slice);
        }
    }

    /// The loader was dropped: frees all and keeps nothing from now on.
    pub(crate) fn close(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The memory of one batch, in one piece. Goes back to its pool when it is dropped.
#[derive(Debug)]
pub struct BatchMemory {
    /// None only while it is dropped.
    slices: Option<(Slice, Slice)>,
    pool: Arc<Pool>,
}

impl BatchMemory {
    /// Of parts that [`Pool::take`] has given, in their order, and the rest of the piece.
    pub(crate) fn join(parts: impl IntoIterator<Item = Slice>, rest: Slice, pool: &Arc<Pool>) -> BatchMemory {
        let joined = parts.into_iter().reduce(|mut whole, next| {
            whole.join(next);
            whole
        });
        let whole = joined.expect("invariant: a batch has at least one part");
        BatchMemory { slices: Some((whole, rest)), pool: Arc::clone(pool) }
    }

    /// Keeps these ranges alone, which are in order: moves them to the front and ends behind the last one.
    pub(crate) fn keep(&mut self, ranges: impl IntoIterator<Item = Range<usize>>) {
        let Some((mut whole, rest)) = self.slices.take() else { return };
        let mut end = 0;
        for range in ranges {
            let bytes = range.len();
            whole.bytes.copy_within(range, end);
            end += bytes;
        }
        let kept = whole.split(end);
        whole.join(rest);
        self.slices = Some((kept, whole));
    }
}

impl Deref for BatchMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slices.as_ref().map_or(&[], |(whole, _)| &whole.bytes)
    }
}

impl DerefMut for BatchMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slices.as_mut().map_or(&mut [], |(whole, _)| whole.as_mut())
    }
}

impl Drop for BatchMemory {
    fn drop(&mut self) {
        if let Some((mut whole, rest)) = self.slices.take() {
            whole.join(rest);
            self.pool.give_back(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(size: usize, most_free: usize) -> (Arc<Ledger>, Arc<Pool>) {
        let ledger = Arc::new(Ledger::default());
        let pool = Arc::new(Pool::new(&ledger, size, most_free));
        (ledger, pool)
    }

    #[test]
    fn parts_are_written_apart_and_read_as_one_piece_of_aligned_memory() {
        let (_, pool) = pool(1_000, 2);
        let mut address = None;
        for turn in 0..3 {
            let (mut left, rest) = pool.take(900);
            let mut parts: Vec<Slice> = (0..8).map(|_| left.split(100)).collect();
            parts.push(left);
            std::thread::scope(|scope| {
                for (number, part) in parts.iter_mut().enumerate() {
                    scope.spawn(move || part.as_mut().fill(number as u8 + turn));
                }
            });
            let buffer = BatchMemory::join(parts, rest, &pool);
            assert_eq!(buffer.as_ptr() as usize % ALIGN_BYTES, 0);
            assert!(buffer.iter().enumerate().all(|(at, byte)| *byte == (at / 100) as u8 + turn));
            assert_eq!(*address.get_or_insert(buffer.as_ptr()), buffer.as_ptr(), "the same memory is used again");
        }
    }

    #[test]
    fn ranges_that_are_kept_follow_each_other_and_the_memory_is_reused() {
        let (ledger, pool) = pool(10, 1);
        for _ in 0..2 {
            let (mut whole, rest) = pool.take(8);
            whole.as_mut().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
            let mut memory = BatchMemory::join([whole], rest, &pool);
            memory.keep([1..3, 3..3, 6..8]);
            assert_eq!(&memory[..], [1, 2, 6, 7]);
        }
        assert_eq!(ledger.read().peak, 10 + ALIGN_BYTES);
    }

    #[test]
    fn every_byte_is_counted_until_its_last_part_is_gone() {
        let (ledger, pool) = pool(1_000, 1);
        let one = 1_000 + ALIGN_BYTES;
        let buffers: Vec<BatchMemory> = (0..3)
            .map(|_| {
                let (whole, rest) = pool.take(10);
                BatchMemory::join([whole], rest, &pool)
            })
            .collect();
        assert_eq!(ledger.read(), MemoryBytes { now: 3 * one, peak: 3 * one });
        drop(buffers);
        assert_eq!(ledger.read().now, one, "one is kept");
        let (mut whole, rest) = pool.take(1_000);
        let part = whole.split(500);
        drop((whole, rest));
        assert_eq!(ledger.read().now, one, "a part is still there");
        pool.close();
        drop(part);
        assert_eq!(ledger.read(), MemoryBytes { now: 0, peak: 3 * one });
        let (whole, rest) = pool.take(1);
        drop(BatchMemory::join([whole], rest, &pool));
        assert_eq!(ledger.read().now, 0, "nothing is kept when the loader is gone");
    }
}
