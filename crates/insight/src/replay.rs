//! Replays a history with something changed, and says how long it would have taken.
//!
//! The order stays: every rank does the same things one after the other, submits at the same points, and continues
//! after a wait when the operation is done. Only durations change. Terms, for operation `o` of a group:
//!
//! - its *arrival* is when the last member has submitted;
//! - its *agreement* is what passed from the arrival, or from the end of the group's previous operation if that was
//!   later, until the last member had begun;
//! - *packing* lasted until the last member had packed, *transfer* until each member had the result, *unpacking* until
//!   each member was done.
//!
//! In the replay `o` begins after its agreement, counted from its new arrival or the new end of the previous operation,
//! and its stages follow. Where operations of one group overlapped, as far as they did, they may do so again. On an
//! *ideal network* agreement, packing and transfer take no time. Unchanged, the replay takes as long as the history
//! did, but for what is not recorded; predictions are therefore a ratio to the unchanged replay.

use std::collections::BTreeMap;

use crate::history::{Activity, History, Legs};

/// Something to change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// No rank waits for input.
    NoInputWait,
    /// The script's own code takes no time.
    NoOwnCode,
    /// Checkpoints take no time.
    NoCheckpoint,
    /// This rank never takes longer for its work than the others do on average.
    NotLate(usize),
    /// All ranks take equally long for their work, leg by leg.
    Balanced,
    /// The phase of this name, where only some ranks had it, is shared by all.
    Shared(String),
    /// The phase of this name, where only some ranks had it, is moved to another job.
    Moved(String),
    /// Agreement takes no time.
    NoAgreement,
    /// Packing and unpacking take no time.
    NoPacking,
    /// Transfer takes this many times as long.
    Transfer(f64),
    /// Copies from devices to the host take this many times as long.
    Copies(f64),
    /// Batches are this many times as large: between two exchanges everything takes so much longer. (Also what happens
    /// once in an epoch: so many more epochs are played.)
    Larger(f64),
}

/// The changes that make a network ideal: an operation is done as soon as the last rank has come.
pub const IDEAL_NETWORK: [Change; 3] = [Change::NoAgreement, Change::NoPacking, Change::Transfer(0.0)];

/// How long a history takes with these changes. Nothing is scaled: see [`predicted_ns`].
pub fn replayed_ns(history: &History, changes: &[Change]) -> u64 {
    Replay::new(history, changes).run()
}

/// How long the job would have taken with these changes: the recorded time, in the proportion of the two replays.
pub fn predicted_ns(history: &History, changes: &[Change]) -> u64 {
    let unchanged_ns = replayed_ns(history, &[]);
    let changed_ns = replayed_ns(history, changes);
    if unchanged_ns == 0 || unchanged_ns == history.end_ns {
        return changed_ns;
    }
    (history.end_ns as f64 * changed_ns as f64 / unchanged_ns as f64).round() as u64
}

/// Something that a rank does, one after the other.
enum RankAction {
    /// Takes so long.
    Spend(u64),
    /// Submits to an operation, so long after now. (Later than now only where another thread submits while this one is
    /// blocked.)
    Submit { operation: usize, after_ns: u64 },
    /// Goes on when the operation is done, and so much later.
    Wait { operation: usize, wake_ns: u64 },
}

/// How long the stages of an operation take.
struct Stages {
    /// The group's previous operation, if this one waited for its end.
    behind: Option<usize>,
    agreement_ns: u64,
    packing_ns: u64,
    /// For each member, in order: transfer, and unpacking.
    members: Vec<(u64, u64)>,
}

struct Replay {
    actions: Vec<Vec<RankAction>>,
    stages: Vec<Stages>,
    members: Vec<Vec<usize>>,
}

impl Replay {
    fn new(history: &History, changes: &[Change]) -> Replay {
        let pace = Pace::new(history, changes);
        let mut previous: BTreeMap<u32, usize> = BTreeMap::new();
        let mut stages = Vec::with_capacity(history.operations.len());
        for (number, operation) in history.operations.iter().enumerate() {
            let behind = previous.insert(operation.group, number);
            stages.push(pace.stages(history, number, behind));
        }
        let actions = (0..history.size()).map(|rank| pace.actions(history, rank)).collect();
        let rank_of = |passage: &crate::history::Passage| passage.rank;
        let members =
            history.operations.iter().map(|operation| operation.passages.iter().map(rank_of).collect()).collect();
        Replay { actions, stages, members }
    }

    /// Advances every rank until it waits for an operation whose end is not known, again and again until all are at
    /// their end. In a consistent recording some rank can always advance; in an inconsistent one, a rank that no other
    /// can release does not wait.
    fn run(&self) -> u64 {
        let mut now_ns = vec![0; self.actions.len()];
        let mut next = vec![0; self.actions.len()];
        let mut operations = Operations::new(self);
        loop {
            let mut went_on = false;
            for rank in 0..self.actions.len() {
                while let Some(action) = self.actions[rank].get(next[rank]) {
                    match *action {
                        RankAction::Spend(ns) => now_ns[rank] += ns,
                        RankAction::Submit { operation, after_ns } => {
                            operations.submit(operation, now_ns[rank] + after_ns)
                        }
                        RankAction::Wait { operation, wake_ns } => {
                            let Some(done_ns) = operations.done(operation, rank) else { break };
                            now_ns[rank] = now_ns[rank].max(done_ns) + wake_ns;
                        }
                    }
                    next[rank] += 1;
                    went_on = true;
                }
            }
            if !went_on {
                let Some(stuck) = (0..self.actions.len()).find(|&rank| next[rank] < self.actions[rank].len()) else {
                    break;
                };
                next[stuck] += 1;
            }
        }
        now_ns.into_iter().max().unwrap_or(0)
    }
}

/// What is known of the operations while a replay runs.
struct Operations<'a> {
    replay: &'a Replay,
    missing: Vec<usize>,
    arrival_ns: Vec<u64>,
    /// When the operation is done, on the last member and on each.
    done_ns: Vec<Option<(u64, Vec<u64>)>>,
}

impl<'a> Operations<'a> {
    fn new(replay: &'a Replay) -> Operations<'a> {
        let count = replay.stages.len();
        let missing = replay.members.iter().map(Vec::len).collect();
        Operations { replay, missing, arrival_ns: vec![0; count], done_ns: vec![None; count] }
    }

    fn submit(&mut self, operation: usize, at_ns: u64) {
        self.arrival_ns[operation] = self.arrival_ns[operation].max(at_ns);
        self.missing[operation] -= 1;
    }

    /// When an operation is done on a rank, if that can be known yet.
    fn done(&mut self, operation: usize, rank: usize) -> Option<u64> {
        self.settle(operation)?;
        let member = self.replay.members[operation].binary_search(&rank).ok()?;
        self.done_ns[operation].as_ref().map(|(_, members)| members[member])
    }

    /// Works out the end of an operation and of those that it was behind, first the earliest.
    fn settle(&mut self, operation: usize) -> Option<()> {
        let mut chain = vec![operation];
        while let Some(&last) = chain.last()
            && self.done_ns[last].is_none()
            && let Some(behind) = self.replay.stages[last].behind
        {
            chain.push(behind);
        }
        for &number in chain.iter().rev() {
            if self.done_ns[number].is_some() {
                continue;
            }
            if self.missing[number] > 0 {
                return None;
            }
            let stages = &self.replay.stages[number];
            let free_ns = stages.behind.and_then(|behind| self.done_ns[behind].as_ref()).map_or(0, |(last, _)| *last);
            let packed_ns = self.arrival_ns[number].max(free_ns) + stages.agreement_ns + stages.packing_ns;
            let members: Vec<u64> = stages
                .members
                .iter()
                .map(|(transfer_ns, unpacking_ns)| packed_ns + transfer_ns + unpacking_ns)
                .collect();
            let last_ns = members.iter().copied().max().unwrap_or(packed_ns);
            self.done_ns[number] = Some((last_ns, members));
        }
        Some(())
    }
}

/// How fast things go, with the changes.
struct Pace<'a> {
    changes: &'a [Change],
    legs: Legs,
    /// For each rank and leg, by how much work is slower or faster than it was.
    work: Vec<Vec<f64>>,
}

impl<'a> Pace<'a> {
    fn new(history: &History, changes: &'a [Change]) -> Pace<'a> {
        let legs = Legs::of(history);
        let work = work_factors(history, &legs, changes);
        Pace { changes, legs, work }
    }

    fn has(&self, change: &Change) -> bool {
        self.changes.contains(change)
    }

    fn transfer(&self) -> f64 {
        let factor = |change: &Change| if let Change::Transfer(factor) = change { *factor } else { 1.0 };
        self.changes.iter().map(factor).product()
    }

    fn stages(&self, history: &History, number: usize, behind: Option<usize>) -> Stages {
        let operation = &history.operations[number];
        let (arrival_ns, _) = operation.last_arrival();
        let (begun_ns, packed_ns) = (operation.begun_ns(), operation.packed_ns());
        let behind = behind.filter(|&before| history.operations[before].done_ns() <= begun_ns);
        let free_ns = behind.map_or(0, |before| history.operations[before].done_ns());
        let unless = |change: Change, ns: u64| if self.has(&change) { 0 } else { ns };
        let member = |passage: &crate::history::Passage| {
            let transfer_ns = passage.moved_ns.saturating_sub(packed_ns);
            (
                scaled(transfer_ns, self.transfer()),
                unless(Change::NoPacking, passage.done_ns - passage.moved_ns.max(packed_ns).min(passage.done_ns)),
            )
        };
        Stages {
            behind,
            agreement_ns: unless(Change::NoAgreement, begun_ns - arrival_ns.max(free_ns).min(begun_ns)),
            packing_ns: unless(Change::NoPacking, packed_ns - begun_ns),
            members: operation.passages.iter().map(member).collect(),
        }
    }

    /// What a rank does, one after the other, with the time that it takes now.
    fn actions(&self, history: &History, rank: usize) -> Vec<RankAction> {
        let mut submissions: Vec<(u64, usize)> = history
            .operations
            .iter()
            .enumerate()
            .filter_map(|(number, operation)| operation.passage(rank).map(|passage| (passage.submitted_ns, number)))
            .collect();
        submissions.sort_unstable();
        let mut submissions = submissions.into_iter().peekable();
        let mut actions = Vec::new();
        for stretch in &history.ranks[rank].lane {
            let mut at_ns = stretch.from_ns;
            let blocked = matches!(stretch.activity, Activity::Blocked(_));
            while let Some((submitted_ns, operation)) = submissions
                .next_if(|&(submitted_ns, _)| submitted_ns < stretch.to_ns || submitted_ns == stretch.from_ns)
            {
                let mut after_ns = submitted_ns.saturating_sub(stretch.from_ns);
                if !blocked {
                    self.spend(history, rank, stretch.activity, (at_ns, submitted_ns.max(at_ns)), &mut actions);
                    at_ns = submitted_ns.max(at_ns);
                    after_ns = 0;
                }
                actions.push(RankAction::Submit { operation, after_ns });
            }
            match stretch.activity {
                Activity::Blocked(Some(operation)) => {
                    let done_ns = history.operations[operation].passage(rank).map_or(0, |passage| passage.done_ns);
                    let wake_ns = stretch.to_ns - done_ns.clamp(stretch.from_ns, stretch.to_ns);
                    actions.push(RankAction::Wait { operation, wake_ns });
                }
                Activity::Ended => {}
                activity => self.spend(history, rank, activity, (at_ns, stretch.to_ns), &mut actions),
            }
        }
        actions.extend(submissions.map(|(_, operation)| RankAction::Submit { operation, after_ns: 0 }));
        actions
    }

    /// A time in which a rank does one thing, leg by leg and phase by phase.
    fn spend(
        &self,
        history: &History,
        rank: usize,
        activity: Activity,
        span: (u64, u64),
        actions: &mut Vec<RankAction>,
    ) {
        let (mut at_ns, to_ns) = span;
        while at_ns < to_ns {
            let leg = self.legs.at(rank, at_ns);
            let phase = self.legs.sole_at(rank, at_ns);
            let leg_end_ns = self.legs.ends(rank).get(leg).copied().unwrap_or(to_ns);
            let edges = self.legs.sole(rank).iter().flat_map(|&(from_ns, to_ns, _)| [from_ns, to_ns]);
            let end_ns = edges.filter(|&edge_ns| edge_ns > at_ns).fold(leg_end_ns.min(to_ns), u64::min).max(at_ns + 1);
            let name = phase.map(|phase| history.ranks[rank].phases[phase].name.as_str());
            actions.push(RankAction::Spend(scaled(end_ns - at_ns, self.factor(history, rank, activity, leg, name))));
            at_ns = end_ns;
        }
    }

    fn factor(&self, history: &History, rank: usize, activity: Activity, leg: usize, sole: Option<&str>) -> f64 {
        if let Some(name) = sole {
            if self.has(&Change::Moved(name.to_owned())) {
                return 0.0;
            }
            if self.has(&Change::Shared(name.to_owned())) {
                return larger(self.changes) / history.size() as f64;
            }
        }
        match activity {
            Activity::Input if self.has(&Change::NoInputWait) => 0.0,
            Activity::Own if self.has(&Change::NoOwnCode) => 0.0,
            Activity::Checkpoint if self.has(&Change::NoCheckpoint) => 0.0,
            Activity::Copy if self.has(&Change::NoPacking) => 0.0,
            // A batch of any size has the same gradients.
            Activity::Copy => copies(self.changes),
            Activity::Compute if sole.is_none() => self.work[rank][leg],
            _ => larger(self.changes),
        }
    }
}

/// By how much the work of each rank in each leg is slower or faster. Phases that only some ranks have do not count as
/// work here: they are not what ranks do side by side.
fn work_factors(history: &History, legs: &Legs, changes: &[Change]) -> Vec<Vec<f64>> {
    let mut factors = vec![vec![larger(changes); legs.count()]; history.size()];
    let balanced = changes.contains(&Change::Balanced);
    let prompt = |rank| changes.contains(&Change::NotLate(rank));
    if history.recorded_size() < 2 || !(balanced || (0..history.size()).any(prompt)) {
        return factors;
    }
    let work_ns: Vec<Vec<u64>> = (0..history.size()).map(|rank| work_by_leg(history, legs, rank)).collect();
    for leg in 0..legs.count() {
        let sum_ns: u64 = work_ns.iter().map(|legs| legs[leg]).sum();
        for (rank, factors) in factors.iter_mut().enumerate() {
            let own_ns = work_ns[rank][leg];
            if own_ns == 0 {
                continue;
            }
            let mean_of_others = (sum_ns - own_ns) as f64 / (history.recorded_size() - 1) as f64;
            if balanced {
                factors[leg] *= sum_ns as f64 / history.recorded_size() as f64 / own_ns as f64;
            } else if prompt(rank) {
                factors[leg] *= (mean_of_others / own_ns as f64).min(1.0);
            }
        }
    }
    factors
}

/// By how much batches are larger.
fn larger(changes: &[Change]) -> f64 {
    changes.iter().map(|change| if let Change::Larger(factor) = change { *factor } else { 1.0 }).product()
}

/// By how much copies from devices are slower.
fn copies(changes: &[Change]) -> f64 {
    changes.iter().map(|change| if let Change::Copies(factor) = change { *factor } else { 1.0 }).product()
}

fn work_by_leg(history: &History, legs: &Legs, rank: usize) -> Vec<u64> {
    let mut work_ns = vec![0; legs.count()];
    for stretch in history.ranks[rank].lane.iter().filter(|stretch| stretch.activity == Activity::Compute) {
        let mut at_ns = stretch.from_ns;
        while at_ns < stretch.to_ns {
            let leg = legs.at(rank, at_ns);
            let end_ns = legs.ends(rank).get(leg).copied().unwrap_or(stretch.to_ns).clamp(at_ns + 1, stretch.to_ns);
            let alone: u64 = legs
                .sole(rank)
                .iter()
                .map(|&(from_ns, to_ns, _)| to_ns.clamp(at_ns, end_ns) - from_ns.clamp(at_ns, end_ns))
                .sum();
            work_ns[leg] += end_ns - at_ns - alone;
            at_ns = end_ns;
        }
    }
    work_ns
}

fn scaled(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor).round() as u64 }
}
