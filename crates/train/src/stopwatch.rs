//! How long each phase of training takes, on this rank.
//!
//! A phase is marked twice at the same place: in the recorder, for the timeline and the report, and here, for the
//! summary. Phases follow each other on the thread of the training loop and never overlap. What is behind them
//! (allreduces during backward) shows in the recorder alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole::{Phase, Recorder};
use serde::Serialize;

/// Seconds in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Waiting for batches.
    pub input_s: f64,
    /// From images to the loss.
    pub forward_s: f64,
    /// From the loss to gradients.
    pub backward_s: f64,
    /// Waiting for the averages of all ranks, and changing weights.
    pub optimizer_s: f64,
    /// Looking at test samples.
    pub evaluation_s: f64,
    /// Writing or reading checkpoints.
    pub checkpoint_s: f64,
}

impl Phases {
    /// As numbers in a fixed order, to be averaged over ranks.
    pub fn to_array(self) -> [f64; 6] {
        let Phases { input_s, forward_s, backward_s, optimizer_s, evaluation_s, checkpoint_s } = self;
        [input_s, forward_s, backward_s, optimizer_s, evaluation_s, checkpoint_s]
    }

    /// Back from there.
    pub fn from_array(seconds: [f64; 6]) -> Phases {
        let [input_s, forward_s, backward_s, optimizer_s, evaluation_s, checkpoint_s] = seconds;
        Phases { input_s, forward_s, backward_s, optimizer_s, evaluation_s, checkpoint_s }
    }

    fn of(&mut self, phase: Phase) -> &mut f64 {
        match phase {
            Phase::InputWait => &mut self.input_s,
            Phase::Forward => &mut self.forward_s,
            Phase::Backward => &mut self.backward_s,
            Phase::Evaluation => &mut self.evaluation_s,
            Phase::Checkpoint => &mut self.checkpoint_s,
            _ => &mut self.optimizer_s,
        }
    }
}

/// Measures phases and steps.
#[derive(Debug)]
pub struct Stopwatch {
    recorder: Arc<Recorder>,
    /// All phases so far.
    pub phases: Phases,
    /// Every step so far.
    steps: Vec<Step>,
    /// So many steps at the beginning do not count: they pay for what is only made once.
    uncounted: usize,
}

/// One step, as this rank has seen it.
#[derive(Clone, Copy, Debug)]
struct Step {
    took: Duration,
    /// Samples of this rank.
    own: usize,
    /// Samples of all ranks.
    all: usize,
}

impl Stopwatch {
    /// Starts at zero; `uncounted` steps are left out of throughput, unless there are no others.
    pub fn new(recorder: &Arc<Recorder>, uncounted: usize) -> Stopwatch {
        Stopwatch { recorder: Arc::clone(recorder), phases: Phases::default(), steps: Vec::new(), uncounted }
    }

    /// From now on marks phases there: the ranks are others than before.
    pub fn record_with(&mut self, recorder: &Arc<Recorder>) {
        self.recorder = Arc::clone(recorder);
    }

    /// Does something, and measures it as a phase.
    pub fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let guard = self.recorder.phase(phase);
        let began = Instant::now();
        let made = work();
        *self.phases.of(phase) += began.elapsed().as_secs_f64();
        drop(guard);
        made
    }

    /// A step is over, with so many samples of this rank's `own` and of `all` ranks.
    pub fn step(&mut self, took: Duration, own: usize, all: usize) {
        self.steps.push(Step { took, own, all });
    }

    fn counted(&self) -> &[Step] {
        if self.steps.len() > self.uncounted { &self.steps[self.uncounted..] } else { &self.steps }
    }

    /// Samples of all ranks in the steps that count, and how long these took here, in seconds.
    pub fn throughput(&self) -> (f64, f64) {
        let steps = self.counted().iter();
        steps
            .fold((0.0, 0.0), |(samples, seconds), step| (samples + step.all as f64, seconds + step.took.as_secs_f64()))
    }

    /// Samples in a second on this rank: the median over the steps with a full batch, and the quarters below and above
    /// it.
    pub fn samples_per_s(&self) -> Spread {
        let full = self.steps.iter().map(|step| step.own).max().unwrap_or(0);
        let counted = self.counted().iter().filter(|step| step.own == full && full > 0);
        let mut rates: Vec<f64> =
            counted.map(|step| step.own as f64 / step.took.as_secs_f64().max(f64::MIN_POSITIVE)).collect();
        rates.sort_by(f64::total_cmp);
        Spread::of(&rates)
    }
}

/// A median and the quarters around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// A quarter of all values is below.
    pub lower: f64,
    /// A half is.
    pub median: f64,
    /// Three quarters are.
    pub upper: f64,
}

impl Spread {
    /// Of values in order; zero where there are none.
    pub fn of(sorted: &[f64]) -> Spread {
        let at = |part: f64| -> f64 {
            let place = part * sorted.len().saturating_sub(1) as f64;
            let (below, above) = (place.floor() as usize, place.ceil() as usize);
            match (sorted.get(below), sorted.get(above)) {
                (Some(low), Some(high)) => low + (high - low) * place.fract(),
                _ => 0.0,
            }
        };
        Spread { lower: at(0.25), median: at(0.5), upper: at(0.75) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_added_up_and_survive_being_averaged() {
        let mut watch = Stopwatch::new(&Recorder::off(), 1);
        for phase in [Phase::InputWait, Phase::Forward, Phase::Backward, Phase::OptimizerStep, Phase::Evaluation] {
            watch.time(phase, || farandole_testing::lapse("a phase", Duration::from_millis(2)));
        }
        let seconds = watch.phases.to_array();
        assert!(seconds[..5].iter().all(|seconds| *seconds >= 0.002) && seconds[5] == 0.0, "{seconds:?}");
        assert_eq!(Phases::from_array(seconds), watch.phases);
    }

    #[test]
    fn throughput_is_that_of_full_steps_after_the_first() {
        let mut watch = Stopwatch::new(&Recorder::off(), 1);
        for (ms, samples) in [(900, 8), (100, 8), (200, 8), (100, 8), (400, 8), (1, 3)] {
            watch.step(Duration::from_millis(ms), samples, 2 * samples);
        }
        assert_eq!(watch.throughput(), (70.0, 0.801));
        let spread = watch.samples_per_s();
        assert!((spread.median - 60.0).abs() < 1e-9 && spread.lower < 40.0 && spread.upper > 79.0, "{spread:?}");
        assert_eq!(Stopwatch::new(&Recorder::off(), 1).samples_per_s(), Spread::default());
        let mut short = Stopwatch::new(&Recorder::off(), 9);
        short.step(Duration::from_millis(500), 4, 4);
        assert_eq!(short.throughput(), (4.0, 0.5));
    }
}
