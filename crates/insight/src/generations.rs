//! The generations of an elastic job, and what it cost to come from one to the next.
//!
//! Each generation has ranks and traces of its own, and is analysed as a job of a fixed size would be. What lies
//! between two of them is a *recovery*, and is no part of either: it is neither communication nor lateness. It has
//! *phases*, which follow each other:
//!
//! ```text
//!   iteration     loss       asks for    members      all are         all have       first step
//!   under way     noticed    the next    agreed       connected       the state      made
//!   begins
//!      ├ interrupted ┼ leaving ┼ agreeing ┼ connecting ┼ synchronising ┤ (first step)  ┤
//! ```
//!
//! A phase ends when the last member that stays has come to its end. Where nobody was lost (a process joined) nothing
//! is interrupted, because ranks leave between two steps. The time that a recovery costs is that of all members that
//! stay, each from the beginning of its interrupted iteration until it has the state. What a member lost with its
//! death is not counted, and neither is that fewer ranks go on more slowly.
//!
//! **Invariant:** the phases of a recovery sum to the time from its beginning to its end.

use std::collections::BTreeMap;

use farandole_trace::event::{Event, RecoveryStage, StepFate};
use farandole_trace::{Record, Trace, TraceEnding};

/// The phases of a recovery.
pub const PHASES: [&str; 5] = ["interrupted", "leaving", "agreeing", "connecting", "synchronising"];

/// What became of an elastic job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generations {
    /// One after the other.
    pub list: Vec<Generation>,
    /// The time of all members, each from its first record to its last.
    pub total_ns: u64,
    /// The number of the one that the rest of a report is about.
    pub shown: u64,
}

/// One generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Its number. Generations that were given up before all were connected left no traces.
    pub number: u64,
    /// Number of ranks.
    pub size: usize,
    /// From the beginning of the job until its ranks have the same state.
    pub from_ns: u64,
    /// Until the recovery after it begins, or the last record.
    pub to_ns: u64,
    /// Members that were not in the one before.
    pub joined: Vec<u64>,
    /// Members that were, and are not in this one.
    pub left: Vec<Departure>,
    /// What it cost to come to it; `None` if nobody in it was in another one before.
    pub recovery: Option<Recovery>,
    /// The parallel efficiency in it, if there is enough of it to tell.
    pub efficiency: Option<f64>,
}

/// A member that is in a generation no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Which.
    pub member: u64,
    /// Why, as members have recorded it.
    pub cause: Option<String>,
}

/// What it cost to come from one generation to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovery {
    /// Ranks of the generation before.
    pub from_size: usize,
    /// How long each of [`PHASES`] took.
    pub phases_ns: [u64; PHASES.len()],
    /// From then until the first step was made, if one was.
    pub first_step_ns: Option<u64>,
    /// The time that it cost, of all members that stay.
    pub lost_ns: u64,
    /// What became of the step that was interrupted, if it was not made.
    pub step: Option<StepFate>,
}

impl Recovery {
    /// How long the job stood still.
    pub fn ns(&self) -> u64 {
        self.phases_ns.iter().sum()
    }
}

impl Generations {
    /// Takes the traces of a job, which are on one clock, apart by generations. Each gets those of its ranks, cut to
    /// the time between the recoveries before and after it.
    pub fn split(traces: Vec<Trace>) -> (Generations, Vec<Vec<Trace>>) {
        let mut by_number: BTreeMap<u64, Vec<Trace>> = BTreeMap::new();
        let (zero_ns, total_ns) = (first_ns(&traces), total_ns(&traces));
        for trace in traces {
            by_number.entry(trace.header.generation()).or_default().push(trace);
        }
        let mut parts: Vec<Vec<Trace>> = by_number.into_values().collect();
        let crossings: Vec<Option<Crossing>> = (0..parts.len()).map(|at| Crossing::of(&parts, at)).collect();
        let mut list = Vec::new();
        for at in 0..parts.len() {
            list.push(generation(&parts, &crossings, at, zero_ns));
        }
        for (at, part) in parts.iter_mut().enumerate() {
            let until_ns = crossings.get(at + 1).and_then(Option::as_ref).map(|crossing| crossing.begin_ns());
            let begins = if crossings[at].is_some() { Begins::AfterRecovery } else { Begins::WithTheJob };
            part.iter_mut().for_each(|trace| cut(trace, begins, until_ns));
        }
        (Generations { list, total_ns, shown: 0 }, parts)
    }

    /// How many recoveries there were.
    pub fn recoveries(&self) -> usize {
        self.list.iter().filter(|generation| generation.recovery.is_some()).count()
    }

    /// The time that all of them cost.
    pub fn lost_ns(&self) -> u64 {
        self.list.iter().filter_map(|generation| generation.recovery.as_ref()).map(|recovery| recovery.lost_ns).sum()
    }

    /// As a share of the time of all members, in percent.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost_ns() as f64 / self.total_ns.max(1) as f64
    }
}

/// When a member of a generation came how far.
struct Moments {
    /// When the iteration began that was interrupted, or when the generation before was noticed to be over.
    begin_ns: u64,
    /// By the number of the stage; those that were not recorded are those before them.
    stages_ns: [u64; RecoveryStage::ALL.len()],
    stepped_ns: Option<u64>,
}

/// How the members that stay came into a generation.
struct Crossing(Vec<Moments>);

impl Crossing {
    /// How they came to the generation in this place; `None` if nobody in it was in another one before.
    fn of(parts: &[Vec<Trace>], at: usize) -> Option<Crossing> {
        let stays: Vec<Moments> = parts[at].iter().filter_map(|trace| moments(trace, &parts[..at])).collect();
        (!stays.is_empty()).then_some(Crossing(stays))
    }

    fn begin_ns(&self) -> u64 {
        self.0.iter().map(|moments| moments.begin_ns).min().unwrap_or(0)
    }

    /// When all had come to a stage.
    fn all_ns(&self, stage: RecoveryStage) -> u64 {
        self.0.iter().map(|moments| moments.stages_ns[stage as usize]).max().unwrap_or(0)
    }

    fn recovery(&self, from_size: usize, step: Option<StepFate>) -> Recovery {
        let mut at_ns = self.begin_ns();
        let ends = [0, 1, 2, 3, 4].map(|stage: usize| self.all_ns(RecoveryStage::ALL[stage]));
        let phases_ns = ends.map(|end_ns| {
            let begin_ns = at_ns;
            at_ns = end_ns.max(at_ns);
            at_ns - begin_ns
        });
        let synchronised = RecoveryStage::Synchronised as usize;
        let lost_ns = self.0.iter().map(|of| of.stages_ns[synchronised].saturating_sub(of.begin_ns)).sum();
        let stepped_ns = self.0.iter().filter_map(|of| of.stepped_ns).max();
        Recovery { from_size, phases_ns, first_step_ns: stepped_ns.map(|ns| ns.saturating_sub(at_ns)), lost_ns, step }
    }
}

/// When a member came how far; `None` if it was in no generation before.
fn moments(trace: &Trace, before: &[Vec<Trace>]) -> Option<Moments> {
    let noticed_ns = stage_ns(trace, RecoveryStage::Noticed)?;
    let member = trace.header.member();
    let own = before.iter().rev().flatten().find(|trace| trace.header.member() == member);
    let somebody_left = trace.records.iter().any(|record| matches!(record.event, Event::MemberLost { .. }));
    let marks = own.map_or(&[][..], |own| &own.records[..]).iter();
    let is_iteration = |record: &&Record| matches!(record.event, Event::Iteration { .. });
    let under_way = marks.filter(is_iteration).map(|record| record.time_ns).filter(|at_ns| *at_ns <= noticed_ns).max();
    let begin_ns = under_way.filter(|_| somebody_left).unwrap_or(noticed_ns);
    let mut stages_ns = [noticed_ns; RecoveryStage::ALL.len()];
    for stage in 1..stages_ns.len() {
        let own_ns = stage_ns(trace, RecoveryStage::ALL[stage]).unwrap_or(0);
        stages_ns[stage] = own_ns.max(stages_ns[stage - 1]);
    }
    let synchronised_ns = stages_ns[RecoveryStage::Synchronised as usize];
    let second = || {
        let mut marks = trace.records.iter().filter(is_iteration).map(|record| record.time_ns);
        marks.by_ref().find(|at_ns| *at_ns >= synchronised_ns).and_then(|_| marks.next())
    };
    let stepped_ns = stage_ns(trace, RecoveryStage::Stepped).or_else(second);
    Some(Moments { begin_ns, stages_ns, stepped_ns })
}

fn stage_ns(trace: &Trace, wanted: RecoveryStage) -> Option<u64> {
    let is_it = |record: &&Record| matches!(record.event, Event::Recovery { stage } if stage == wanted);
    trace.records.iter().find(is_it).map(|record| record.time_ns)
}

fn generation(parts: &[Vec<Trace>], crossings: &[Option<Crossing>], at: usize, zero_ns: u64) -> Generation {
    let members = members_of(&parts[at]);
    let before = at.checked_sub(1).map_or(Vec::new(), |before| members_of(&parts[before]));
    let left = before.iter().filter(|member| !members.contains(member));
    let left = left.map(|member| Departure { member: *member, cause: cause_of(&parts[at], *member) }).collect();
    let crossing = crossings[at].as_ref();
    let next = crossings.get(at + 1).and_then(Option::as_ref);
    let last_ns = parts[at].iter().filter_map(Trace::span_ns).map(|span| span.1).max().unwrap_or(zero_ns);
    let from_ns =
        crossing.map_or_else(|| first_ns(&parts[at]), |crossing| crossing.all_ns(RecoveryStage::Synchronised));
    let to_ns = next.map_or(last_ns, Crossing::begin_ns).max(from_ns);
    let step = parts[at].iter().flat_map(|trace| &trace.records).find_map(|record| match record.event {
        Event::StepLost { fate } => Some(fate),
        _ => None,
    });
    Generation {
        number: parts[at].first().map_or(0, |trace| trace.header.generation()),
        size: members.len(),
        from_ns: from_ns.saturating_sub(zero_ns),
        to_ns: to_ns.saturating_sub(zero_ns),
        joined: members.into_iter().filter(|member| at > 0 && !before.contains(member)).collect(),
        left,
        recovery: crossing.map(|crossing| crossing.recovery(before.len(), step)),
        efficiency: None,
    }
}

/// The members of a generation: as one of them has recorded them, or those of whom there are traces.
fn members_of(traces: &[Trace]) -> Vec<u64> {
    let told = traces.iter().map(|trace| trace.header.members()).find(|members| !members.is_empty());
    told.unwrap_or_else(|| traces.iter().map(|trace| trace.header.member()).collect())
}

fn cause_of(traces: &[Trace], lost: u64) -> Option<String> {
    traces.iter().find_map(|trace| {
        trace.records.iter().find_map(|record| match record.event {
            Event::MemberLost { name, member } if member == lost => Some(trace.text(name).to_owned()),
            _ => None,
        })
    })
}

/// How a generation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// As jobs of a fixed size do; what its ranks do first counts.
    WithTheJob,
    /// When its ranks have the same state.
    AfterRecovery,
}

/// Leaves of a trace what lies between two recoveries. Where there is one after it, its end is known, whether or not
/// the member lived to write it.
fn cut(trace: &mut Trace, begins: Begins, until_ns: Option<u64>) {
    let state = [RecoveryStage::Synchronised, RecoveryStage::Connected].map(|stage| stage_ns(trace, stage));
    let state_ns = state.into_iter().flatten().next();
    let from_ns = state_ns.filter(|_| begins == Begins::AfterRecovery).unwrap_or(0);
    trace.records.retain(|record| {
        let is_stage = matches!(record.event, Event::Recovery { .. } | Event::MemberLost { .. });
        !is_stage && record.time_ns >= from_ns && until_ns.is_none_or(|until_ns| record.time_ns < until_ns)
    });
    if until_ns.is_some() && trace.ending == TraceEnding::CutOff {
        trace.ending = TraceEnding::Complete("the generation ended".to_owned());
    }
}

fn first_ns(traces: &[Trace]) -> u64 {
    traces.iter().filter_map(Trace::span_ns).map(|span| span.0).min().unwrap_or(0)
}

fn total_ns(traces: &[Trace]) -> u64 {
    let mut there: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for trace in traces {
        let Some((from_ns, to_ns)) = trace.span_ns() else { continue };
        let span = there.entry(trace.header.member()).or_insert((from_ns, to_ns));
        *span = (span.0.min(from_ns), span.1.max(to_ns));
    }
    there.values().map(|(from_ns, to_ns)| to_ns - from_ns).sum()
}

#[cfg(test)]
mod tests {
    use farandole_trace::event::{NameId, ThreadId};
    use farandole_trace::{GenerationView, TraceHeader};

    use super::*;

    const MS: u64 = 1_000_000;

    fn trace(number: u64, rank: u32, members: &[u64]) -> Trace {
        let view =
            GenerationView { job: "j".into(), number, member: members[rank as usize], members: members.to_vec() };
        let mut header = TraceHeader { rank, size: members.len() as u32, ..TraceHeader::default() };
        header.settings = view.settings();
        let (name, value) = view.members_setting();
        header.set(name.to_owned(), value);
        Trace::new(header)
    }

    fn put(trace: &mut Trace, at_ms: u64, event: Event) {
        trace.push(at_ms * MS, ThreadId(0), event);
    }

    fn iterations(trace: &mut Trace, at_ms: &[u64]) {
        at_ms.iter().zip(0..).for_each(|(at_ms, number)| put(trace, *at_ms, Event::Iteration { number }));
    }

    /// How a member came into a generation: the stages one after the other, as far as they are given.
    fn stages(trace: &mut Trace, at_ms: &[u64]) {
        let stages = at_ms.iter().zip(RecoveryStage::ALL);
        stages.for_each(|(at_ms, stage)| put(trace, *at_ms, Event::Recovery { stage: *stage }));
    }

    /// Members 0, 1 and 2; 1 is killed in its third iteration, and 3 joins later.
    fn job() -> Vec<Trace> {
        let mut traces = Vec::new();
        for rank in 0..3 {
            let mut one = trace(1, rank, &[0, 1, 2]);
            iterations(&mut one, &[0, 100, 200]);
            put(&mut one, 210, Event::Cycle);
            one.ending = if rank == 1 { TraceEnding::CutOff } else { one.ending };
            traces.push(one);
        }
        for rank in 0..2 {
            let mut two = trace(2, rank, &[0, 2]);
            let late = u64::from(rank);
            stages(&mut two, &[220, 221, 225 + late, 240, 250]);
            let name = two.names.intern("it was killed");
            put(&mut two, 225, Event::MemberLost { name, member: 1 });
            put(&mut two, 250, Event::StepLost { fate: StepFate::Repeated });
            iterations(&mut two, &[251, 350, 450]);
            put(&mut two, 500, Event::Cycle);
            two.sort();
            traces.push(two);
        }
        for rank in 0..3 {
            let mut three = trace(3, rank, &[0, 2, 3]);
            let stays = rank < 2;
            if stays {
                stages(&mut three, &[500, 500, 510, 520, 540, 650]);
            }
            iterations(&mut three, &[560, 650, 1500]);
            three.sort();
            traces.push(three);
        }
        traces
    }

    #[test]
    fn each_recovery_has_its_cause_and_its_phases() {
        let (generations, _) = Generations::split(job());
        let [first, second, third] = &generations.list[..] else { panic!("three generations: {generations:?}") };
        assert_eq!((first.number, first.size, &first.recovery, first.to_ns), (1, 3, &None, 200 * MS));
        assert!(first.joined.is_empty() && first.left.is_empty());
        assert_eq!(second.left, [Departure { member: 1, cause: Some("it was killed".to_owned()) }]);
        let lost = second.recovery.as_ref().unwrap();
        assert_eq!(lost.phases_ns.map(|ns| ns / MS), [20, 1, 5, 14, 10], "the interrupted step began at 200");
        assert_eq!((lost.ns(), lost.lost_ns, lost.from_size), (50 * MS, 100 * MS, 3));
        assert_eq!((lost.first_step_ns, lost.step), (Some(100 * MS), Some(StepFate::Repeated)));
        assert_eq!((third.joined.as_slice(), third.left.as_slice()), (&[3][..], &[][..]));
        let joined = third.recovery.as_ref().unwrap();
        assert_eq!(joined.phases_ns.map(|ns| ns / MS), [0, 0, 10, 10, 20], "nothing is interrupted");
        assert_eq!((joined.first_step_ns, joined.step), (Some(110 * MS), None));
        assert_eq!((third.from_ns, third.to_ns), (540 * MS, 1500 * MS));
        // Members 0 and 2 all the time, 1 until its end, 3 from its beginning.
        assert_eq!(generations.total_ns, (2 * 1500 + 210 + 1500 - 560) * MS);
        assert_eq!((generations.recoveries(), generations.lost_ns()), (2, (100 + 80) * MS));
    }

    #[test]
    fn what_is_analysed_lies_between_recoveries() {
        let (_, parts) = Generations::split(job());
        let spans: Vec<Vec<(u64, u64)>> = parts
            .iter()
            .map(|part| part.iter().filter_map(Trace::span_ns).map(|(from, to)| (from / MS, to / MS)).collect())
            .collect();
        assert_eq!(spans[0], [(0, 100); 3], "the iteration that was interrupted is part of the recovery");
        assert_eq!(spans[1], [(250, 450); 2]);
        assert_eq!(spans[2], [(560, 1500); 3]);
        assert!(matches!(parts[0][1].ending, TraceEnding::Complete(_)), "its end is known: {:?}", parts[0][1].ending);
        let is_stage = |record: &Record| matches!(record.event, Event::Recovery { .. });
        assert!(!parts.iter().flatten().flat_map(|trace| &trace.records).any(is_stage));
    }

    #[test]
    fn a_program_that_says_nothing_of_its_state_has_it_when_it_is_connected() {
        let mut traces = job();
        for trace in &mut traces {
            trace.records.retain(
                |record| !matches!(record.event, Event::Recovery { stage } if stage >= RecoveryStage::Synchronised),
            );
        }
        let (generations, _) = Generations::split(traces);
        let lost = generations.list[1].recovery.as_ref().unwrap();
        assert_eq!(lost.phases_ns.map(|ns| ns / MS), [20, 1, 5, 14, 0]);
        assert_eq!(lost.first_step_ns, Some(110 * MS), "the first iteration, until the second begins");
    }

    #[test]
    fn traces_of_nothing_are_no_trouble() {
        assert_eq!(Generations::split(Vec::new()).0, Generations::default());
        let mut one = trace(4, 0, &[7]);
        one.push(5, ThreadId(0), Event::MemberLost { name: NameId::NONE, member: 9 });
        let (generations, _) = Generations::split(vec![trace(2, 0, &[7]), one]);
        assert_eq!((generations.recoveries(), generations.lost_percent()), (0, 0.0));
    }
}
