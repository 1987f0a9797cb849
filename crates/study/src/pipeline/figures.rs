//! The input pipeline alone: what one run of it has shown.

use serde::{Deserialize, Serialize};

/// What the pipeline has done. Times are those of worker threads for one sample, waiting for a disk or a core included.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PipelineFigures {
    /// Samples that were taken.
    pub samples: u64,
    /// Their rate, over all of the time.
    pub samples_per_s: f64,
    /// In the fastest tenth of the time.
    pub peak_per_s: f64,
    /// Of records as they lie in the storage.
    pub bytes_per_s: f64,
    /// Reading a record.
    pub read_us: f64,
    /// Decoding it.
    pub decode_us: f64,
    /// Changing its pixels.
    pub transform_us: f64,
    /// Storing the result in the batch.
    pub store_us: f64,
    /// The most memory that batches took at once.
    pub memory_bytes: usize,
    /// Samples that could not be read.
    pub broken: u64,
}

impl PipelineFigures {
    /// What one sample takes of one worker.
    pub fn sample_us(&self) -> f64 {
        self.read_us + self.decode_us + self.transform_us + self.store_us
    }
}
