//! One batch, made of its records: read, decoded, replaced where need be, mixed, and laid side by side.
//!
//! A part is a range of positions and the memory where its samples go. Where samples are mixed, parts end between
//! pairs, so that a pair is mixed by the worker that made it; only a partner that another rank has is made once more.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farandole_trace::Recorder;

use super::memory::{BatchMemory, Charge, Ledger, Pool, Slice};
use super::mix::{Format, Mixture, mix};
use super::times::{Tally, add, add_time};
use super::{Broken, Content, Encoded, FeedBatch, Images, Mixing, Pixels};
use crate::SampleError;
use crate::chance::{Chance, StreamPurpose};
use crate::crew::{Craft, guarded, part_samples};
use crate::loader::{Complaints, LoaderError, UNREADABLE_IN_A_ROW, misfit, partner};
use crate::sample::{Label, Labels};
use crate::sampler::{Permutation, SampleOrder, Shard};
use crate::source::Records;
use crate::took::Took;
use crate::transform::{Scratch, StageTimes};

/// The most samples of a part. An image takes a millisecond or more, so even one is worth a lock; eight make a tenth of
/// the events in a trace.
const PART_IMAGES: usize = 8;

/// The same for records that are not decoded, which take microseconds.
const PART_RECORDS: usize = 64;

/// A worker keeps no more than this between parts for reading records; one huge record shall not stay for ever.
const KEPT_BYTES: usize = 4 << 20;

/// What a feed makes batches of.
pub(super) struct Maker {
    pub(super) records: Arc<dyn Records>,
    pub(super) content: Content,
    pub(super) shard: Shard,
    pub(super) seed: u64,
    pub(super) order: SampleOrder,
    pub(super) broken: Broken,
    pub(super) mixing: Mixing,
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) sample_bytes: usize,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Arc<Pool>,
    pub(super) tally: Tally,
    /// Taken by workers when a sample cannot be read, and by whoever asks for notices.
    pub(super) complaints: Mutex<Complaints>,
}

/// Everything that is needed to make any batch of an epoch.
pub(super) struct Walk {
    pub(super) maker: Arc<Maker>,
    pub(super) order: Permutation,
    pub(super) epoch: u64,
    pub(super) workers: usize,
}

/// Positions to be made, and where to.
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
    encoded: Vec<u8>,
    ends: Vec<usize>,
    labels: Labels,
    indices: Vec<usize>,
    replaced: usize,
    took: Took,
}

/// What a worker uses again.
#[derive(Default)]
pub(super) struct Desk {
    encoded: Vec<u8>,
    scratch: Scratch,
    /// The other of a pair.
    other: Vec<u8>,
    charge: Option<Charge>,
    /// What the part of the moment took to read.
    took: Took,
}

/// A sample that was read.
struct Found {
    index: usize,
    label: Label,
    replaced: bool,
}

impl Walk {
    /// Makes all samples of a part, without mixing them.
    fn samples(
        &self,
        part: &mut Part,
        desk: &mut Desk,
        piece: &mut Unmixed,
        current: &mut Option<usize>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<()>, LoaderError> {
        let size = self.maker.sample_bytes;
        let memory = part.memory.as_mut();
        for (number, position) in part.positions.clone().enumerate() {
            if !wanted() {
                return Ok(None);
            }
            let out = &mut memory[number * size..(number + 1) * size];
            let found = self.sample(position, out, desk, current)?;
            if matches!(self.maker.content, Content::Encoded) {
                piece.encoded.extend_from_slice(&desk.encoded);
                piece.ends.push(piece.encoded.len());
            }
            piece.found.push(found);
        }
        Ok(Some(()))
    }

    /// The sample at a position, or the next that can be read, by number, if that is what is wanted.
    fn sample(
        &self,
        position: usize,
        out: &mut [u8],
        desk: &mut Desk,
        current: &mut Option<usize>,
    ) -> Result<Found, LoaderError> {
        let maker = &*self.maker;
        let first = self.order.at(position);
        let length = maker.records.len();
        let attempts = length.min(UNREADABLE_IN_A_ROW);
        let mut last = None;
        for attempt in 0..attempts {
            let index = (first + attempt) % length;
            *current = Some(index);
            // As the sample that it stands for would have been changed.
            let mut chance = Chance::new(maker.seed, StreamPurpose::Augmentation, self.epoch, first as u64);
            match maker.read(index, &mut chance, out, desk) {
                Ok(label) => {
                    if let Some(cause) = misfit(maker.records.task(), &label) {
                        return Err(LoaderError::Misfit { sample: maker.records.name(index), cause });
                    }
                    return Ok(Found { index, label, replaced: attempt > 0 });
                }
                Err(error) if maker.broken == Broken::Refused => return Err(LoaderError::Broken(error)),
                Err(error) => {
                    let consequence = "the next one is taken in its stead";
                    maker.complaints.lock().unwrap_or_else(PoisonError::into_inner).note(index, &error, consequence);
                    last = Some(error);
                }
            }
        }
        let last = last.expect("invariant: a position has at least one sample to be tried");
        Err(LoaderError::Unreadable { in_a_row: attempts, last })
    }

    /// Mixes the samples of a part, and makes its labels.
    fn mixed(
        &self,
        step: usize,
        part: &mut Part,
        found: &[Found],
        desk: &mut Desk,
        current: &mut Option<usize>,
    ) -> Result<Labels, LoaderError> {
        let maker = &*self.maker;
        let (task, count) = (maker.records.task(), found.len());
        let Content::Images(pixels) = maker.content.as_mixed(maker.mixing) else {
            let mut labels = Labels::for_task(task, count, false);
            found.iter().for_each(|found| labels.push_mixed(&found.label, &found.label, 1.0));
            return Ok(labels);
        };
        let began = Instant::now();
        let mut labels = Labels::for_task(task, count, true);
        let global = maker.shard.global_positions(step);
        let positions = part.positions.clone();
        let memory = part.memory.as_mut();
        let mut saved = std::mem::take(&mut desk.other);
        saved.resize(maker.sample_bytes, 0);
        let mut making = Duration::ZERO;
        for (number, position) in positions.clone().enumerate() {
            let at = number * maker.sample_bytes..(number + 1) * maker.sample_bytes;
            let own = &found[number].label;
            let Some(other) = partner(&global, position) else {
                labels.push_mixed(own, own, 1.0);
                continue;
            };
            let mixture = self.mixture(position, pixels);
            let share = mixture.share(pixels.shape());
            let format = Format { shape: pixels.shape(), element: pixels.element, layout: pixels.layout };
            if !positions.contains(&other) {
                let again = Instant::now();
                let other = self.sample(other, &mut saved, desk, current)?;
                making += again.elapsed();
                mix(&mut memory[at], &saved, mixture, format);
                labels.push_mixed(own, &other.label, share);
                continue;
            }
            let label = &found[other - positions.start].label;
            if other > position {
                // The second of the pair gets of the first what it is now.
                let (first, second) = memory[at.start..].split_at_mut(maker.sample_bytes);
                saved.copy_from_slice(first);
                mix(first, &second[..maker.sample_bytes], mixture, format);
            } else {
                mix(&mut memory[at], &saved, mixture, format);
            }
            labels.push_mixed(own, label, share);
        }
        desk.other = saved;
        add_time(&maker.tally.mix_ns, began.elapsed().saturating_sub(making));
        Ok(labels)
    }

    /// From a stream of its own: what is done to a sample's pixels does not depend on whether it is mixed.
    fn mixture(&self, position: usize, pixels: &Pixels) -> Mixture {
        let index = self.order.at(position) as u64;
        let mut chance = Chance::new(self.maker.seed, StreamPurpose::Augmentation, !self.epoch, index);
        let mixture = self.maker.mixing.draw(pixels.shape(), &mut chance);
        if mixture.share(pixels.shape()) == 1.0 { Mixture::Whole } else { mixture }
    }
}

/// A part before its samples are mixed.
#[derive(Default)]
struct Unmixed {
    found: Vec<Found>,
    encoded: Vec<u8>,
    ends: Vec<usize>,
}

impl Content {
    /// The content, if its samples are mixed.
    fn as_mixed(&self, mixing: Mixing) -> &Content {
        if mixing.is_wanted() { self } else { &Content::Encoded }
    }
}

impl Maker {
    /// Reads one record, and decodes it where that is wanted.
    fn read(&self, index: usize, chance: &mut Chance, out: &mut [u8], desk: &mut Desk) -> Result<Label, SampleError> {
        let began = Instant::now();
        let label = self.records.read(index, &mut desk.encoded);
        let reading = began.elapsed();
        add_time(&self.tally.read_ns, reading);
        desk.took.read_ns += reading.as_nanos() as u64;
        let label = label?;
        if let Content::Images(pixels) = &self.content {
            let done = pixels.recipe.apply(&desk.encoded, chance, out, &mut desk.scratch);
            done.map_err(|cause| SampleError { sample: self.records.name(index), cause })?;
        }
        add(&self.tally.samples, 1);
        add(&self.tally.encoded_bytes, desk.encoded.len() as u64);
        desk.took.samples += 1;
        desk.took.encoded_bytes += desk.encoded.len() as u64;
        Ok(label)
    }

    /// After each part: what it took, and how much memory the worker has.
    fn settle(&self, desk: &mut Desk, before: StageTimes) -> Took {
        let now = desk.scratch.times();
        add(&self.tally.decode_ns, now.decode_ns - before.decode_ns);
        add(&self.tally.transform_ns, now.transform_ns - before.transform_ns);
        add(&self.tally.store_ns, now.store_ns - before.store_ns);
        if desk.encoded.capacity() > KEPT_BYTES {
            desk.encoded = Vec::new();
        }
        let bytes = desk.encoded.capacity() + desk.other.capacity();
        desk.charge.get_or_insert_with(|| Charge::new(&self.ledger, 0)).change(bytes);
        let read = std::mem::take(&mut desk.took);
        let pixels = match &self.content {
            Content::Images(pixels) => pixels.shape().height * pixels.shape().width,
            Content::Encoded => 0,
        };
        Took {
            decode_ns: now.decode_ns - before.decode_ns,
            stored_pixels: now.stored_pixels - before.stored_pixels,
            change_ns: now.transform_ns - before.transform_ns + now.store_ns - before.store_ns,
            made_pixels: u64::from(read.samples) * pixels as u64,
            ..read
        }
    }
}

impl Craft for Walk {
    type Desk = Desk;
    type Part = Part;
    type Piece = Piece;
    type Made = FeedBatch;
    type Error = LoaderError;

    fn cut(&self, step: usize) -> Vec<Part> {
        let maker = &*self.maker;
        let positions = maker.shard.positions(step);
        let most = if matches!(maker.content, Content::Encoded) { PART_RECORDS } else { PART_IMAGES };
        let mut samples = part_samples(positions.len(), self.workers, 1, most);
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
        desk: &mut Desk,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Piece>, LoaderError> {
        let mut current = None;
        let before = desk.scratch.times();
        let mut unmixed = Unmixed::default();
        let part = &mut part;
        // What a panic leaves half done is dropped, or written anew before it is read.
        let made = guarded(|| {
            let Some(()) = self.samples(part, desk, &mut unmixed, &mut current, wanted)? else { return Ok(None) };
            self.mixed(step, part, &unmixed.found, desk, &mut current).map(Some)
        });
        let took = self.maker.settle(desk, before);
        let made = made.unwrap_or_else(|message| {
            let name = |index| guarded(|| self.maker.records.name(index)).unwrap_or_else(|_| format!("sample {index}"));
            let sample = current.map_or_else(|| format!("the batch of step {step}"), name);
            Err(LoaderError::Panicked { sample, message })
        });
        let Some(labels) = made? else { return Ok(None) };
        let Unmixed { found, encoded, ends } = unmixed;
        let replaced = found.iter().filter(|found| found.replaced).count();
        add(&self.maker.tally.replaced, replaced as u64);
        let indices = found.iter().map(|found| found.index).collect();
        let empty = part.memory.split(0);
        let memory = std::mem::replace(&mut part.memory, empty);
        Ok(Some(Piece { memory, rest: part.rest.take(), encoded, ends, labels, indices, replaced, took }))
    }

    fn join(&self, step: usize, pieces: Vec<Piece>) -> Result<FeedBatch, LoaderError> {
        let maker = &*self.maker;
        let count = maker.shard.positions(step).len();
        let mut labels = Labels::for_task(maker.records.task(), count, maker.mixing.is_wanted());
        let (mut indices, mut replaced) = (Vec::with_capacity(count), 0);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let (mut memory, mut rest) = (Vec::with_capacity(pieces.len()), None);
        let mut took = Took::default();
        for piece in pieces {
            took.add(&piece.took);
            labels.append(piece.labels);
            indices.extend(piece.indices);
            replaced += piece.replaced;
            ends.extend(piece.ends.iter().map(|end| bytes.len() + end));
            bytes.extend(piece.encoded);
            memory.push(piece.memory);
            rest = rest.or(piece.rest);
        }
        if let Some(recorder) = &maker.recorder {
            took.record(recorder, self.workers);
        }
        let images = if matches!(maker.content, Content::Encoded) {
            let charge = Charge::new(&maker.ledger, bytes.capacity());
            Images::Encoded(Encoded { bytes, ends, _charge: charge })
        } else {
            let rest = rest.expect("invariant: the first part has the rest of the batch's memory");
            Images::Pixels(BatchMemory::join(memory, rest, &maker.pool))
        };
        let made_bytes = match &images {
            Images::Pixels(buffer) => buffer.len(),
            Images::Encoded(encoded) => encoded.bytes.len(),
        };
        add(&maker.tally.made_bytes, made_bytes as u64);
        let global_count = maker.shard.global_positions(step).len();
        Ok(FeedBatch { step, count, global_count, images, labels, indices, replaced })
    }

    fn thread_name(&self) -> &'static str {
        "feed"
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.maker.recorder.as_ref()
    }

    fn note_idle(&self, time: Duration) {
        add_time(&self.maker.tally.workers_waited_ns, time);
    }

    fn no_thread(&self, cause: String) -> LoaderError {
        LoaderError::Thread(cause)
    }
}
