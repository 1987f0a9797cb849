//! One point of `farandole data bench`: so many workers make batches for some seconds, and what it took is counted.
//!
//! *Warm*: the same samples were read just before, so their files lie in memory as far as they fit. *Cold*: the kernel
//! was asked to forget them. Batches are dropped as they come: nobody waits for anything but the pipeline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use farandole_data::feed::{Broken, Content, Feed, FeedConfig, FeedTimes};
use farandole_data::records::Records;
use serde::Serialize;

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// What becomes of records.
    pub(super) content: Content,
    /// Threads that make batches.
    pub(super) workers: usize,
    /// Samples of a batch.
    pub(super) batch: usize,
    /// How long, unless all samples were read once and more.
    pub(super) limit: Duration,
}

/// What came of it. Times are those of worker threads, with what they waited for (a disk, a core).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) samples: u64,
    pub(super) samples_per_s: f64,
    /// Of records as they lie in the storage.
    pub(super) bytes_per_s: f64,
    pub(super) read_us: f64,
    pub(super) decode_us: f64,
    pub(super) transform_us: f64,
    pub(super) store_us: f64,
    /// The most memory that batches took at once.
    pub(super) memory_bytes: usize,
    /// Samples that could not be read.
    pub(super) broken: u64,
}

impl Measured {
    /// What one sample takes of one worker.
    pub(super) fn sample_us(&self) -> f64 {
        self.read_us + self.decode_us + self.transform_us + self.store_us
    }
}

/// Makes batches until the time is over.
pub(super) fn measure(records: &Arc<dyn Records>, point: &Point) -> Result<Measured> {
    let config =
        FeedConfig { batch: point.batch, workers: point.workers, broken: Broken::Replaced, ..FeedConfig::default() };
    let feed = Feed::new(Arc::clone(records), point.content.clone(), config).map_err(|error| anyhow!("{error}"))?;
    let begun = Instant::now();
    let mut samples = 0;
    'epochs: for epoch in 0.. {
        for batch in feed.epoch(epoch, 0) {
            samples += batch.map_err(|error| anyhow!("{error}"))?.count as u64;
            if begun.elapsed() >= point.limit {
                break 'epochs;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let times = feed.times();
    Ok(measured(samples, seconds, &times, feed.memory_bytes().peak))
}

fn measured(samples: u64, seconds: f64, times: &FeedTimes, memory_bytes: usize) -> Measured {
    // Workers are ahead of the consumer: stages are divided by what was made, rates by what was taken.
    let made = times.samples.max(1) as f64;
    let each = |ns: u64| ns as f64 / made / 1e3;
    let rate = samples as f64 / seconds;
    Measured {
        samples,
        samples_per_s: rate,
        bytes_per_s: rate * times.encoded_bytes as f64 / made,
        read_us: each(times.read_ns),
        decode_us: each(times.decode_ns),
        transform_us: each(times.transform_ns),
        store_us: each(times.store_ns),
        memory_bytes,
        broken: times.replaced,
    }
}
