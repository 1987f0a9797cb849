//! What must hold for batches of a data set's samples, for any number of ranks and workers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farandole_testing::{NEVER, lapse, wait_until};
use farandole_trace::event::{Event, InputStage};
use proptest::prelude::*;

use super::notices::NOTICES;
use super::*;
use crate::DataSet;
use crate::sample::{ImageShape, Label, Labels, Sample, Split, Task};
use crate::transform::Augment;

const SHAPE: ImageShape = ImageShape { bands: 1, height: 3, width: 3 };
const CLASSES: usize = 7;

type Make = Box<dyn Fn(usize) -> Result<Sample, SampleError> + Send + Sync>;

/// Samples that tell which they are, or do what a test wants.
struct Numbered {
    length: usize,
    task: Task,
    make: Make,
}

fn sample(index: usize, task: Task) -> Sample {
    let image = (0..SHAPE.len()).map(|pixel| index as f32 + pixel as f32 / 16.0).collect();
    let label = match task {
        Task::SingleLabel { .. } => Label::Class((index % CLASSES) as u32),
        Task::MultiLabel { labels } => Label::Labels((0..labels).map(|label| ((index >> label) & 1) as f32).collect()),
        Task::Regression => Label::Value(index as f32),
        Task::SuperResolution { scale } => Label::Image(vec![index as f32; SHAPE.len() * scale * scale]),
    };
    Sample { image, label }
}

fn numbered_for(length: usize, task: Task) -> Arc<dyn DataSet> {
    Arc::new(Numbered { length, task, make: Box::new(move |index| Ok(sample(index, task))) })
}

fn made_by(
    length: usize,
    make: impl Fn(usize) -> Result<Sample, SampleError> + Send + Sync + 'static,
) -> Arc<dyn DataSet> {
    Arc::new(Numbered { length, task: Task::SingleLabel { classes: CLASSES }, make: Box::new(make) })
}

fn numbered(length: usize) -> Arc<dyn DataSet> {
    made_by(length, |index| Ok(sample(index, Task::SingleLabel { classes: CLASSES })))
}

fn unreadable(index: usize) -> SampleError {
    SampleError { sample: format!("number {index}"), cause: "it is broken".to_owned() }
}

impl DataSet for Numbered {
    fn shape(&self) -> ImageShape {
        SHAPE
    }
    fn task(&self) -> Task {
        self.task
    }
    fn len(&self, _: Split) -> usize {
        self.length
    }
    fn sample(&self, _: Split, index: usize) -> Result<Sample, SampleError> {
        (self.make)(index)
    }
    fn name(&self, _: Split, index: usize) -> String {
        format!("number {index}")
    }
    fn describe(&self) -> String {
        format!("{} numbers", self.length)
    }
}

/// A loader that does what the trainer wants of it.
fn open(data: Arc<dyn DataSet>, split: Split, augment: &str, config: LoaderConfig) -> Result<Loader, LoaderError> {
    let broken = if split == Split::Train { Broken::Replaced } else { Broken::LeftOut };
    let input = Input::Samples { data, split, augment: augment.parse::<Augment>().unwrap() };
    Loader::new(input, LoaderConfig { broken, ..config })
}

fn batches(
    data: &Arc<dyn DataSet>,
    augment: &str,
    config: LoaderConfig,
    epoch: u64,
    first_step: usize,
) -> Vec<SampleBatch> {
    let loader = open(Arc::clone(data), Split::Train, augment, config).unwrap();
    let batches: Vec<SampleBatch> =
        loader.epoch(epoch, first_step).map(|batch| batch.unwrap().into_samples()).collect();
    assert_eq!(batches.len(), loader.steps().saturating_sub(first_step));
    batches
}

/// Lays the batches of all ranks of a step side by side.
fn together(ranks: Vec<SampleBatch>) -> SampleBatch {
    let mut ranks = ranks.into_iter();
    let mut all = ranks.next().unwrap();
    for batch in ranks {
        assert_eq!(batch.global_count, all.global_count);
        all.count += batch.count;
        all.replaced += batch.replaced;
        all.images.extend(batch.images);
        all.labels.append(batch.labels);
    }
    all
}

fn any_task() -> impl Strategy<Value = Task> {
    prop_oneof![
        Just(Task::SingleLabel { classes: CLASSES }),
        Just(Task::MultiLabel { labels: 5 }),
        Just(Task::Regression),
        Just(Task::SuperResolution { scale: 2 }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ranks_and_workers_change_nothing(
        world_size in 1usize..6,
        batch in 1usize..6,
        length in 0usize..70,
        workers in 0usize..4,
        prefetch in 0usize..4,
        epoch in 0u64..3,
        mixed: bool,
        cut: bool,
        task in any_task(),
    ) {
        let data = numbered_for(length, task);
        let augment = if mixed { "flip,flip-rows,turn,rotate=20,crop=1,mixup=0.5" } else { "flip,turn,crop=1" };
        let cut = cut && !matches!(task, Task::SuperResolution { .. });
        let mixing = Mixing { cutmix_alpha: if cut { 1.0 } else { 0.0 }, ..Mixing::default() };
        let common = LoaderConfig { seed: 5, mixing, ..LoaderConfig::default() };
        let alone = LoaderConfig { batch: batch * world_size, workers: 0, ..common.clone() };
        let expected = batches(&data, augment, alone, epoch, 0);
        let mut of_ranks: Vec<_> = (0..world_size)
            .map(|rank| batches(&data, augment, LoaderConfig { rank, world_size, batch, workers, prefetch, ..common.clone() }, epoch, 0).into_iter())
            .collect();
        let mut seen = 0;
        for expected in expected {
            let all = together(of_ranks.iter_mut().map(|rank| rank.next().unwrap()).collect());
            prop_assert_eq!(all.count, all.global_count);
            prop_assert_eq!(all.images.len(), all.count * SHAPE.len());
            seen += all.count;
            prop_assert_eq!(all, expected);
        }
        prop_assert_eq!(seen, length);
    }

    #[test]
    fn each_sample_comes_once_in_an_epoch_and_a_resumed_one_goes_on(length in 1usize..80, batch in 1usize..9, workers in 0usize..3, from in 0usize..12) {
        let data = numbered(length);
        let config = LoaderConfig { batch, workers, ..LoaderConfig::default() };
        let all = batches(&data, "none", config.clone(), 3, 0);
        let mut numbers: Vec<usize> = all.iter().flat_map(|batch| batch.images.iter().step_by(SHAPE.len())).map(|first| *first as usize).collect();
        prop_assert_eq!(&batches(&data, "none", config, 3, from)[..], &all[from.min(all.len())..]);
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..length).collect::<Vec<_>>());
    }
}

#[test]
fn epochs_differ_and_tests_come_in_order_as_they_are() {
    let data = numbered(20);
    let augment = "flip,crop=2,mixup=1";
    let config = LoaderConfig { batch: 20, ..LoaderConfig::default() };
    assert_ne!(batches(&data, augment, config.clone(), 0, 0), batches(&data, augment, config.clone(), 1, 0));
    let config = LoaderConfig { order: SampleOrder::InOrder, ..config };
    let loader = open(data, Split::Test, augment, config).unwrap();
    let batch = loader.epoch(0, 0).next().unwrap().unwrap().into_samples();
    assert_eq!(batch.labels, Labels::Classes((0..20).map(|index| (index % CLASSES) as u32).collect()));
    assert_eq!(
        batch.images,
        (0..20).flat_map(|index| sample(index, Task::SingleLabel { classes: CLASSES }).image).collect::<Vec<_>>()
    );
}

#[test]
fn mixing_uses_another_sample_of_the_batch_and_its_class() {
    let data = numbered_for(64, Task::Regression);
    let config = LoaderConfig { batch: 64, ..LoaderConfig::default() };
    let plain = batches(&data, "none", config.clone(), 0, 0).remove(0);
    let mixed = batches(&data, "mixup=1", config, 0, 0).remove(0);
    let (Labels::Values(plain), Labels::Values(mixed_values)) = (plain.labels, mixed.labels) else { panic!() };
    let mut changed = 0;
    for place in 0..64 {
        let (own, partner) = (plain[place], plain[place ^ 1]);
        let share = (mixed_values[place] - partner) / (own - partner);
        assert!((0.499..=1.001).contains(&share), "{share}");
        // The image is mixed as its value is.
        assert!((mixed.images[place * SHAPE.len()] - mixed_values[place]).abs() < 1e-3);
        changed += usize::from(share < 0.999);
    }
    assert!(changed > 55);
}

#[test]
fn a_sample_that_cannot_be_read_is_replaced_by_the_next_and_named_once() {
    for workers in [0, 2] {
        let task = Task::SingleLabel { classes: CLASSES };
        let data = made_by(
            10,
            move |index| if index == 3 || index == 4 { Err(unreadable(index)) } else { Ok(sample(index, task)) },
        );
        let config = LoaderConfig { batch: 5, workers, ..LoaderConfig::default() };
        let loader = open(data, Split::Train, "none", config).unwrap();
        for epoch in 0..2 {
            let batches: Vec<SampleBatch> = loader.epoch(epoch, 0).map(|batch| batch.unwrap().into_samples()).collect();
            assert_eq!(batches.iter().map(|batch| batch.count).sum::<usize>(), 10);
            assert_eq!(batches.iter().map(|batch| batch.replaced).sum::<usize>(), 2);
            let fives = batches
                .iter()
                .flat_map(|batch| batch.images.iter().step_by(SHAPE.len()))
                .filter(|first| **first == 5.0)
                .count();
            assert_eq!(fives, 3);
            let notices = loader.take_notices();
            assert_eq!(notices.len(), if epoch == 0 { 2 } else { 0 }, "{notices:?}");
            assert!(notices.iter().all(|notice| notice.contains("it is broken; the next one")), "{notices:?}");
        }
    }
}

#[test]
fn a_test_sample_that_cannot_be_read_is_left_out() {
    let task = Task::SingleLabel { classes: CLASSES };
    let data = made_by(4, move |index| if index == 1 { Err(unreadable(index)) } else { Ok(sample(index, task)) });
    let loader = open(
        data,
        Split::Test,
        "none",
        LoaderConfig { batch: 4, order: SampleOrder::InOrder, ..LoaderConfig::default() },
    )
    .unwrap();
    let batch = loader.epoch(0, 0).next().unwrap().unwrap().into_samples();
    assert_eq!((batch.count, batch.replaced, batch.global_count), (3, 1, 4));
    assert_eq!(batch.labels, Labels::Classes(vec![0, 2, 3]));
    assert_eq!(batch.images.len(), 3 * SHAPE.len());
}

#[test]
fn a_log_is_not_filled_with_unreadable_samples() {
    let data =
        made_by(
            100,
            |index| if index == 0 { Ok(sample(0, Task::SingleLabel { classes: 7 })) } else { Err(unreadable(index)) },
        );
    let loader = open(data, Split::Train, "none", LoaderConfig::default()).unwrap();
    assert_eq!(loader.epoch(0, 0).map(|batch| batch.unwrap().replaced).sum::<usize>(), 99);
    let notices = loader.take_notices();
    assert_eq!(notices.len(), NOTICES + 1);
    assert!(notices[NOTICES].contains("only counted"));
}

#[test]
fn nothing_readable_is_an_error_and_not_an_endless_search() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let data = made_by(1_000_000, move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        Err(unreadable(index))
    });
    let loader = open(data, Split::Train, "none", LoaderConfig { workers: 1, ..LoaderConfig::default() }).unwrap();
    let mut epoch = loader.epoch(0, 0);
    let error = epoch.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("1000 samples in a row cannot be read") && error.contains("it is broken"), "{error}");
    assert!(epoch.next().is_none());
    drop(epoch);
    assert!(asked.load(Ordering::Relaxed) <= 8_000);
}

#[test]
fn a_panic_is_an_error_that_names_the_sample() {
    for workers in [0, 1, 3] {
        let task = Task::SingleLabel { classes: CLASSES };
        let data = made_by(100, move |index| {
            assert_ne!(index, 42, "the answer");
            Ok(sample(index, task))
        });
        let loader =
            open(data, Split::Train, "none", LoaderConfig { batch: 4, workers, ..LoaderConfig::default() }).unwrap();
        let outcomes: Vec<_> = loader.epoch(0, 0).collect();
        let (last, before) = outcomes.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok), "nothing comes after an error");
        let error = last.as_ref().unwrap_err().to_string();
        assert!(error.contains("number 42") && error.contains("the answer"), "{error}");
    }
}

#[test]
fn samples_that_do_not_fit_are_errors_that_name_them() {
    let task = Task::SingleLabel { classes: CLASSES };
    type Spoil = fn(&mut Sample);
    let wrong: [(Spoil, &str); 4] = [
        (|sample| sample.label = Label::Class(7), "class 7 is none of 7"),
        (|sample| sample.label = Label::Value(1.0), "another kind"),
        (|sample| sample.image.truncate(8), "8 numbers instead of 9"),
        (|sample| sample.image.push(0.0), "10 numbers instead of 9"),
    ];
    for (spoil, says) in wrong {
        let data = made_by(3, move |index| {
            let mut sample = sample(index, task);
            if index == 2 {
                spoil(&mut sample);
            }
            Ok(sample)
        });
        let loader = open(data, Split::Train, "none", LoaderConfig::default()).unwrap();
        let error = loader.epoch(0, 0).next().unwrap().unwrap_err().to_string();
        assert!(error.contains("number 2") && error.contains(says), "{error}");
    }
}

#[test]
fn an_epoch_that_is_dropped_leaves_no_thread_behind_and_does_not_finish_its_batches() {
    let task = Task::SingleLabel { classes: CLASSES };
    let made = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&made);
    let data = made_by(100_000, move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        lapse("a sample", Duration::from_millis(2));
        Ok(sample(index, task))
    });
    let config = LoaderConfig { batch: 10_000, workers: 3, ..LoaderConfig::default() };
    let loader = open(Arc::clone(&data), Split::Train, "none", config).unwrap();
    let epoch = loader.epoch(0, 0);
    wait_until("the first samples", NEVER, || made.load(Ordering::Relaxed) > 10);
    drop(epoch);
    drop(loader);
    // A batch takes 20 s.
    assert!(made.load(Ordering::Relaxed) < 10_000, "a batch was finished");
    assert_eq!(Arc::strong_count(&data), 1, "threads hold what they read from");
}

#[test]
fn workers_that_sleep_on_a_full_buffer_end_when_the_epoch_does() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&made);
    let data = made_by(1_000, move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(sample(index, Task::SingleLabel { classes: CLASSES }))
    });
    let config = LoaderConfig { batch: 4, workers: 4, prefetch: 2, ..LoaderConfig::default() };
    let loader = open(Arc::clone(&data), Split::Train, "none", config).unwrap();
    for taken in [0, 1, 7] {
        let before = made.load(Ordering::Relaxed);
        let epoch = loader.epoch(0, 0);
        let mut epoch = epoch.map(Result::unwrap);
        (0..taken).for_each(|_| drop(epoch.next()));
        // All that may be made ahead is made; then the workers sleep.
        let ahead = (taken + 2) * 4;
        wait_until("workers on a full buffer", NEVER, || made.load(Ordering::Relaxed) - before >= ahead);
    }
    drop(loader);
    assert_eq!(Arc::strong_count(&data), 1);
}

#[test]
fn no_more_is_made_ahead_than_was_allowed() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&made);
    let data = made_by(1_000, move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(sample(index, Task::SingleLabel { classes: CLASSES }))
    });
    let config = LoaderConfig { batch: 4, workers: 3, prefetch: 2, ..LoaderConfig::default() };
    let loader = open(data, Split::Train, "none", config).unwrap();
    let mut epoch = loader.epoch(0, 0);
    for taken in 1..4 {
        epoch.next().unwrap().unwrap();
        wait_until("batches ahead", NEVER, || made.load(Ordering::Relaxed) >= (taken + 2) * 4);
        lapse("a worker, which might make one more", Duration::from_millis(10));
        let made = made.load(Ordering::Relaxed);
        assert_eq!(made, (taken + 2) * 4, "after {taken} batches");
    }
}

#[test]
fn the_work_of_workers_is_recorded_on_their_threads() {
    let recorder = Recorder::new(Default::default(), 1_000);
    let config =
        LoaderConfig { batch: 4, workers: 2, recorder: Some(Arc::clone(&recorder)), ..LoaderConfig::default() };
    let loader = open(numbered(40), Split::Train, "none", config).unwrap();
    assert_eq!(loader.epoch(0, 0).count(), 10);
    let trace = recorder.snapshot("test");
    let begun =
        trace.records.iter().filter(|record| format!("{:?}", record.event).contains("PhaseBegin { phase: InputWork"));
    let here = std::thread::current().name().map(str::to_owned);
    assert_eq!(begun.clone().count(), 10);
    let took = trace.records.iter().filter_map(|record| match record.event {
        Event::InputTook { stage: InputStage::Change, workers, samples, .. } => Some((workers, samples)),
        _ => None,
    });
    assert_eq!(took.collect::<Vec<_>>(), [(2, 4); 10], "what a data set does that does not read is changing");
    for record in begun {
        let name = trace.threads.get(&record.thread).cloned();
        assert!(name != here && name.as_deref().is_some_and(|name| name.starts_with("loader")), "{name:?}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |config: LoaderConfig| open(numbered(3), Split::Train, "none", config).unwrap_err().to_string();
    assert!(refused(LoaderConfig { batch: 0, ..LoaderConfig::default() }).contains("at least one sample"));
    assert!(
        refused(LoaderConfig { rank: 2, world_size: 2, ..LoaderConfig::default() }).contains("rank 2 is not one of 2")
    );
    let mixing = Mixing { cutmix_alpha: 1.0, ..Mixing::default() };
    let pairs = numbered_for(3, Task::SuperResolution { scale: 2 });
    let error = open(pairs, Split::Train, "none", LoaderConfig { mixing, ..LoaderConfig::default() }).unwrap_err();
    assert!(error.to_string().contains("not for pairs of images"), "{error}");
    let input = Input::Samples { data: numbered(3), split: Split::Train, augment: "mixup".parse().unwrap() };
    let error = Loader::new(input, LoaderConfig { broken: Broken::LeftOut, ..LoaderConfig::default() }).unwrap_err();
    assert!(error.to_string().contains("cannot be left out"), "{error}");
    assert_eq!(batches(&numbered(0), "none", LoaderConfig::default(), 0, 0), []);
    assert_eq!(batches(&numbered(10), "none", LoaderConfig::default(), 0, usize::MAX), []);
}
