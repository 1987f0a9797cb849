//! What making samples took, by stage: for the trace, so that a report can say how many workers a training needs.
//!
//! A worker adds up what its part of a batch took ([`Took`]); whoever joins the parts records the sum, once for a
//! batch. What a thread waits for while it reads or decodes (a disk, a core) counts for the stage.

use std::time::Instant;

use farandole_trace::Recorder;
use farandole_trace::event::{Event, InputStage};

/// Sums of one batch or a part of it. See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Samples that were made.
    pub samples: u32,
    /// Fetching bytes.
    pub read_ns: u64,
    /// How many these were.
    pub encoded_bytes: u64,
    /// From bytes to pixels, of the wanted size where that is one step.
    pub decode_ns: u64,
    /// Pixels of the images as they are stored.
    pub stored_pixels: u64,
    /// Everything that follows.
    pub change_ns: u64,
    /// Pixels of the samples that were made.
    pub made_pixels: u64,
}

impl Took {
    /// Adds another part of the same batch.
    pub(crate) fn add(&mut self, other: &Took) {
        self.samples += other.samples;
        self.read_ns += other.read_ns;
        self.encoded_bytes += other.encoded_bytes;
        self.decode_ns += other.decode_ns;
        self.stored_pixels += other.stored_pixels;
        self.change_ns += other.change_ns;
        self.made_pixels += other.made_pixels;
    }

    /// Records a whole batch that so many threads make. Stages that took no time were none.
    pub(crate) fn record(&self, recorder: &Recorder, workers: usize) {
        let workers = u16::try_from(workers).unwrap_or(u16::MAX);
        for (stage, ns, amount) in [
            (InputStage::Read, self.read_ns, self.encoded_bytes),
            (InputStage::Decode, self.decode_ns, self.stored_pixels),
            (InputStage::Change, self.change_ns, self.made_pixels),
        ] {
            if ns > 0 {
                recorder.mark(Event::InputTook { stage, workers, samples: self.samples, ns, amount });
            }
        }
    }
}

/// Does something, and adds to `ns` how long it took.
pub(crate) fn timed<T>(ns: &mut u64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    *ns += began.elapsed().as_nanos() as u64;
    done
}
