//! The script's own code: what the program does in its training loop outside of every phase, and where its thread was
//! then.
//!
//! The *training loop* of a rank goes from the beginning of its first training phase (forward, backward, optimizer
//! step) to the end of its last one. What lies in the loop and in no phase is the script's own code: logging, metrics,
//! anything between a step and the next batch. What lies outside of the loop is set-up and wind-down, which a run pays
//! once.
//!
//! **Invariant:** own code is reported only where the forward pass is known to be marked. A front end that does not see
//! where forward begins (a script that makes its batches itself, a program that marks backward alone) leaves the
//! forward pass outside of every phase, and calling that own code would be wrong. So there must be forward and backward
//! phases, and forward ones must not be far shorter than backward ones; or phases that are whole training steps. All
//! ranks run the same script, so this is decided once for all of them.
//!
//! Samples ([`Event::Sampled`]) say where the thread was. They are statistics: how long own code took is known from the
//! phases.

use super::lane;
use super::{Activity, Phase, PhaseKind, StackSample, Stretch};
use farandole_trace::Trace;
use farandole_trace::event::{self, Event, ThreadId};

/// A forward pass takes about half as long as its backward pass. If it takes less than this part of it, it is not what
/// is marked as forward. (Far less, because the gradients of a tiny network are handed over during backward, which
/// takes longer than the network.)
const SHORTEST_FORWARD: u64 = 20;

/// The training loop of each rank, if own code is known: see the module's text.
pub(super) fn training_loops(ranks: &[Vec<Phase>]) -> Vec<Option<(u64, u64)>> {
    let forward_ns = usual_ns(ranks, event::Phase::Forward);
    let backward_ns = usual_ns(ranks, event::Phase::Backward);
    let is_marked = usual_ns(ranks, event::Phase::TrainingStep).is_some()
        || forward_ns.zip(backward_ns).is_some_and(|(forward, backward)| forward * SHORTEST_FORWARD >= backward);
    ranks.iter().map(|phases| is_marked.then(|| training_loop(phases)).flatten()).collect()
}

fn training_loop(phases: &[Phase]) -> Option<(u64, u64)> {
    let training = || phases.iter().filter(|phase| phase.kind == PhaseKind::Training);
    let from_ns = training().map(|phase| phase.from_ns).min()?;
    let to_ns = training().map(|phase| phase.to_ns).max()?;
    Some((from_ns, to_ns))
}

/// How long phases of a kind are when nothing interrupts them: three quarters of all ranks' are longer.
fn usual_ns(ranks: &[Vec<Phase>], kind: event::Phase) -> Option<u64> {
    let phases = ranks.iter().flatten().filter(|phase| phase.name == kind.word());
    let mut lengths: Vec<u64> = phases.map(|phase| phase.to_ns - phase.from_ns).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 4).copied()
}

/// Where the program's thread was seen in own code, in order. What was seen before the training loop is no part of it.
pub(super) fn samples_of(
    trace: &Trace,
    thread: ThreadId,
    lane: &[Stretch],
    clock: &dyn Fn(u64) -> u64,
) -> Vec<StackSample> {
    let mut samples = samples(trace, thread, clock);
    samples.retain(|sample| {
        let here = lane.partition_point(|stretch| stretch.to_ns < sample.at_ns);
        lane.get(here).is_some_and(|stretch| stretch.activity == Activity::Own)
    });
    samples
}

fn samples(trace: &Trace, thread: ThreadId, clock: &dyn Fn(u64) -> u64) -> Vec<StackSample> {
    let of_thread = trace.records.iter().filter(|record| record.thread == thread);
    let sample = |record: &event::Record| match record.event {
        Event::Sampled { name, ns } => {
            Some(StackSample { at_ns: clock(record.time_ns), ns, place: trace.text(name).to_owned() })
        }
        _ => None,
    };
    of_thread.filter_map(sample).collect()
}

/// A time of own code in one trace, for timelines.
pub(crate) struct OwnCode {
    /// The program's thread.
    pub(crate) thread: ThreadId,
    /// Beginning, on the trace's clock.
    pub(crate) from_ns: u64,
    /// End.
    pub(crate) to_ns: u64,
    /// Where most samples of it were, if any were taken.
    pub(crate) place: Option<String>,
}

/// Every time of own code in each of the traces of a job, in order.
pub(crate) fn own_code(traces: &[Trace]) -> Vec<Vec<OwnCode>> {
    let phases_of = |trace: &Trace| {
        let (thread, there) = (lane::program_thread(trace), trace.span_ns());
        thread.zip(there).map_or(Vec::new(), |(thread, there)| lane::phases(trace, thread, there, &|time_ns| time_ns))
    };
    let phases: Vec<Vec<Phase>> = traces.iter().map(phases_of).collect();
    let loops = training_loops(&phases);
    let each = traces.iter().zip(&phases).zip(loops);
    each.map(|((trace, phases), training)| training.map_or(Vec::new(), |span| between(trace, phases, span))).collect()
}

/// What lies between these phases of a trace, within its training loop.
fn between(trace: &Trace, phases: &[Phase], (mut at_ns, until_ns): (u64, u64)) -> Vec<OwnCode> {
    let Some(thread) = lane::program_thread(trace) else { return Vec::new() };
    let samples = samples(trace, thread, &|time_ns| time_ns);
    let mut found = Vec::new();
    for phase in phases.iter().filter(|phase| phase.from_ns < until_ns) {
        if phase.from_ns > at_ns {
            let (from_ns, to_ns) = (at_ns, phase.from_ns);
            let first = samples.partition_point(|sample| sample.at_ns < from_ns);
            let inside = samples[first..].iter().take_while(|sample| sample.at_ns <= to_ns);
            let place = HotSpots::of(inside).top().map(|(place, _)| place.to_owned());
            found.push(OwnCode { thread, from_ns, to_ns, place });
        }
        at_ns = at_ns.max(phase.to_ns);
    }
    found
}

/// Places of the program by how long samples stand for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotSpots {
    /// Place and nanoseconds, longest first.
    pub by_ns: Vec<(String, u64)>,
    /// How many samples there are.
    pub samples: usize,
}

impl HotSpots {
    /// Adds samples up.
    pub fn of<'a>(samples: impl Iterator<Item = &'a StackSample>) -> HotSpots {
        let mut sums = std::collections::BTreeMap::<&str, u64>::new();
        let mut count = 0;
        for sample in samples {
            *sums.entry(&sample.place).or_default() += sample.ns;
            count += 1;
        }
        let mut by_ns: Vec<(String, u64)> = sums.into_iter().map(|(place, ns)| (place.to_owned(), ns)).collect();
        by_ns.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        HotSpots { by_ns, samples: count }
    }

    /// The place that most time was spent at, with its share in percent.
    pub fn top(&self) -> Option<(&str, f64)> {
        self.shares().next()
    }

    /// Every place with its share of the samples in percent, largest first.
    pub fn shares(&self) -> impl Iterator<Item = (&str, f64)> {
        let whole_ns: u64 = self.by_ns.iter().map(|(_, ns)| ns).sum();
        self.by_ns.iter().map(move |(place, ns)| (place.as_str(), 100.0 * *ns as f64 / whole_ns.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, from_ns: u64, to_ns: u64) -> Phase {
        Phase { name: name.to_owned(), kind: PhaseKind::Training, from_ns, to_ns }
    }

    #[test]
    fn own_code_is_told_only_where_the_forward_pass_is_marked() {
        let marked = [phase("forward", 10, 20), phase("backward", 20, 40), phase("optimizer step", 45, 50)];
        let told = |ranks: &[&[Phase]]| training_loops(&ranks.iter().map(|phases| phases.to_vec()).collect::<Vec<_>>());
        assert_eq!(told(&[&marked]), [Some((10, 50))]);
        assert_eq!(told(&[&marked[1..]]), [None], "nobody has marked forward");
        assert_eq!(told(&[&marked[..1]]), [None], "nobody has marked backward");
        // What is marked as forward is the moment between zero_grad() and backward().
        let elsewhere = [phase("forward", 199, 200), phase("backward", 200, 240)];
        assert_eq!(told(&[&elsewhere]), [None]);
        let whole = [phase("training step", 10, 40), phase("training step", 45, 70)];
        assert_eq!(told(&[&whole]), [Some((10, 70))], "a whole step has its forward pass inside");
        // A rank whose backward passes were interrupted again and again runs the same script as the other one.
        let interrupted = [phase("forward", 10, 11), phase("backward", 20, 900), phase("optimizer step", 900, 950)];
        assert_eq!(told(&[&marked, &interrupted]), [Some((10, 50)), Some((10, 950))]);
    }

    #[test]
    fn places_are_added_up_by_the_time_that_samples_stand_for() {
        let sample = |place: &str, ns| StackSample { at_ns: 0, ns, place: place.to_owned() };
        let samples = [sample("a", 10), sample("b", 25), sample("a", 5), sample("c", 10)];
        let hot_spots = HotSpots::of(samples.iter());
        assert_eq!(hot_spots.top(), Some(("b", 50.0)));
        let shares: Vec<(&str, f64)> = hot_spots.shares().collect();
        assert_eq!((shares, hot_spots.samples), (vec![("b", 50.0), ("a", 30.0), ("c", 20.0)], 4));
        assert_eq!(HotSpots::default().top(), None);
    }
}
