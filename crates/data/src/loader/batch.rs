//! One batch, made of its samples: made, replaced where need be, mixed, and joined.
//!
//! A part is a range of positions and the memory where its samples go. Where samples are mixed, parts end between
//! pairs, so that a pair is mixed by the worker that made it; only a partner that another rank has is made once more.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farandole_trace::Recorder;

use super::input::{Failed, Input, SampleScratch};
use super::memory::{BatchMemory, Charge, Ledger, Pool, Slice};
use super::mix::{Format, Mixing, Mixture, mix, partner};
use super::notices::Notices;
use super::stats::LoaderStats;
use super::task::{BatchTask, guarded, part_samples};
use super::{Broken, Encoded, Images, LoadedBatch, LoaderError};
use crate::chance::{Chance, StreamPurpose};
use crate::sample::{Label, Labels};
use crate::sampler::{Permutation, SampleOrder, Shard};
use crate::stage_times::StageTimes;

/// Samples in a row that may be unreadable before the data as a whole is taken to be missing.
const UNREADABLE_IN_A_ROW: usize = 1_000;

/// A worker keeps at most this much memory between parts for reading records, so that one huge record does not keep
/// its memory for the rest of the epoch.
const KEPT_BYTES: usize = 4 << 20;

/// What a loader makes batches of.
pub(super) struct BatchMaker {
    pub(super) input: Input,
    pub(super) shard: Shard,
    pub(super) seed: u64,
    pub(super) order: SampleOrder,
    pub(super) broken: Broken,
    pub(super) mixing: Mixing,
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) sample_bytes: usize,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Arc<Pool>,
    /// Taken by workers after each part, by the consumer for each batch, and by callers that ask for statistics.
    pub(super) stats: Mutex<LoaderStats>,
    /// Taken by workers when a sample cannot be read, and by callers that ask for notices.
    pub(super) notices: Mutex<Notices>,
}

impl BatchMaker {
    pub(super) fn stats(&self) -> MutexGuard<'_, LoaderStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After each part: what it took, and how much memory the worker has.
    fn settle(&self, scratch: &mut BatchScratch) -> StageTimes {
        let mut times = scratch.sample.take_times();
        times.mix_ns += std::mem::take(&mut scratch.mixing).as_nanos() as u64;
        self.stats().stages.add(times);
        if scratch.sample.encoded.capacity() > KEPT_BYTES {
            scratch.sample.encoded = Vec::new();
        }
        let bytes = scratch.sample.encoded.capacity() + scratch.other.capacity();
        scratch.charge.get_or_insert_with(|| Charge::new(&self.ledger, 0)).change(bytes);
        times
    }
}

/// Everything that is needed to make any batch of an epoch.
pub(super) struct EpochTask {
    pub(super) maker: Arc<BatchMaker>,
    pub(super) order: Permutation,
    pub(super) epoch: u64,
    pub(super) workers: usize,
}

/// Positions to be made, and the memory for them.
pub(super) struct Part {
    positions: Range<usize>,
    memory: Slice,
    /// Of the batch's memory, behind its last sample; with its first part.
    rest: Option<Slice>,
}

/// A part of a batch.
pub(super) struct Piece {
    memory: Slice,
    rest: Option<Slice>,
    samples: Samples,
    labels: Labels,
    times: StageTimes,
}

/// The samples of a part, before they are mixed.
#[derive(Default)]
struct Samples {
    found: Vec<Found>,
    /// Positions whose samples were left out.
    left_out: usize,
    encoded: Vec<u8>,
    ends: Vec<usize>,
}

/// A sample that was made.
struct Found {
    index: usize,
    label: Label,
    replaced: bool,
}

/// Memory that a worker reuses.
#[derive(Default)]
pub(super) struct BatchScratch {
    sample: SampleScratch,
    /// The other of a pair.
    other: Vec<u8>,
    charge: Option<Charge>,
    /// What mixing took in this part.
    mixing: Duration,
}

impl EpochTask {
    /// Makes all samples of a part, without mixing them. What is left out leaves no gap.
    fn samples(
        &self,
        part: &mut Part,
        scratch: &mut BatchScratch,
        samples: &mut Samples,
        current: &mut Option<usize>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<()>, LoaderError> {
        let size = self.maker.sample_bytes;
        let memory = part.memory.as_mut();
        for position in part.positions.clone() {
            if !wanted() {
                return Ok(None);
            }
            let number = samples.found.len();
            let out = &mut memory[number * size..(number + 1) * size];
            let Some(found) = self.sample(position, out, &mut scratch.sample, current)? else {
                samples.left_out += 1;
                continue;
            };
            if size == 0 {
                samples.encoded.extend_from_slice(&scratch.sample.encoded);
                samples.ends.push(samples.encoded.len());
            }
            samples.found.push(found);
        }
        Ok(Some(()))
    }

    /// The sample at a position. If it cannot be read, the next one by number that can, or none, as the loader is
    /// configured.
    fn sample(
        &self,
        position: usize,
        out: &mut [u8],
        scratch: &mut SampleScratch,
        current: &mut Option<usize>,
    ) -> Result<Option<Found>, LoaderError> {
        let maker = &*self.maker;
        let (first, length) = (self.order.at(position), maker.input.len());
        let attempts = length.min(UNREADABLE_IN_A_ROW);
        let mut last = None;
        for attempt in 0..attempts {
            let index = (first + attempt) % length;
            *current = Some(index);
            // As the sample that it stands for would have been changed.
            let mut chance = Chance::new(maker.seed, StreamPurpose::Augmentation, self.epoch, first as u64);
            let error = match maker.input.make(index, &mut chance, out, scratch) {
                Ok(label) => return Ok(Some(Found { index, label, replaced: attempt > 0 })),
                Err(Failed::Misfit(cause)) => {
                    return Err(LoaderError::Misfit { sample: maker.input.name(index), cause });
                }
                Err(Failed::Unreadable(error)) => error,
            };
            match maker.broken {
                Broken::Refused => return Err(LoaderError::Broken(error)),
                Broken::Replaced => maker.notices().note(index, &error, "the next one is taken in its stead"),
                Broken::LeftOut => {
                    maker.notices().note(index, &error, "it is left out");
                    return Ok(None);
                }
            }
            last = Some(error);
        }
        let last = last.expect("invariant: a position has at least one sample to be tried");
        Err(LoaderError::Unreadable { in_a_row: attempts, last })
    }

    /// Mixes the samples of a part, and makes its labels.
    fn labels(
        &self,
        step: usize,
        part: &mut Part,
        found: &[Found],
        scratch: &mut BatchScratch,
        current: &mut Option<usize>,
    ) -> Result<Labels, LoaderError> {
        let maker = &*self.maker;
        let is_mixed = maker.mixing.is_wanted();
        let mut labels = Labels::for_task(maker.input.task(), found.len(), is_mixed);
        let Some(format) = maker.input.format().filter(|_| is_mixed) else {
            found.iter().for_each(|found| labels.push_mixed(&found.label, &found.label, 1.0));
            return Ok(labels);
        };
        let began = Instant::now();
        let mut making = Duration::ZERO;
        let global = maker.shard.global_positions(step);
        let (positions, size) = (part.positions.clone(), maker.sample_bytes);
        let memory = part.memory.as_mut();
        let mut saved = std::mem::take(&mut scratch.other);
        saved.resize(size, 0);
        for (number, position) in positions.clone().enumerate() {
            let at = number * size..(number + 1) * size;
            let own = &found[number].label;
            let mixture = self.mixture(position, format);
            let share = mixture.share(format.shape);
            let Some(other) = partner(&global, position) else {
                // The last of an odd batch. A sample of a data set is its own partner, which rounds.
                if matches!(maker.input, Input::Samples { .. }) {
                    saved.copy_from_slice(&memory[at.clone()]);
                    mix(&mut memory[at], &saved, mixture, format);
                    labels.push_mixed(own, own, share);
                } else {
                    labels.push_mixed(own, own, 1.0);
                }
                continue;
            };
            if !positions.contains(&other) {
                let again = Instant::now();
                let other = self.sample(other, &mut saved, &mut scratch.sample, current)?;
                making += again.elapsed();
                let other = other.expect("invariant: samples that are mixed are not left out");
                mix(&mut memory[at], &saved, mixture, format);
                labels.push_mixed(own, &other.label, share);
                continue;
            }
            if other > position {
                // The second of the pair gets of the first what it is now.
                let (first, second) = memory[at.start..].split_at_mut(size);
                saved.copy_from_slice(first);
                mix(first, &second[..size], mixture, format);
            } else {
                mix(&mut memory[at], &saved, mixture, format);
            }
            labels.push_mixed(own, &found[other - positions.start].label, share);
        }
        scratch.other = saved;
        scratch.mixing += began.elapsed().saturating_sub(making);
        Ok(labels)
    }

    /// From a stream of its own: what is done to a sample's pixels does not depend on whether it is mixed.
    fn mixture(&self, position: usize, format: Format) -> Mixture {
        let index = self.order.at(position) as u64;
        let mut chance = Chance::new(self.maker.seed, StreamPurpose::Augmentation, !self.epoch, index);
        let mixture = self.maker.mixing.draw(format.shape, &mut chance);
        if mixture.share(format.shape) == 1.0 { Mixture::Whole } else { mixture }
    }
}

impl BatchTask for EpochTask {
    type Scratch = BatchScratch;
    type Part = Part;
    type Piece = Piece;
    type Batch = LoadedBatch;
    type Error = LoaderError;

    fn cut(&self, step: usize) -> Vec<Part> {
        let maker = &*self.maker;
        let positions = maker.shard.positions(step);
        let mut samples = part_samples(positions.len(), self.workers, maker.input.part_limits());
        let mut end = positions.start;
        if maker.mixing.is_wanted() {
            samples = samples.next_multiple_of(2);
            // The first part has one sample less where the first is the second of a pair.
            end -= (positions.start - maker.shard.global_positions(step).start) % 2;
        }
        let (mut memory, rest) = maker.pool.take(positions.len() * maker.sample_bytes);
        let mut rest = Some(rest);
        let mut parts = Vec::with_capacity(positions.len() / samples + 1);
        let mut begin = positions.start;
        while begin < positions.end || parts.is_empty() {
            end = end.saturating_add(samples).min(positions.end);
            let memory = memory.split((end - begin) * maker.sample_bytes);
            parts.push(Part { positions: begin..end, memory, rest: rest.take() });
            begin = end;
        }
        parts
    }

    fn make(
        &self,
        step: usize,
        mut part: Part,
        scratch: &mut BatchScratch,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Piece>, LoaderError> {
        let mut current = None;
        let mut samples = Samples::default();
        // What a panic leaves half done is dropped, or written again before it is read.
        let made = guarded(|| {
            let Some(()) = self.samples(&mut part, scratch, &mut samples, &mut current, wanted)? else {
                return Ok(None);
            };
            self.labels(step, &mut part, &samples.found, scratch, &mut current).map(Some)
        });
        let times = self.maker.settle(scratch);
        let made = made.unwrap_or_else(|message| {
            // A source that panics over a sample may do so over its name; then its number has to do.
            let name = |index| guarded(|| self.maker.input.name(index)).unwrap_or_else(|_| format!("sample {index}"));
            let sample = current.map_or_else(|| format!("the batch of step {step}"), name);
            Err(LoaderError::Panicked { sample, message })
        });
        let Some(labels) = made? else { return Ok(None) };
        let Part { memory, rest, .. } = part;
        Ok(Some(Piece { memory, rest, samples, labels, times }))
    }

    fn join(&self, step: usize, pieces: Vec<Piece>) -> Result<LoadedBatch, LoaderError> {
        let maker = &*self.maker;
        let count = maker.shard.positions(step).len();
        let mut labels = Labels::for_task(maker.input.task(), count, maker.mixing.is_wanted());
        let (mut indices, mut replaced) = (Vec::with_capacity(count), 0);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let (mut memory, mut kept, mut rest) = (Vec::with_capacity(pieces.len()), Vec::new(), None);
        let mut times = StageTimes::default();
        let mut begin = 0;
        for Piece { memory: slice, rest: of_first, samples, labels: more, times: took } in pieces {
            let Samples { found, left_out, encoded, ends: within } = samples;
            times.add(took);
            labels.append(more);
            replaced += left_out + found.iter().filter(|found| found.replaced).count();
            kept.push(begin..begin + found.len() * maker.sample_bytes);
            begin += (found.len() + left_out) * maker.sample_bytes;
            indices.extend(found.into_iter().map(|found| found.index));
            ends.extend(within.iter().map(|end| bytes.len() + end));
            bytes.extend(encoded);
            memory.push(slice);
            rest = rest.or(of_first);
        }
        if let Some(recorder) = maker.recorder.as_ref().filter(|_| maker.input.is_learned_from()) {
            times.record(recorder, self.workers);
        }
        let rest = rest.expect("invariant: the first part has the rest of the batch's memory");
        let mut memory = BatchMemory::join(memory, rest, &maker.pool);
        if indices.len() < count {
            memory.keep(kept);
        }
        let images = match &maker.input {
            _ if maker.sample_bytes == 0 => {
                let charge = Charge::new(&maker.ledger, bytes.capacity());
                Images::Encoded(Encoded { bytes, ends, _charge: charge })
            }
            Input::Records { .. } => Images::Pixels(memory),
            Input::Samples { .. } => {
                let numbers = memory.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number));
                Images::Floats(numbers.collect())
            }
        };
        let mut stats = maker.stats();
        stats.made_bytes += images.bytes() as u64;
        stats.replaced += replaced as u64;
        drop(stats);
        let global_count = maker.shard.global_positions(step).len();
        Ok(LoadedBatch { step, count: indices.len(), global_count, images, labels, indices, replaced })
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.maker.recorder.as_ref()
    }

    fn note_idle(&self, time: Duration) {
        self.maker.stats().workers_waited_ns += time.as_nanos() as u64;
    }

    fn no_thread(&self, cause: String) -> LoaderError {
        LoaderError::Thread(cause)
    }
}
