//! What a rank does now and did last, from its records: [`RecentActivity`].
//!
//! The stall report shows it for a rank that is missing. A function from a trace and a moment to values; the trace may
//! begin anywhere.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Event, GroupNumber, NameId, OperationNumber, Phase, ThreadId};
use crate::trace::Trace;

/// The setting of a trace in which the last report of a stall stands.
pub const STALL_REPORT: &str = "stall_report";

/// See the module's text. Times are how long ago something was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentActivity {
    /// The innermost phase of the program, and since when it is in it.
    pub phase: Option<(Arc<str>, Duration)>,
    /// The last epoch that began.
    pub epoch: Option<u64>,
    /// The last iteration that began.
    pub iteration: Option<(u64, Duration)>,
    /// The request that was done last.
    pub finished: Option<(Arc<str>, Duration)>,
    /// The request that was made last.
    pub submitted: Option<(Arc<str>, Duration)>,
    /// The oldest request that is not done: this rank waits for its result, or for other ranks to ask for it.
    pub pending: Option<(Arc<str>, Duration)>,
    /// Number of requests that are not done.
    pub pending_count: usize,
    /// The direct call that is under way.
    pub direct: Option<RunningCall>,
    /// The direct call on record that was done last. Of short ones, only some are recorded.
    pub direct_done: Option<(&'static str, Duration)>,
}

/// A direct call that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningCall {
    /// Which collective.
    pub word: &'static str,
    /// Its number.
    pub operation: u64,
    /// Since when.
    pub ago: Duration,
    /// The rank that it waits for, if one can be named.
    pub peer: Option<u32>,
}

impl RecentActivity {
    /// What a trace says at this moment.
    pub fn of(trace: &Trace, now_ns: u64) -> RecentActivity {
        let mut state = State::default();
        for record in &trace.records {
            state.read(record.time_ns, record.thread, record.event);
        }
        let ago = |time_ns: u64| Duration::from_nanos(now_ns.saturating_sub(time_ns));
        let named = |(name, time_ns): (NameId, u64)| (Arc::from(trace.text(name)), ago(time_ns));
        let phase = state.phase().map(|open| {
            let text = if open.phase == Phase::User { trace.text(open.name) } else { open.phase.word() };
            (Arc::from(text), ago(open.since_ns))
        });
        RecentActivity {
            phase,
            epoch: state.epoch,
            iteration: state.iteration.map(|(number, time_ns)| (number, ago(time_ns))),
            finished: state.finished.map(named),
            submitted: state.submitted.map(named),
            pending: state
                .pending
                .iter()
                .min_by_key(|(_, since_ns)| **since_ns)
                .map(|((_, name), ns)| named((*name, *ns))),
            pending_count: state.pending.len(),
            direct: state.direct.map(|call| RunningCall {
                word: call.word,
                operation: call.operation.0,
                ago: ago(call.since_ns),
                peer: call.peer,
            }),
            direct_done: state.direct_done.map(|(word, time_ns)| (word, ago(time_ns))),
        }
    }
}

/// What has been read so far, in the trace's own terms.
#[derive(Default)]
struct State {
    /// Open phases of each thread, the innermost last.
    phases: BTreeMap<ThreadId, Vec<OpenPhase>>,
    /// The thread that has marked an iteration or an epoch last: the program's own.
    program: Option<ThreadId>,
    epoch: Option<u64>,
    iteration: Option<(u64, u64)>,
    finished: Option<(NameId, u64)>,
    submitted: Option<(NameId, u64)>,
    pending: HashMap<(GroupNumber, NameId), u64>,
    /// Whether requests end because their group has failed: they are what the rank waited for.
    is_aborted: bool,
    direct: Option<OpenCall>,
    direct_done: Option<(&'static str, u64)>,
}

struct OpenPhase {
    phase: Phase,
    name: NameId,
    since_ns: u64,
}

struct OpenCall {
    operation: OperationNumber,
    word: &'static str,
    since_ns: u64,
    peer: Option<u32>,
}

impl State {
    fn read(&mut self, time_ns: u64, thread: ThreadId, event: Event) {
        match event {
            Event::PhaseBegin { phase, name } => {
                self.phases.entry(thread).or_default().push(OpenPhase { phase, name, since_ns: time_ns });
            }
            Event::PhaseEnd { phase, name } => {
                let open = self.phases.entry(thread).or_default();
                // Ends whose beginnings are not in the trace end nothing; beginnings whose ends were lost end with what
                // is around them.
                if let Some(at) = open.iter().rposition(|open| open.phase == phase && open.name == name) {
                    open.truncate(at);
                }
            }
            Event::Iteration { number } => (self.iteration, self.program) = (Some((number, time_ns)), Some(thread)),
            Event::Epoch { number } => (self.epoch, self.program) = (Some(number), Some(thread)),
            Event::Done { name, group, .. } => {
                self.finished = Some((name, time_ns));
                self.pending.remove(&(group, name));
            }
            Event::Submitted { name, group, .. } => {
                self.submitted = Some((name, time_ns));
                self.pending.insert((group, name), time_ns);
            }
            Event::Failed { name, group } if !self.is_aborted => drop(self.pending.remove(&(group, name))),
            Event::Started { group: GroupNumber::DIRECT, operation, collective, .. } => {
                self.direct = Some(OpenCall { operation, word: collective.word(), since_ns: time_ns, peer: None });
            }
            Event::Waiting { group: GroupNumber::DIRECT, operation, peer } => {
                if let Some(call) = self.direct.as_mut().filter(|call| call.operation == operation) {
                    call.peer = peer;
                }
            }
            Event::Resumed { group: GroupNumber::DIRECT, .. } => {
                if let Some(call) = &mut self.direct {
                    call.peer = None;
                }
            }
            Event::Finished { group: GroupNumber::DIRECT, .. } => {
                self.direct_done = self.direct.take().map(|call| (call.word, time_ns)).or(self.direct_done);
            }
            Event::Aborted { .. } => (self.direct, self.is_aborted) = (None, true),
            _ => {}
        }
    }

    /// The innermost phase of the program's own thread, or else the one that began last.
    fn phase(&self) -> Option<&OpenPhase> {
        let innermost = |thread: &ThreadId| self.phases.get(thread)?.last();
        let own = self.program.as_ref().and_then(innermost);
        own.or_else(|| self.phases.values().filter_map(|open| open.last()).max_by_key(|open| open.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Collective, Dtype, Record};

    fn trace(events: impl IntoIterator<Item = (u64, u16, Event)>) -> Trace {
        let mut trace = Trace::default();
        for name in ["w", "v", "augment"] {
            trace.names.intern(name);
        }
        let records = events.into_iter().map(|(ms, thread, event)| {
            let (time_ns, thread) = (ms * 1_000_000, ThreadId(thread));
            Record { time_ns, thread, event }
        });
        trace.records = records.collect();
        trace
    }

    const W: NameId = NameId(1);
    const V: NameId = NameId(2);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn the_last_of_everything_counts() {
        let (group, operation) = (GroupNumber::WORLD, OperationNumber(1));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 4);
        let trace = trace([
            (1, 0, Event::Epoch { number: 2 }),
            (2, 0, Event::Iteration { number: 5 }),
            (3, 0, Event::Submitted { name: W, group, collective, dtype, bytes }),
            (4, 9, Event::Done { name: W, group, operation }),
            (5, 0, Event::Submitted { name: V, group, collective, dtype, bytes }),
        ]);
        let recent = RecentActivity::of(&trace, 10_000_000);
        assert_eq!((recent.epoch, recent.iteration), (Some(2), Some((5, ms(8)))));
        assert_eq!(recent.finished, Some(("w".into(), ms(6))));
        assert_eq!(recent.submitted, Some(("v".into(), ms(5))));
        assert_eq!((recent.phase, recent.direct), (None, None));
        assert_eq!((recent.pending, recent.pending_count), (Some(("v".into(), ms(5))), 1), "w is done");
    }

    #[test]
    fn the_innermost_open_phase_of_the_programs_thread_counts() {
        let begin = |phase, name| Event::PhaseBegin { phase, name };
        let none = NameId::NONE;
        let trace = trace([
            (1, 0, Event::PhaseEnd { phase: Phase::Backward, name: none }),
            (2, 0, Event::Iteration { number: 5 }),
            (3, 0, begin(Phase::Evaluation, none)),
            (4, 0, begin(Phase::Forward, none)),
            (5, 0, Event::PhaseEnd { phase: Phase::Forward, name: none }),
            (6, 3, begin(Phase::User, NameId(3))),
        ]);
        assert_eq!(RecentActivity::of(&trace, 10_000_000).phase, Some(("evaluation".into(), ms(7))));
        let mut ended = trace.clone();
        let event = Event::PhaseEnd { phase: Phase::Evaluation, name: none };
        ended.records.push(Record { time_ns: 8_000_000, thread: ThreadId(0), event });
        assert_eq!(
            RecentActivity::of(&ended, 10_000_000).phase,
            Some(("augment".into(), ms(4))),
            "another thread's, at least"
        );
    }

    #[test]
    fn a_direct_call_counts_until_it_is_over() {
        let (group, operation) = (GroupNumber::DIRECT, OperationNumber(7));
        let (collective, dtype) = (Collective::Barrier, Dtype::U8);
        let started = Event::Started { group, operation, collective, dtype, requests: 0, bytes: 0 };
        let waiting = Event::Waiting { group, operation, peer: Some(3) };
        let under_way = trace([(1, 0, started), (2, 0, waiting)]);
        let direct = RunningCall { word: "barrier", operation: 7, ago: ms(3), peer: Some(3) };
        assert_eq!(RecentActivity::of(&under_way, 4_000_000).direct, Some(direct));
        let over = trace([(1, 0, started), (2, 0, waiting), (3, 0, Event::Finished { group, operation })]);
        let recent = RecentActivity::of(&over, 4_000_000);
        assert_eq!((recent.direct, recent.direct_done), (None, Some(("barrier", ms(1)))));
    }
}
