//! What a rank's loader did for its batches, where it is one that says so: the trainer's, and `farandole.data.Loader`.

use farandole_trace::Trace;
use farandole_trace::event::{Event, InputStage};

/// The batches that a rank's loader has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputHistory {
    /// One for each stage of each batch, in order.
    pub stages: Vec<InputTime>,
}

/// A stage of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTime {
    /// When the batch was made.
    pub at_ns: u64,
    /// Which stage.
    pub stage: InputStage,
    /// Threads of the loader; none: the program's own makes batches.
    pub workers: u16,
    /// Samples of the batch.
    pub samples: u32,
    /// How long all threads together were in this stage.
    pub ns: u64,
    /// Bytes that were read, pixels as stored, or pixels of the batch.
    pub amount: u64,
}

/// What a loader's work comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InputWork {
    /// Threads of the loader.
    pub workers: usize,
    /// Samples that it has made.
    pub samples: u64,
    /// How long its threads were busy with them, by stage.
    pub read_ns: u64,
    /// See `read_ns`.
    pub decode_ns: u64,
    /// See `read_ns`.
    pub change_ns: u64,
    /// Pixels of the images as they are stored.
    pub stored_pixels: u64,
    /// Pixels of the samples.
    pub made_pixels: u64,
}

impl InputWork {
    /// How long one sample takes of one thread.
    pub fn sample_ns(&self) -> f64 {
        (self.read_ns + self.decode_ns + self.change_ns) as f64 / self.samples.max(1) as f64
    }
}

impl InputHistory {
    /// What a trace says of the rank's loader.
    pub(super) fn of(trace: &Trace, clock: &dyn Fn(u64) -> u64) -> InputHistory {
        let stage = |record: &farandole_trace::Record| match record.event {
            Event::InputTook { stage, workers, samples, ns, amount } => {
                Some(InputTime { at_ns: clock(record.time_ns), stage, workers, samples, ns, amount })
            }
            _ => None,
        };
        InputHistory { stages: trace.records.iter().filter_map(stage).collect() }
    }

    /// Everything together; nothing where the loader is another's.
    pub fn work(&self) -> Option<InputWork> {
        let last = self.stages.last()?;
        let mut work = InputWork { workers: last.workers.into(), ..InputWork::default() };
        let mut samples = [0; 3];
        for time in &self.stages {
            let stage = match time.stage {
                InputStage::Read => {
                    work.read_ns += time.ns;
                    0
                }
                InputStage::Decode => {
                    work.decode_ns += time.ns;
                    work.stored_pixels += time.amount;
                    1
                }
                InputStage::Change => {
                    work.change_ns += time.ns;
                    work.made_pixels += time.amount;
                    2
                }
            };
            samples[stage] += u64::from(time.samples);
        }
        // A batch has one record for each of its stages, and not each batch has all of them.
        work.samples = samples.into_iter().max().filter(|samples| *samples > 0)?;
        Some(work)
    }

    /// Keeps what a window has in it, and moves it there.
    pub(super) fn keep(&mut self, is_inside: impl Fn(u64) -> bool, moved: impl Fn(u64) -> u64) {
        self.stages.retain(|time| is_inside(time.at_ns));
        self.stages.iter_mut().for_each(|time| time.at_ns = moved(time.at_ns));
    }
}
