//! What a training needs of its input pipeline, by what the loaders of its ranks have recorded.
//!
//! Pure arithmetic over a history. Nothing is said where the loader of some rank is another's, and has recorded
//! nothing.

use crate::history::{History, InputWork};
use crate::replay::{Change, predicted_ns};

/// Reduced images are larger than samples by this on each side, so that crops have something to choose from: 256
/// pixels for 224, as is usual for ImageNet.
const SLACK: f64 = 256.0 / 224.0;

/// How much longer the other side of an image usually is: 4 to 3.
const LONGER: f64 = 4.0 / 3.0;

/// A worker is not added for less than this share of one: figures are not that exact.
const ALREADY: f64 = 0.02;

/// What a training needs of its loader, from what the loader has recorded. All figures are of one rank, the means over
/// ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct InputNeeds {
    /// How many ranks there are.
    pub ranks: usize,
    /// Threads of the loader now; none: the program's own makes batches.
    pub workers: usize,
    /// Samples a second that these make when they never wait.
    pub fed_per_s: f64,
    /// Samples a second that the training would take if it never waited for input.
    pub taken_per_s: f64,
    /// Workers that make as many.
    pub needed: usize,
    /// Cores of the host for each of its ranks, if known.
    pub cores: Option<f64>,
    /// The share of a worker's time by stage: reading, decoding, changing.
    pub percent_by_stage: [f64; 3],
    /// What converting the images once would change, if it is worth it.
    pub converted: Option<ConvertedInput>,
}

/// What is expected of images that are reduced once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvertedInput {
    /// Pixels of their shorter side.
    pub shorter_side: usize,
    /// Workers that then suffice.
    pub needed: usize,
}

impl InputNeeds {
    /// What the training needs of its loader, if all ranks have one that says what its stages take.
    ///
    /// A worker makes a sample in *w*, all stages together, so *n* of them make *n / w* a second, as long as each has
    /// a core. The training takes what it has taken in the time that would be left without waits for input, which a
    /// replay tells. Images that are stored with more pixels than samples have are read and decoded for nothing:
    /// reduced once, both take as much less as they have fewer pixels. Changes stay.
    pub fn of(history: &History) -> Option<InputNeeds> {
        let works: Option<Vec<InputWork>> = history.recorded().map(|rank| history.ranks[rank].input.work()).collect();
        let works = works.filter(|works| !works.is_empty())?;
        let ranks = works.len();
        let mean = |of: &dyn Fn(&InputWork) -> f64| works.iter().map(of).sum::<f64>() / ranks as f64;
        let (samples, sample_ns) = (mean(&|work| work.samples as f64), mean(&InputWork::sample_ns));
        let stage_ns = [
            mean(&|work| work.read_ns as f64 / work.samples as f64),
            mean(&|work| work.decode_ns as f64 / work.samples as f64),
            mean(&|work| work.change_ns as f64 / work.samples as f64),
        ];
        let left_ns = training_ns(history)? - saved_ns(history);
        if sample_ns <= 0.0 || left_ns <= 0.0 {
            return None;
        }
        let workers = works.iter().map(|work| work.workers).max().unwrap_or(0);
        let taken_per_s = samples * 1e9 / left_ns;
        let enough = |ns: f64| ((taken_per_s * ns / 1e9) - ALREADY).ceil().max(1.0) as usize;
        let side = SLACK * (mean(&|work| work.made_pixels as f64) / samples).sqrt();
        let stored = mean(&|work| work.stored_pixels as f64) / samples;
        let share = side * side * LONGER / stored.max(1.0);
        let reduced_ns = (stage_ns[0] + stage_ns[1]) * share + stage_ns[2];
        let worth = stored > 0.0 && side >= 1.0 && enough(reduced_ns) < enough(sample_ns);
        Some(InputNeeds {
            ranks,
            workers,
            fed_per_s: workers.max(1) as f64 * 1e9 / sample_ns,
            taken_per_s,
            needed: enough(sample_ns),
            cores: cores_each(history),
            percent_by_stage: stage_ns.map(|ns| 100.0 * ns / sample_ns),
            converted: worth.then(|| ConvertedInput { shorter_side: side.ceil() as usize, needed: enough(reduced_ns) }),
        })
    }
}

/// The time of all iterations of a rank, the mean over ranks, or all time where no iterations are marked.
fn training_ns(history: &History) -> Option<f64> {
    let ranks = history.recorded_size().max(1) as f64;
    let iterations = history.recorded().flat_map(|rank| &history.ranks[rank].iterations);
    let ns: u64 = iterations.map(|iteration| iteration.to_ns - iteration.from_ns).sum();
    let ns = if ns == 0 { history.end_ns as f64 } else { ns as f64 / ranks };
    (ns > 0.0).then_some(ns)
}

/// What all time would be shorter by without waits for input.
fn saved_ns(history: &History) -> f64 {
    history.end_ns as f64 - predicted_ns(history, &[Change::NoInputWait]) as f64
}

/// Cores of a host for each of its ranks, where they are fewest.
fn cores_each(history: &History) -> Option<f64> {
    let each = |rank: usize| {
        let own = &history.ranks[rank];
        // Ranks that are pinned have cores of their own; others share what each of them sees.
        let sharing = history.recorded().filter(|&other| {
            let other = &history.ranks[other];
            other.host == own.host && other.cpus == own.cpus
        });
        Some(own.cores? as f64 / sharing.count().max(1) as f64)
    };
    history.recorded().map(each).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
}
