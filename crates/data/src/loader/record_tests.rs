//! What must hold for batches of records, for any number of ranks and workers, in every order and from every step on.

use std::sync::atomic::{AtomicUsize, Ordering};

use farandole_testing::lapse;
use farandole_trace::Recorder;
use farandole_trace::event::{Event, InputStage};

use super::*;
use crate::sample::Label;
use crate::source::Records;
use crate::transform::{Element, Layout, Step};

const CLASSES: usize = 7;
const ORDERS: [SampleOrder; 3] =
    [SampleOrder::Shuffled, SampleOrder::InOrder, SampleOrder::ShuffledNearby { block: 4, window: 3 }];

type Spoil = Box<dyn Fn(usize) -> Option<Result<Label, String>> + Send + Sync>;

/// Small images that tell which they are.
struct Numbered {
    length: usize,
    /// How many were read.
    reads: Arc<AtomicUsize>,
    /// What a test wants of a record instead.
    spoil: Spoil,
}

impl Records for Numbered {
    fn len(&self) -> usize {
        self.length
    }
    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        encoded.clear();
        encoded.extend_from_slice(b"P6 6 5 255\n");
        encoded.extend((0..90).map(|at| (index * 31 + at * 7) as u8));
        match (self.spoil)(index) {
            None => Ok(Label::Class((index % CLASSES) as u32)),
            Some(Ok(label)) => Ok(label),
            Some(Err(cause)) => Err(SampleError { sample: self.name(index), cause }),
        }
    }
    fn task(&self) -> Task {
        Task::SingleLabel { classes: CLASSES }
    }
    fn name(&self, index: usize) -> String {
        format!("number {index}")
    }
    fn describe(&self) -> String {
        format!("{} numbers", self.length)
    }
    fn fingerprint(&self) -> u64 {
        self.length as u64
    }
}

fn spoiled(length: usize, spoil: impl Fn(usize) -> Option<Result<Label, String>> + Send + Sync + 'static) -> Numbered {
    Numbered { length, reads: Arc::default(), spoil: Box::new(spoil) }
}

fn numbered(length: usize) -> Arc<dyn Records> {
    Arc::new(spoiled(length, |_| None))
}

fn open(records: Arc<dyn Records>, content: Content, config: LoaderConfig) -> Result<Loader, LoaderError> {
    Loader::new(Input::Records { records, content }, config)
}

fn pixels(element: Element) -> Content {
    let mut steps = vec![Step::RandomCrop { height: 4, width: 4, padding: 1 }, Step::RandomHorizontalFlip { p: 0.5 }];
    if element != Element::U8 {
        steps.push(Step::normalize_imagenet());
    }
    Content::Images(Pixels::new(steps, 3, element, Layout::Nchw).unwrap())
}

fn images(batch: &LoadedBatch) -> &[u8] {
    let Images::Pixels(buffer) = &batch.images else { panic!("images were asked for") };
    buffer
}

/// A batch without its memory.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    global_count: usize,
    bytes: Vec<u8>,
    labels: Labels,
    indices: Vec<usize>,
}

fn plain(batch: Result<LoadedBatch, LoaderError>) -> Plain {
    let batch = batch.unwrap();
    let bytes = images(&batch).to_vec();
    assert_eq!((bytes.len() % batch.count.max(1), batch.indices.len()), (0, batch.count));
    Plain { global_count: batch.global_count, bytes, labels: batch.labels, indices: batch.indices }
}

fn walk(
    records: &Arc<dyn Records>,
    element: Element,
    config: &LoaderConfig,
    epoch: u64,
    first_step: usize,
) -> Vec<Plain> {
    let loader = open(Arc::clone(records), pixels(element), config.clone()).unwrap();
    let batches: Vec<Plain> = loader.epoch(epoch, first_step).map(plain).collect();
    assert_eq!(batches.len(), loader.steps().saturating_sub(first_step));
    batches
}

/// The batches of all ranks, step by step, side by side.
fn together(ranks: Vec<Vec<Plain>>) -> Vec<Plain> {
    let mut ranks = ranks.into_iter();
    let mut all = ranks.next().unwrap();
    for rank in ranks {
        assert_eq!(rank.len(), all.len());
        for (whole, part) in all.iter_mut().zip(rank) {
            assert_eq!(whole.global_count, part.global_count);
            whole.bytes.extend(part.bytes);
            whole.labels.append(part.labels);
            whole.indices.extend(part.indices);
        }
    }
    all
}

#[test]
fn workers_ranks_and_resuming_change_nothing() {
    let mixings = [Mixing::default(), Mixing { mixup_alpha: 0.4, cutmix_alpha: 1.0 }];
    let records = numbered(53);
    for (order, mixing) in ORDERS.into_iter().zip([mixings[1], mixings[0], mixings[1]]) {
        let config = LoaderConfig { batch: 12, seed: 3, order, mixing, ..LoaderConfig::default() };
        let expected = walk(&records, Element::F32, &LoaderConfig { workers: 0, ..config.clone() }, 1, 0);
        let mut indices: Vec<usize> = expected.iter().flat_map(|batch| batch.indices.clone()).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..53).collect::<Vec<_>>(), "each record once");
        for workers in [1, 2, 4, 8] {
            let config = LoaderConfig { workers, ..config.clone() };
            assert_eq!(walk(&records, Element::F32, &config, 1, 0), expected, "{workers} workers, {order:?}");
        }
        for world_size in [1, 2, 4, 5] {
            for first_step in 0..=expected.len() {
                // With five ranks of a global batch of 12, shares are uneven and pairs are cut.
                let of_rank = |rank| {
                    let global_batch = Some(12);
                    let config =
                        LoaderConfig { rank, world_size, batch: 3, global_batch, workers: 2, ..config.clone() };
                    walk(&records, Element::F32, &config, 1, first_step)
                };
                let all = together((0..world_size).map(of_rank).collect());
                assert_eq!(all, expected[first_step..], "{world_size} ranks from step {first_step}, {order:?}");
            }
        }
        let next = walk(&records, Element::F32, &config, 2, 0);
        assert!(next != expected, "epochs differ, by their order or their changes");
    }
}

#[test]
fn elements_are_the_same_numbers() {
    let records = numbered(10);
    let config = LoaderConfig { batch: 10, ..LoaderConfig::default() };
    let numbers = |element| walk(&records, element, &config, 0, 0).remove(0).bytes;
    let exact: Vec<f32> = numbers(Element::F32).as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
    let halves = numbers(Element::F16);
    assert_eq!((exact.len(), halves.len()), (10 * 48, 10 * 96));
    for (exact, half) in exact.iter().zip(halves.as_chunks::<2>().0) {
        assert!((half::f16::from_ne_bytes(*half).to_f32() - exact).abs() < 2e-3);
    }
    assert_eq!(numbers(Element::U8).len(), 10 * 48);
    assert_eq!(numbers(Element::BF16).len(), 10 * 96);
}

#[test]
fn the_last_batch_is_short_or_left_out() {
    let records = numbered(25);
    let config = LoaderConfig { batch: 10, workers: 2, ..LoaderConfig::default() };
    let counts = |config: &LoaderConfig| {
        walk(&records, Element::U8, config, 0, 0).iter().map(|batch| batch.indices.len()).collect::<Vec<_>>()
    };
    assert_eq!(counts(&config), [10, 10, 5]);
    let dropping = LoaderConfig { drop_last: true, ..config.clone() };
    assert_eq!(counts(&dropping), [10, 10]);
    // The order is that of all records, so each epoch leaves out others.
    let left_out = |epoch| {
        let all = walk(&records, Element::U8, &dropping, epoch, 0);
        (0..25).filter(|index| !all.iter().any(|batch| batch.indices.contains(index))).collect::<Vec<_>>()
    };
    assert_ne!(left_out(0), left_out(1));
    let none = LoaderConfig { batch: 30, ..dropping };
    assert_eq!(counts(&none), [0; 0]);
}

#[test]
fn a_broken_sample_is_an_error_that_names_it_or_is_replaced_and_named() {
    let broken = |index| (index == 3 || index == 4).then(|| Err("it is broken".to_owned()));
    for workers in [0, 1, 3] {
        let records: Arc<dyn Records> = Arc::new(spoiled(10, broken));
        let config = LoaderConfig { batch: 5, workers, order: SampleOrder::InOrder, ..LoaderConfig::default() };
        let loader = open(Arc::clone(&records), pixels(Element::U8), config.clone()).unwrap();
        let outcomes: Vec<_> = loader.epoch(0, 0).collect();
        assert_eq!(outcomes.len(), 1, "the first error ends the epoch");
        let error = outcomes[0].as_ref().unwrap_err().to_string();
        assert_eq!(error, "number 3 cannot be read: it is broken");
        let config = LoaderConfig { broken: Broken::Replaced, ..config };
        let loader = open(records, pixels(Element::U8), config).unwrap();
        for epoch in 0..2 {
            let batches: Vec<LoadedBatch> = loader.epoch(epoch, 0).map(Result::unwrap).collect();
            assert_eq!(batches[0].indices, [0, 1, 2, 5, 5]);
            assert_eq!((batches[0].replaced, batches[1].replaced), (2, 0));
            assert_eq!(batches[0].labels, Labels::Classes(vec![0, 1, 2, 5, 5]));
            assert_eq!(loader.take_notices().len(), if epoch == 0 { 2 } else { 0 });
        }
        assert_eq!(loader.stats().replaced, 4);
    }
}

#[test]
fn what_cannot_be_decoded_does_not_fit_or_panics_is_named() {
    let says = |spoil: fn(usize) -> Option<Result<Label, String>>, content: Content| {
        let loader = open(Arc::new(spoiled(9, spoil)), content, LoaderConfig { batch: 4, ..LoaderConfig::default() });
        loader.unwrap().epoch(0, 0).find_map(Result::err).unwrap().to_string()
    };
    let class = |index| (index == 6).then_some(Ok(Label::Class(7)));
    assert_eq!(
        says(class, pixels(Element::U8)),
        "number 6 does not fit the data set: class 7 is none of 7, which begin with 0"
    );
    let panic = |index| {
        assert_ne!(index, 2, "two");
        None
    };
    let error = says(panic, pixels(Element::U8));
    assert!(error.contains("number 2") && error.contains("panic") && error.contains("two"), "{error}");
    let larger = vec![Step::RandomCrop { height: 40, width: 40, padding: 0 }];
    let larger = Content::Images(Pixels::new(larger, 3, Element::U8, Layout::Nchw).unwrap());
    let error = says(|_| None, larger);
    assert!(error.contains("number ") && error.contains("cannot be cut"), "{error}");
}

#[test]
fn nothing_readable_is_an_error_and_not_an_endless_search() {
    let records = spoiled(1_000_000, |_| Some(Err("it is broken".to_owned())));
    let reads = Arc::clone(&records.reads);
    let config = LoaderConfig { broken: Broken::Replaced, workers: 2, ..LoaderConfig::default() };
    let loader = open(Arc::new(records), pixels(Element::U8), config).unwrap();
    let error = loader.epoch(0, 0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("1000 samples in a row"), "{error}");
    assert!(reads.load(Ordering::Relaxed) <= 8_000);
}

#[test]
fn a_slow_consumer_bounds_what_is_read_and_allocated() {
    let records = spoiled(10_000, |_| None);
    let reads = Arc::clone(&records.reads);
    let config = LoaderConfig { batch: 16, workers: 4, prefetch: 3, ..LoaderConfig::default() };
    let loader = open(Arc::new(records), pixels(Element::F32), config).unwrap();
    let batch_bytes = 16 * 48 * 4;
    let mut epoch = loader.epoch(0, 0);
    let mut held = None;
    for taken in 1..8 {
        held = epoch.next();
        // Everything that may be made ahead is made,
        while reads.load(Ordering::Relaxed) < (taken + 3) * 16 {
            std::thread::yield_now();
        }
        lapse("a worker, which might make one more", Duration::from_millis(10));
        // and nothing more.
        assert_eq!(reads.load(Ordering::Relaxed), (taken + 3) * 16);
    }
    // Three ahead, one in our hands and one that was given up for it; and what four workers read into.
    let memory = loader.memory_bytes();
    let most = 5 * (batch_bytes + memory::ALIGN_BYTES) + 4 * 1_024;
    assert!(memory.now > 4 * batch_bytes && memory.peak <= most, "{memory:?}, {most}");
    drop(epoch);
    let kept: Vec<LoadedBatch> = loader.epoch(0, 0).take(50).map(Result::unwrap).collect();
    assert!(loader.memory_bytes().now >= 50 * batch_bytes, "batches that are kept are counted");
    drop((kept, held));
    assert!(loader.memory_bytes().now <= most, "no more is kept to be used again than is needed");
}

#[test]
fn memory_is_used_again_and_gone_with_the_loader() {
    let config = LoaderConfig { batch: 8, workers: 2, prefetch: 1, ..LoaderConfig::default() };
    let loader = open(numbered(800), pixels(Element::F32), config).unwrap();
    let addresses: std::collections::BTreeSet<usize> =
        loader.epoch(0, 0).map(|batch| images(&batch.unwrap()).as_ptr() as usize).collect();
    assert!(addresses.len() <= 3, "{} pieces of memory for 100 batches", addresses.len());
    let maker = Arc::clone(&loader.maker);
    let batch = loader.epoch(1, 0).next().unwrap().unwrap();
    drop(loader);
    assert_eq!(maker.ledger.read().now, 8 * 48 * 4 + memory::ALIGN_BYTES, "the batch that is still held");
    drop(batch);
    assert_eq!(maker.ledger.read().now, 0);
    assert_eq!(Arc::strong_count(&maker), 1, "no thread is left");
}

#[test]
fn an_epoch_that_is_dropped_in_the_middle_leaves_no_thread() {
    let records = spoiled(100_000, |_| {
        lapse("a record", Duration::from_millis(1));
        None
    });
    let reads = Arc::clone(&records.reads);
    let config = LoaderConfig { batch: 10_000, workers: 3, ..LoaderConfig::default() };
    let loader = open(Arc::new(records), pixels(Element::F32), config).unwrap();
    for wait_ms in [0, 5, 30] {
        let mut epoch = loader.epoch(0, 0);
        assert!(matches!(epoch.next_within(Duration::from_millis(wait_ms)), Poll::Pending));
        drop(epoch);
        // A batch has not been finished: it takes three seconds and more.
        assert!(reads.load(Ordering::Relaxed) < 10_000);
        assert_eq!(Arc::strong_count(&loader.maker), 1);
    }
}

#[test]
fn records_come_as_they_are_if_they_are_not_decoded() {
    for workers in [0, 3] {
        let config = LoaderConfig { batch: 7, workers, order: SampleOrder::InOrder, ..LoaderConfig::default() };
        let loader = open(numbered(20), Content::Encoded, config).unwrap();
        let mut index = 0;
        for batch in loader.epoch(0, 0) {
            let batch = batch.unwrap();
            let Images::Encoded(encoded) = &batch.images else { panic!("bytes were asked for") };
            assert_eq!(encoded.iter().count(), batch.count);
            for bytes in encoded.iter() {
                assert!(bytes.starts_with(b"P6 6 5 255\n") && bytes[11] == (index * 31) as u8 && bytes.len() == 101);
                index += 1;
            }
        }
        assert_eq!(index, 20);
    }
}

#[test]
fn stages_are_counted_and_the_work_of_workers_is_recorded() {
    let recorder = Recorder::new(Default::default(), 1_000);
    let config =
        LoaderConfig { batch: 16, workers: 2, recorder: Some(Arc::clone(&recorder)), ..LoaderConfig::default() };
    let loader = open(numbered(64), pixels(Element::F32), config).unwrap();
    assert_eq!(loader.epoch(0, 0).count(), 4);
    let times = loader.stats();
    assert_eq!((times.batches, times.stages.samples, times.stages.encoded_bytes), (4, 64, 64 * 101));
    let stages = times.stages;
    assert_eq!(times.made_bytes, 64 * 48 * 4);
    assert!(
        stages.read_ns > 0 && stages.decode_ns > 0 && stages.store_ns > 0 && times.consumer_waited_ns > 0,
        "{times:?}"
    );
    let trace = recorder.snapshot("test");
    let begun =
        trace.records.iter().filter(|record| format!("{:?}", record.event).contains("PhaseBegin { phase: InputWork"));
    assert_eq!(begun.clone().count(), 8, "each batch has two parts");
    let stages: Vec<(InputStage, u16, u32, u64)> = trace
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::InputTook { stage, workers, samples, amount, .. } => Some((stage, workers, samples, amount)),
            _ => None,
        })
        .collect();
    let read = stages.iter().filter(|stage| stage.0 == InputStage::Read);
    assert_eq!(read.clone().map(|stage| stage.2).sum::<u32>(), 64, "{stages:?}");
    assert!(read.clone().all(|&(_, workers, samples, bytes)| (workers, samples, bytes) == (2, 16, 16 * 101)));
    assert!(stages.contains(&(InputStage::Change, 2, 16, 16 * 16)), "4 x 4 pixels of each sample: {stages:?}");
    for record in begun {
        let name = trace.threads.get(&record.thread);
        assert!(name.is_some_and(|name| name.starts_with("loader")), "{name:?}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |content: Content, config: LoaderConfig| open(numbered(3), content, config).unwrap_err().to_string();
    let config = LoaderConfig::default;
    assert!(refused(Content::Encoded, LoaderConfig { batch: 0, ..config() }).contains("at least one sample"));
    assert!(refused(Content::Encoded, LoaderConfig { rank: 2, world_size: 2, ..config() }).contains("not one of 2"));
    let order = SampleOrder::ShuffledNearby { block: 0, window: 1 };
    assert!(refused(Content::Encoded, LoaderConfig { order, ..config() }).contains("at least one"));
    let mixing = Mixing { mixup_alpha: 0.2, ..Mixing::default() };
    assert!(refused(Content::Encoded, LoaderConfig { mixing, ..config() }).contains("only decoded images"));
    assert!(refused(pixels(Element::U8), LoaderConfig { mixing, ..config() }).contains("ask for floats"));
    assert_eq!(walk(&numbered(0), Element::U8, &config(), 0, 0), []);
    assert_eq!(walk(&numbered(3), Element::U8, &config(), 0, usize::MAX), []);
}
