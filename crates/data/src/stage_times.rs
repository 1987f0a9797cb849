//! What making samples took, by stage.
//!
//! A worker adds up what its part of a batch took; the loader sums the parts for its statistics and records one event
//! for each batch and stage. What a thread waits for while it reads or decodes (a disk, a core) counts for the stage.

use std::time::Instant;

use farandole_trace::Recorder;
use farandole_trace::event::{Event, InputStage};

/// Sums of some samples. See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Samples that were made.
    pub samples: u64,
    /// Fetching bytes.
    pub read_ns: u64,
    /// Bytes that were fetched.
    pub encoded_bytes: u64,
    /// From bytes to pixels, of the wanted size where that is one step.
    pub decode_ns: u64,
    /// Of that: from planes of a JPEG to colours.
    pub colour_ns: u64,
    /// Pixels of the images as they are stored, whether all of them were decoded or not.
    pub stored_pixels: u64,
    /// All that changes pixels: resizing, turning, colours. A source that neither reads nor decodes spends its time
    /// here.
    pub transform_ns: u64,
    /// From pixels to the numbers of a batch.
    pub store_ns: u64,
    /// Mix-up and CutMix.
    pub mix_ns: u64,
    /// Pixels of the samples that were made.
    pub made_pixels: u64,
}

impl StageTimes {
    fn each(&mut self) -> [&mut u64; 10] {
        let StageTimes {
            samples,
            read_ns,
            encoded_bytes,
            decode_ns,
            colour_ns,
            stored_pixels,
            transform_ns,
            store_ns,
            mix_ns,
            made_pixels,
        } = self;
        [
            samples,
            read_ns,
            encoded_bytes,
            decode_ns,
            colour_ns,
            stored_pixels,
            transform_ns,
            store_ns,
            mix_ns,
            made_pixels,
        ]
    }

    /// Adds the sums of other samples.
    pub(crate) fn add(&mut self, mut other: StageTimes) {
        self.each().into_iter().zip(other.each()).for_each(|(sum, more)| *sum += *more);
    }

    /// Records a batch that this many threads make. Stages without time are left out.
    pub(crate) fn record(&self, recorder: &Recorder, workers: usize) {
        let workers = u16::try_from(workers).unwrap_or(u16::MAX);
        let samples = u32::try_from(self.samples).unwrap_or(u32::MAX);
        for (stage, ns, amount) in [
            (InputStage::Read, self.read_ns, self.encoded_bytes),
            (InputStage::Decode, self.decode_ns, self.stored_pixels),
            (InputStage::Change, self.transform_ns + self.store_ns + self.mix_ns, self.made_pixels),
        ] {
            if ns > 0 {
                recorder.mark(Event::InputTook { stage, workers, samples, ns, amount });
            }
        }
    }
}

/// Runs `work`, and adds its duration to `ns`.
pub(crate) fn timed<T>(ns: &mut u64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    *ns += began.elapsed().as_nanos() as u64;
    done
}
