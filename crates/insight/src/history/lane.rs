//! Builds the lane of a rank from its records: what its program's thread did at every moment.
//!
//! The program's thread is the one that marks iterations; without any, the one that marks phases and waits for results;
//! where several do, the one that does so most. Its phases say whether it works, waits for input or writes a
//! checkpoint, the innermost one first. What it was blocked in lies over that. What is in no phase is the script's own
//! code where that is known (`own.rs`), and work otherwise.

use std::collections::BTreeMap;

use super::{Activity, Iteration, Phase, PhaseKind, Stretch};
use farandole_trace::Trace;
use farandole_trace::event::{self, Event, GroupNumber, ThreadId};

/// A time in which the program's thread was blocked, and in what.
pub(super) type Blocked = (u64, u64, Option<usize>);

/// The thread whose activity is the rank's lane.
pub(super) fn program_thread(trace: &Trace) -> Option<ThreadId> {
    let mut marks: BTreeMap<ThreadId, (u64, u64)> = BTreeMap::new();
    for record in &trace.records {
        let counts = match record.event {
            Event::Iteration { .. } | Event::Epoch { .. } | Event::Waited { .. } => true,
            Event::PhaseBegin { phase, .. } => phase != event::Phase::InputWork,
            Event::Started { group, .. } => group == GroupNumber::DIRECT,
            _ => false,
        };
        let of_thread = marks.entry(record.thread).or_default();
        of_thread.0 += u64::from(matches!(record.event, Event::Iteration { .. }));
        of_thread.1 += u64::from(counts);
    }
    marks.into_iter().max_by_key(|&(thread, count)| (count, std::cmp::Reverse(thread))).map(|(thread, _)| thread)
}

/// The phases of the program's thread between two moments, by their beginning. One whose beginning or end was not
/// recorded begins or ends with the lane.
pub(super) fn phases(
    trace: &Trace,
    thread: ThreadId,
    (from_ns, to_ns): (u64, u64),
    clock: &dyn Fn(u64) -> u64,
) -> Vec<Phase> {
    let mut open: Vec<(event::Phase, event::NameId, u64)> = Vec::new();
    let mut phases = Vec::new();
    let named = |phase: event::Phase, name: event::NameId| {
        let text = if phase == event::Phase::User { trace.text(name) } else { phase.word() };
        (text.to_owned(), kind(phase))
    };
    let mut close = |(phase, name, begin_ns): (event::Phase, event::NameId, u64), end_ns: u64| {
        let (name, kind) = named(phase, name);
        phases.push(Phase { name, kind, from_ns: begin_ns, to_ns: end_ns });
    };
    for record in trace.records.iter().filter(|record| record.thread == thread) {
        let at_ns = clock(record.time_ns).clamp(from_ns, to_ns);
        match record.event {
            Event::PhaseBegin { phase, name } => open.push((phase, name, at_ns)),
            Event::PhaseEnd { phase, name } => {
                let same = open.iter().rposition(|&(begun, of, _)| (begun, of) == (phase, name));
                match same {
                    Some(depth) => open.drain(depth..).for_each(|begun| close(begun, at_ns)),
                    None => close((phase, name, from_ns), at_ns),
                }
            }
            _ => {}
        }
    }
    open.drain(..).for_each(|begun| close(begun, to_ns));
    phases.sort_by_key(|phase| (phase.from_ns, std::cmp::Reverse(phase.to_ns)));
    phases
}

fn kind(phase: event::Phase) -> PhaseKind {
    match phase {
        event::Phase::Forward
        | event::Phase::Backward
        | event::Phase::OptimizerStep
        | event::Phase::TrainingStep
        | event::Phase::DeviceWork => PhaseKind::Training,
        event::Phase::InputWait => PhaseKind::Input,
        event::Phase::Evaluation => PhaseKind::Evaluation,
        event::Phase::Checkpoint => PhaseKind::Checkpoint,
        event::Phase::DeviceCopy => PhaseKind::Copy,
        event::Phase::User | event::Phase::InputWork => PhaseKind::Named,
    }
}

/// The iterations of the program's thread. One ends where the next begins, where its epoch ends, or where evaluation
/// begins.
pub(super) fn iterations(trace: &Trace, thread: ThreadId, to_ns: u64, clock: &dyn Fn(u64) -> u64) -> Vec<Iteration> {
    let mut iterations: Vec<Iteration> = Vec::new();
    let (mut epoch, mut open) = (0, None::<Iteration>);
    for record in trace.records.iter().filter(|record| record.thread == thread) {
        let at_ns = clock(record.time_ns).min(to_ns);
        let ends = match record.event {
            Event::Iteration { .. } | Event::Epoch { .. } => true,
            Event::PhaseBegin { phase, .. } => phase == event::Phase::Evaluation,
            _ => false,
        };
        if ends {
            iterations.extend(open.take().map(|iteration| Iteration { to_ns: at_ns, ..iteration }));
        }
        match record.event {
            Event::Epoch { number } => epoch = number,
            Event::Iteration { number } => open = Some(Iteration { number, epoch, from_ns: at_ns, to_ns: at_ns }),
            _ => {}
        }
    }
    iterations.extend(open.map(|iteration| Iteration { to_ns, ..iteration }));
    iterations
}

/// Lays phases and what a thread was blocked in over each other, from zero to `end_ns`; the rank was there between the
/// two given moments. In its training loop, if there is one, what lies in no phase is own code.
pub(super) fn stretches(
    phases: &[Phase],
    mut blocked: Vec<Blocked>,
    training_loop: Option<(u64, u64)>,
    there: (u64, u64),
    end_ns: u64,
) -> Vec<Stretch> {
    blocked.sort_by_key(|&(from_ns, to_ns, _)| (from_ns, to_ns));
    let mut lane = Lane { training_loop, ..Lane::default() };
    lane.until(there.0, Activity::NotBegun);
    for (from_ns, to_ns, operation) in blocked {
        lane.work_until(from_ns, phases);
        lane.wait_until(to_ns, Activity::Blocked(operation));
    }
    lane.work_until(there.1, phases);
    lane.until(end_ns, Activity::Ended);
    lane.stretches
}

#[derive(Default)]
struct Lane {
    stretches: Vec<Stretch>,
    at_ns: u64,
    /// Phases before this one are over.
    past: usize,
    /// Where what lies in no phase is own code.
    training_loop: Option<(u64, u64)>,
}

impl Lane {
    /// Does one thing until a moment, if that is still to come.
    fn until(&mut self, to_ns: u64, activity: Activity) {
        if to_ns > self.at_ns {
            self.wait_until(to_ns, activity);
        }
    }

    /// The same, but something that takes no time is kept.
    fn wait_until(&mut self, to_ns: u64, activity: Activity) {
        let (from_ns, to_ns) = (self.at_ns, to_ns.max(self.at_ns));
        self.at_ns = to_ns;
        match self.stretches.last_mut() {
            Some(last) if last.activity == activity => last.to_ns = to_ns,
            _ => self.stretches.push(Stretch { from_ns, to_ns, activity }),
        }
    }

    /// Does what the phases say.
    fn work_until(&mut self, to_ns: u64, phases: &[Phase]) {
        while self.at_ns < to_ns {
            while phases.get(self.past).is_some_and(|phase| phase.to_ns <= self.at_ns) {
                self.past += 1;
            }
            // Phases nest: of those that contain this moment the last to begin is the innermost.
            let ahead = &phases[self.past..];
            let begun = ahead.partition_point(|phase| phase.from_ns <= self.at_ns);
            let innermost = ahead[..begun].iter().rfind(|phase| phase.to_ns > self.at_ns);
            let next_ns = ahead.get(begun).map_or(to_ns, |phase| phase.from_ns);
            let end_ns = innermost.map_or(next_ns, |phase| phase.to_ns.min(next_ns)).min(to_ns);
            let in_loop = self.training_loop.is_some_and(|(from_ns, to_ns)| (from_ns..to_ns).contains(&self.at_ns));
            let activity = match innermost.map(|phase| phase.kind) {
                None if in_loop => Activity::Own,
                Some(PhaseKind::Input) => Activity::Input,
                Some(PhaseKind::Checkpoint) => Activity::Checkpoint,
                Some(PhaseKind::Copy) => Activity::Copy,
                _ => Activity::Compute,
            };
            self.until(end_ns.max(self.at_ns + 1), activity);
        }
    }
}
