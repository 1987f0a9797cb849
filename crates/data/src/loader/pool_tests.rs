//! What must hold for any task, cut in any way, by any number of workers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farandole_trace::Recorder;

use proptest::prelude::*;

use super::prefetch::{Prefetcher, Taken};
use super::task::{BatchTask, part_samples};

/// Steps are lists of numbers; some of them fail.
#[derive(Default)]
struct Counting {
    parts: usize,
    fails: Vec<(usize, usize)>,
    begun: AtomicUsize,
}

impl BatchTask for Counting {
    type Scratch = usize;
    type Part = usize;
    type Piece = (usize, usize);
    type Batch = Vec<(usize, usize)>;
    type Error = String;

    fn cut(&self, _: usize) -> Vec<usize> {
        (0..self.parts).collect()
    }

    fn make(
        &self,
        step: usize,
        part: usize,
        scratch: &mut usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<(usize, usize)>, String> {
        *scratch += 1;
        self.begun.fetch_max(step + 1, Ordering::Relaxed);
        if self.fails.contains(&(step, part)) {
            return Err(format!("step {step}, part {part}"));
        }
        Ok(wanted().then_some((step, part)))
    }

    fn join(&self, step: usize, pieces: Vec<(usize, usize)>) -> Result<Vec<(usize, usize)>, String> {
        assert_eq!(pieces.len(), self.parts, "a step with pieces missing was joined");
        if self.fails.contains(&(step, usize::MAX)) { Err(format!("step {step}")) } else { Ok(pieces) }
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        None
    }

    fn no_thread(&self, cause: String) -> String {
        cause
    }
}

fn all(task: Arc<Counting>, steps: Range<usize>, workers: usize, prefetch: usize) -> Vec<Result<usize, String>> {
    let parts = task.parts;
    let mut prefetcher = Prefetcher::start(task, steps, workers, prefetch);
    let mut found = Vec::new();
    loop {
        let step = prefetcher.next_step();
        match prefetcher.take(None) {
            Taken::Made(Ok(pieces)) => {
                assert_eq!(pieces, (0..parts).map(|part| (step, part)).collect::<Vec<_>>());
                found.push(Ok(step));
            }
            Taken::Made(Err(error)) => found.push(Err(error)),
            Taken::Over => return found,
            Taken::NotYet => panic!("there was no limit"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn steps_come_in_order_up_to_the_first_failure(
        steps in 0usize..20,
        parts in 1usize..7,
        workers in 0usize..9,
        prefetch in 0usize..5,
        mut fails in prop::collection::vec((0usize..20, 0usize..7), 0..4),
    ) {
        fails.sort_unstable();
        // A part that a step does not have stands for joining.
        let fails: Vec<_> = fails.into_iter().map(|(step, part)| (step, if part < parts { part } else { usize::MAX })).collect();
        let first = fails.iter().filter(|(step, _)| *step < steps).min();
        let mut expected: Vec<Result<usize, String>> = (0..first.map_or(steps, |(step, _)| *step)).map(Ok).collect();
        expected.extend(first.map(|(step, part)| {
            Err(if *part == usize::MAX { format!("step {step}") } else { format!("step {step}, part {part}") })
        }));
        let task = Arc::new(Counting { parts, fails, ..Counting::default() });
        prop_assert_eq!(all(task, 0..steps, workers, prefetch), expected);
    }
}

#[test]
fn a_taker_that_does_not_wait_for_ever_is_told() {
    let task = Arc::new(Counting { parts: 2, ..Counting::default() });
    let mut prefetcher = Prefetcher::start(Arc::clone(&task), 0..3, 2, 1);
    let mut steps = 0;
    loop {
        match prefetcher.take(Some(Duration::ZERO)) {
            Taken::Made(made) => steps += usize::from(made.is_ok()),
            Taken::NotYet => std::thread::yield_now(),
            Taken::Over => break,
        }
    }
    assert_eq!(steps, 3);
    // The last taken frees the threads.
    assert_eq!(Arc::strong_count(&task), 1);
}

#[test]
fn workers_begin_no_more_steps_than_they_may() {
    let task = Arc::new(Counting { parts: 3, ..Counting::default() });
    let mut prefetcher = Prefetcher::start(Arc::clone(&task), 0..100, 4, 2);
    for taken in 1..10 {
        assert!(matches!(prefetcher.take(None), Taken::Made(Ok(_))));
        // All that may be begun is begun, and then nothing more.
        while task.begun.load(Ordering::Relaxed) < taken + 2 {
            std::thread::yield_now();
        }
        farandole_testing::lapse("a worker, which might begin one more", Duration::from_millis(5));
        assert_eq!(task.begun.load(Ordering::Relaxed), taken + 2);
    }
    drop(prefetcher);
    assert_eq!(Arc::strong_count(&task), 1, "a prefetcher that is dropped in the middle leaves no thread");
}

#[test]
fn parts_are_as_many_as_workers_within_limits() {
    assert_eq!(part_samples(256, 64, (1, 8)), 4);
    assert_eq!(part_samples(256, 4, (1, 8)), 8);
    assert_eq!(part_samples(3, 8, (1, 8)), 1);
    assert_eq!(part_samples(0, 0, (1, 8)), 1);
}
