//! What making batches took, by stage, summed over all workers.
//!
//! Workers add what a part took when it is made, so the sums lag behind by what is being made. The stages of one worker
//! follow each other: their sum, over all workers, is the time that these had a part in hand. What a thread waits for
//! while it reads or decodes (a disk, a core) counts for the stage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sums since a feed was made. See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedTimes {
    /// Batches that the consumer has taken.
    pub batches: u64,
    /// Samples that were made.
    pub samples: u64,
    /// Bytes of their records.
    pub encoded_bytes: u64,
    /// Bytes of the batches that they became.
    pub made_bytes: u64,
    /// Samples that could not be read and were replaced by others.
    pub replaced: u64,
    /// Reading records.
    pub read_ns: u64,
    /// From bytes to pixels.
    pub decode_ns: u64,
    /// Changing pixels.
    pub transform_ns: u64,
    /// From pixels to the numbers of a batch.
    pub store_ns: u64,
    /// Mix-up and CutMix.
    pub mix_ns: u64,
    /// Workers had nothing to do, because enough was made ahead: the consumer is what takes the time.
    pub workers_waited_ns: u64,
    /// The consumer waited for a batch: reading and decoding is what takes the time.
    pub consumer_waited_ns: u64,
}

/// One counter for each field. Written by workers and the consumer, read by whoever asks; orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) batches: AtomicU64,
    pub(crate) samples: AtomicU64,
    pub(crate) encoded_bytes: AtomicU64,
    pub(crate) made_bytes: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) read_ns: AtomicU64,
    pub(crate) decode_ns: AtomicU64,
    pub(crate) transform_ns: AtomicU64,
    pub(crate) store_ns: AtomicU64,
    pub(crate) mix_ns: AtomicU64,
    pub(crate) workers_waited_ns: AtomicU64,
    pub(crate) consumer_waited_ns: AtomicU64,
}

impl Tally {
    pub(crate) fn read(&self) -> FeedTimes {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FeedTimes {
            batches: of(&self.batches),
            samples: of(&self.samples),
            encoded_bytes: of(&self.encoded_bytes),
            made_bytes: of(&self.made_bytes),
            replaced: of(&self.replaced),
            read_ns: of(&self.read_ns),
            decode_ns: of(&self.decode_ns),
            transform_ns: of(&self.transform_ns),
            store_ns: of(&self.store_ns),
            mix_ns: of(&self.mix_ns),
            workers_waited_ns: of(&self.workers_waited_ns),
            consumer_waited_ns: of(&self.consumer_waited_ns),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

pub(crate) fn add_time(counter: &AtomicU64, time: Duration) {
    add(counter, time.as_nanos() as u64);
}
