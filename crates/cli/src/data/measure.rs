//! One point of `farandole data bench`: so many workers make batches for some seconds, and what it took is counted.
//!
//! *Warm*: the same samples were read just before, so their files lie in memory as far as they fit. *Cold*: the kernel
//! was asked to forget them. Batches are dropped as they come: nobody waits for anything but the pipeline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use farandole_data::loader::{Broken, Content, Input, Loader, LoaderConfig, LoaderStats};
use farandole_data::source::Records;
use farandole_study::pipeline::PipelineFigures;

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// What becomes of records.
    pub(super) content: Content,
    /// Threads that make batches.
    pub(super) workers: usize,
    /// Samples of a batch.
    pub(super) batch: usize,
    /// Batches that are made ahead.
    pub(super) prefetch: usize,
    /// How long.
    pub(super) limit: Duration,
    /// Whether it ends when all samples were read once, because nothing is cold the second time.
    pub(super) once: bool,
}

/// Batches ahead where nothing is said: all workers make each of them together, so two keep any number busy.
pub(super) const PREFETCH: usize = 2;

/// A run is cut into so many stretches, and the fastest of them is the peak: long enough for several batches each.
const STRETCHES: u32 = 10;

/// Makes batches until the time is over.
pub(super) fn measure(records: &Arc<dyn Records>, point: &Point) -> Result<PipelineFigures> {
    let &Point { workers, batch, prefetch, .. } = point;
    let config = LoaderConfig { batch, workers, prefetch, broken: Broken::Replaced, ..LoaderConfig::default() };
    let input = Input::Records { records: Arc::clone(records), content: point.content.clone() };
    let loader = Loader::new(input, config).map_err(|error| anyhow!("{error}"))?;
    let begun = Instant::now();
    let mut samples = 0;
    let mut peak = Peak { since: begun, before: 0, per_s: 0.0, stretch: point.limit / STRETCHES };
    'epochs: for epoch in 0.. {
        for batch in loader.epoch(epoch, 0) {
            samples += batch.map_err(|error| anyhow!("{error}"))?.count as u64;
            peak.note(samples);
            if begun.elapsed() >= point.limit {
                break 'epochs;
            }
        }
        if point.once {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(measured((samples, seconds), peak.per_s, &loader.stats(), loader.memory_bytes().peak))
}

/// The highest rate of any stretch of the run.
struct Peak {
    since: Instant,
    /// Samples before this stretch.
    before: u64,
    per_s: f64,
    stretch: Duration,
}

impl Peak {
    fn note(&mut self, samples: u64) {
        let took = self.since.elapsed();
        if took >= self.stretch {
            self.per_s = self.per_s.max((samples - self.before) as f64 / took.as_secs_f64().max(1e-9));
            (self.since, self.before) = (Instant::now(), samples);
        }
    }
}

fn measured(
    (samples, seconds): (u64, f64),
    peak_per_s: f64,
    stats: &LoaderStats,
    memory_bytes: usize,
) -> PipelineFigures {
    let times = &stats.stages;
    // Workers are ahead of the consumer: stages are divided by what was made, rates by what was taken.
    let made = times.samples.max(1) as f64;
    let each = |ns: u64| ns as f64 / made / 1e3;
    let rate = samples as f64 / seconds;
    PipelineFigures {
        samples,
        samples_per_s: rate,
        peak_per_s: peak_per_s.max(rate),
        bytes_per_s: rate * times.encoded_bytes as f64 / made,
        read_us: each(times.read_ns),
        decode_us: each(times.decode_ns),
        transform_us: each(times.transform_ns),
        store_us: each(times.store_ns),
        memory_bytes,
        broken: stats.replaced,
    }
}
