//! The input pipeline alone: what one run of it has shown.

use serde::{Deserialize, Serialize};

/// What the pipeline has done. Times are those of worker threads for one sample, waiting for a disk or a core included.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PipelineFigures {
    /// Samples that were taken.
    pub(crate) samples: u64,
    /// Their rate, over all of the time.
    pub(crate) samples_per_s: f64,
    /// In the fastest tenth of the time.
    pub(crate) peak_per_s: f64,
    /// Of records as they lie in the storage.
    pub(crate) bytes_per_s: f64,
    /// Reading a record.
    pub(crate) read_us: f64,
    /// Decoding it.
    pub(crate) decode_us: f64,
    /// Changing its pixels.
    pub(crate) transform_us: f64,
    /// Storing the result in the batch.
    pub(crate) store_us: f64,
    /// The most memory that batches took at once.
    pub(crate) memory_bytes: usize,
    /// Samples that could not be read.
    pub(crate) broken: u64,
}

impl PipelineFigures {
    /// What one sample takes of one worker.
    pub(crate) fn sample_us(&self) -> f64 {
        self.read_us + self.decode_us + self.transform_us + self.store_us
    }
}
