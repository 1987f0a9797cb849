//! What a loader has done so far.
//!
//! Workers add what a part took when it is made, so the sums lag behind by what is being made. The stages of one worker
//! follow each other: their sum, over all workers, is the time in which workers had a part.

use crate::stage_times::StageTimes;

/// Sums since a loader was made. See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderStats {
    /// Batches that the consumer has taken.
    pub batches: u64,
    /// Bytes of the images of all batches.
    pub made_bytes: u64,
    /// Samples that could not be read and were replaced by others or left out.
    pub replaced: u64,
    /// Samples that were made, and what that took.
    pub stages: StageTimes,
    /// Workers had nothing to do, because enough was made ahead: the consumer is the bottleneck.
    pub workers_waited_ns: u64,
    /// The consumer waited for a batch: reading and decoding is the bottleneck.
    pub consumer_waited_ns: u64,
}
