//! Where the time of all ranks went: useful work, and every loss by its cause.
//!
//! At every moment a rank either works or loses its time to one cause. Asking for the cause along all lanes gives a
//! split that always sums exactly to the whole, in nanoseconds.
//!
//! **What a waiting rank waits for.** A rank that is blocked in an operation loses its time
//!
//! 1. until the last rank has submitted: to whatever made that rank the last. If it is blocked itself, in another
//!    operation, the question is passed on to that one. Otherwise the two ranks are compared, from when they last came
//!    out of the same operation: what the last rank spent more on than the waiting one (input, own code, a checkpoint,
//!    a phase that the other has not, work) is the cause, in proportion; more work means that it is late. So it does
//!    not matter in which order a rank starves and works.
//! 2. from then on until the last rank has begun: to agreement, except where the rank's engine is still busy with
//!    earlier operations; that is packing or transfer of those.
//! 3. until the last rank has packed: to packing.
//! 4. until the result is there: to transfer. Then to packing again, while it is unpacked.
//! 5. From then on the rank could continue; the time until it does is other.
//!
//! This is why an input pipeline that starves all ranks alike shows as input and not as communication, and why a rank
//! that arrives late because of its own loader does not show as slow (`excess.rs`). Which ranks are responsible for a
//! loss is another question (`responsible.rs`).

mod evidence;
mod excess;
mod responsible;

use std::collections::BTreeMap;

use crate::history::{Activity, History, Legs, OperationHistory, Passage};

pub use evidence::{Evidence, Interval};
pub(crate) use responsible::ranks_text;

/// What time is lost to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// Waiting for the next batch, or for a rank that does.
    Input,
    /// The script's own code outside of every phase, or waiting for a rank that is in it.
    Own,
    /// Waiting for this rank, which took longer than the others for its work.
    Late(usize),
    /// Waiting for ranks in a phase of this name, in which only some of them work.
    Sequential(String),
    /// A checkpoint, or waiting for a rank that writes one.
    Checkpoint,
    /// Finding out which operation is next.
    Agreement,
    /// Copying tensors to and from the fusion buffer, and from a device to the host.
    Packing,
    /// Bytes on their way.
    Transfer,
    /// Starting and ending at different times, waking up, and what is not known.
    Other,
}

impl LossCause {
    /// The word for it in tables and JSON; the same for all ranks and phases.
    pub fn key(&self) -> &'static str {
        match self {
            LossCause::Input => "input",
            LossCause::Own => "own",
            LossCause::Late(_) => "late",
            LossCause::Sequential(_) => "sequential",
            LossCause::Checkpoint => "checkpoint",
            LossCause::Agreement => "agreement",
            LossCause::Packing => "packing",
            LossCause::Transfer => "transfer",
            LossCause::Other => "other",
        }
    }
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LossCause::Input => write!(f, "input wait"),
            LossCause::Own => write!(f, "the script's own code"),
            LossCause::Late(rank) => write!(f, "rank {rank} arriving late"),
            LossCause::Sequential(phase) => write!(f, "the phase “{phase}”, in which only some ranks work"),
            LossCause::Checkpoint => write!(f, "checkpoints"),
            LossCause::Agreement => write!(f, "agreement"),
            LossCause::Packing => write!(f, "packing"),
            LossCause::Transfer => write!(f, "transfer"),
            LossCause::Other => write!(f, "other things"),
        }
    }
}

/// Where the time of all ranks went.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSplit {
    /// The time of all ranks together.
    pub total_ns: u64,
    /// Of it, useful work.
    pub useful_ns: u64,
    /// The rest, by cause, largest first. With the useful time it sums to the total exactly.
    pub losses: Vec<Loss>,
    /// Agreement, packing and transfer that went on while the rank worked: no loss.
    pub overlapped_ns: u64,
    /// What each rank did and lost its time to, moment after moment, from zero to the end: for strips.
    pub strips: Vec<Vec<CauseSpan>>,
}

/// The time lost to one cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// To what.
    pub cause: LossCause,
    /// How much, over all ranks.
    pub ns: u64,
    /// The ranks that are responsible, if it is some and not all.
    pub responsible: Vec<usize>,
    /// When and where.
    pub evidence: Evidence,
}

impl Loss {
    /// The cause, and the responsible ranks.
    pub fn name(&self) -> String {
        let Loss { cause, responsible, .. } = self;
        match cause {
            _ if responsible.is_empty() => cause.to_string(),
            LossCause::Input => format!("{cause} of {}", ranks_text(responsible)),
            _ => format!("{cause} on {}", ranks_text(responsible)),
        }
    }
}

/// Below this share of the time of all ranks a late rank is not worth a line of its own, in percent.
const LITTLE_PERCENT: f64 = 1.0;

/// A line of the split as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRow {
    /// What it is, for people.
    pub name: String,
    /// The word for it.
    pub key: &'static str,
    /// How much.
    pub ns: u64,
    /// Its share, in tenths of a percent.
    pub tenths: u64,
}

/// A time of one rank with one cause; `None` is useful work.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseSpan {
    /// Beginning.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// What it was lost to.
    pub cause: Option<LossCause>,
}

impl TimeSplit {
    /// Splits the time of a history.
    pub fn of(history: &History) -> TimeSplit {
        let attribution = Attribution::new(history);
        let strips: Vec<Vec<CauseSpan>> = (0..history.size()).map(|rank| joined(attribution.strip(rank))).collect();
        let mut by_cause: BTreeMap<LossCause, u64> = BTreeMap::new();
        let mut useful_ns = 0;
        for piece in strips.iter().flatten() {
            let ns = piece.to_ns - piece.from_ns;
            match &piece.cause {
                None => useful_ns += ns,
                Some(cause) => *by_cause.entry(cause.clone()).or_default() += ns,
            }
        }
        let mut losses: Vec<Loss> = by_cause
            .into_iter()
            .map(|(cause, ns)| Loss {
                responsible: responsible::responsible_ranks(history, &cause),
                evidence: Evidence::of(history, &strips, &cause),
                cause,
                ns,
            })
            .collect();
        losses.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.cause.cmp(&b.cause)));
        let overlapped_ns = (0..history.size()).map(|rank| attribution.overlapped_ns(rank)).sum();
        TimeSplit { total_ns: history.total_ns(), useful_ns, losses, overlapped_ns, strips }
    }

    /// Time as a share of the whole, in percent.
    pub fn percent(&self, ns: u64) -> f64 {
        if self.total_ns == 0 { 0.0 } else { 100.0 * ns as f64 / self.total_ns as f64 }
    }

    /// The split as a table has it: work, and every loss with its name, largest first. Ranks that are hardly late share
    /// a line. Shares are in tenths of a percent and sum to a thousand: each is rounded down, and those that lost most
    /// by it get a tenth back.
    pub fn rows(&self) -> Vec<SplitRow> {
        let little = |loss: &&Loss| matches!(loss.cause, LossCause::Late(_)) && self.percent(loss.ns) < LITTLE_PERCENT;
        let little_ns: u64 = self.losses.iter().filter(little).map(|loss| loss.ns).sum();
        let share_a_line = self.losses.iter().filter(little).count() > 1;
        let row = |name: String, key, ns| SplitRow { name, key, ns, tenths: 0 };
        let mut rows = Vec::new();
        for loss in self.losses.iter().filter(|loss| !(share_a_line && little(loss))) {
            rows.push(row(loss.name(), loss.cause.key(), loss.ns));
        }
        if share_a_line {
            rows.push(row("ranks arriving late, each a little".to_owned(), "late", little_ns));
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.ns));
        rows.insert(0, row("work".to_owned(), "work", self.useful_ns));
        let total = u128::from(self.total_ns.max(1));
        let exact = |row: &SplitRow| (1000 * u128::from(row.ns) / total, 1000 * u128::from(row.ns) % total);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(exact(&rows[number]).1));
        for row in &mut rows {
            row.tenths = u64::try_from(exact(row).0).unwrap_or(1000);
        }
        let sum: u64 = rows.iter().map(|row| row.tenths).sum();
        let missing = if self.total_ns == 0 { 0 } else { 1000u64.saturating_sub(sum) as usize };
        order.iter().take(missing).for_each(|&number| rows[number].tenths += 1);
        rows
    }

    /// Time lost to everything that one word stands for.
    pub fn lost_ns(&self, key: &str) -> u64 {
        self.losses.iter().filter(|loss| loss.cause.key() == key).map(|loss| loss.ns).sum()
    }

    /// Agreement, packing and transfer for which ranks waited.
    pub fn exposed_ns(&self) -> u64 {
        ["agreement", "packing", "transfer"].into_iter().map(|key| self.lost_ns(key)).sum()
    }
}

/// Finds the cause of a wait: has the history, and for each rank when its engine was busy.
struct Attribution<'a> {
    history: &'a History,
    legs: Legs,
    /// For each rank, its operations with the time from their beginning to their end, by beginning.
    busy: Vec<Vec<(u64, u64, &'a OperationHistory, &'a Passage)>>,
}

impl<'a> Attribution<'a> {
    fn new(history: &'a History) -> Attribution<'a> {
        let mut busy: Vec<Vec<_>> = vec![Vec::new(); history.size()];
        for operation in &history.operations {
            for passage in &operation.passages {
                busy[passage.rank].push((passage.begun_ns, passage.done_ns, operation, passage));
            }
        }
        for operations in &mut busy {
            operations.sort_by_key(|&(from_ns, to_ns, ..)| (from_ns, to_ns));
        }
        Attribution { history, legs: Legs::of(history), busy }
    }

    fn strip(&self, rank: usize) -> Vec<CauseSpan> {
        let mut pieces = Vec::new();
        for stretch in &self.history.ranks[rank].lane {
            let span = (stretch.from_ns, stretch.to_ns);
            let mut say = |cause| pieces.push(CauseSpan { from_ns: span.0, to_ns: span.1, cause });
            match stretch.activity {
                Activity::Compute => say(None),
                Activity::Input | Activity::Own | Activity::Checkpoint | Activity::Copy => {
                    say(Some(made_by(rank, stretch.activity)));
                }
                Activity::NotBegun | Activity::Blocked(None) => say(Some(LossCause::Other)),
                Activity::Ended => self.outlived(rank, span, &mut pieces),
                Activity::Blocked(Some(operation)) => self.waits(rank, operation, span, 0, &mut pieces),
            }
        }
        pieces
    }

    /// What a rank loses the time to in which it is blocked in an operation.
    fn waits(
        &self,
        rank: usize,
        number: usize,
        (from_ns, to_ns): (u64, u64),
        depth: usize,
        pieces: &mut Vec<CauseSpan>,
    ) {
        let operation = &self.history.operations[number];
        let Some(passage) = operation.passage(rank).filter(|_| depth <= self.history.size()) else {
            pieces.push(CauseSpan { from_ns, to_ns, cause: Some(LossCause::Other) });
            return;
        };
        let (arrival_ns, last) = operation.last_arrival_for(passage);
        let there_ns = arrival_ns.clamp(from_ns, to_ns);
        if from_ns < there_ns {
            self.waits_for(rank, last, number, (from_ns, there_ns), depth, pieces);
        }
        let begun_ns = operation.begun_ns().min(passage.moved_ns).clamp(there_ns, to_ns);
        self.before(rank, (there_ns, begun_ns), pieces);
        stages(operation, passage, (begun_ns, to_ns), pieces);
    }

    /// What a rank loses the time to in which it waits for the last one to come.
    fn waits_for(
        &self,
        rank: usize,
        last: usize,
        number: usize,
        (from_ns, to_ns): (u64, u64),
        depth: usize,
        pieces: &mut Vec<CauseSpan>,
    ) {
        let excess = self.excess(rank, last, number, from_ns);
        // What the last rank did between two blocked times is one whole, to be divided among the causes once.
        let mut own: Option<(Activity, u64, u64)> = None;
        for stretch in self.history.ranks[last].lane_between(from_ns, to_ns) {
            let span = (stretch.from_ns, stretch.to_ns);
            if own_doing(stretch.activity) {
                own =
                    Some(own.map_or((stretch.activity, span.0, span.1), |(first, begins, _)| (first, begins, span.1)));
                continue;
            }
            if let Some((activity, begins, ends)) = own.take() {
                excess.spread(activity, (begins, ends), pieces);
            }
            match stretch.activity {
                Activity::Blocked(Some(operation)) => self.waits(last, operation, span, depth + 1, pieces),
                _ => pieces.push(CauseSpan { from_ns: span.0, to_ns: span.1, cause: Some(LossCause::Other) }),
            }
        }
        if let Some((activity, begins, ends)) = own {
            excess.spread(activity, (begins, ends), pieces);
        }
    }

    /// A rank that has ended, while others have not: what the last of these does decides.
    fn outlived(&self, rank: usize, (from_ns, to_ns): (u64, u64), pieces: &mut Vec<CauseSpan>) {
        let ends = |rank: usize| {
            let lane = &self.history.ranks[rank].lane;
            lane.iter().rfind(|stretch| stretch.activity != Activity::Ended).map_or(0, |stretch| stretch.to_ns)
        };
        let last = (0..self.history.size()).max_by_key(|&rank| (ends(rank), std::cmp::Reverse(rank)));
        let Some(last) = last.filter(|&last| last != rank) else {
            pieces.push(CauseSpan { from_ns, to_ns, cause: Some(LossCause::Other) });
            return;
        };
        for stretch in self.history.ranks[last].lane_between(from_ns, to_ns) {
            let span = (stretch.from_ns, stretch.to_ns);
            match stretch.activity {
                Activity::Blocked(_) | Activity::NotBegun | Activity::Ended => {
                    pieces.push(CauseSpan { from_ns: span.0, to_ns: span.1, cause: Some(LossCause::Other) });
                }
                activity => self.doing(last, activity, span, pieces),
            }
        }
    }

    /// The time before an operation begins: earlier ones are under way, or the ranks agree.
    fn before(&self, rank: usize, (from_ns, to_ns): (u64, u64), pieces: &mut Vec<CauseSpan>) {
        let mut at_ns = from_ns;
        let busy = &self.busy[rank];
        // An operation that began long ago may still be under way, but hardly more than a few at once.
        let first = busy.partition_point(|&(begun_ns, ..)| begun_ns < from_ns).saturating_sub(LOOK_BACK);
        for &(begun_ns, done_ns, earlier, passage) in &busy[first..] {
            if begun_ns >= to_ns {
                break;
            }
            let (begins, ends) = (begun_ns.clamp(at_ns, to_ns), done_ns.clamp(at_ns, to_ns));
            if begins == ends {
                continue;
            }
            pieces.push(CauseSpan { from_ns: at_ns, to_ns: begins, cause: Some(LossCause::Agreement) });
            stages(earlier, passage, (begins, ends), pieces);
            at_ns = ends;
        }
        pieces.push(CauseSpan { from_ns: at_ns, to_ns, cause: Some(LossCause::Agreement) });
    }

    /// How long a rank's engine was busy while its program was not blocked.
    fn overlapped_ns(&self, rank: usize) -> u64 {
        let (mut until_ns, mut overlapped_ns) = (0, 0);
        for &(begun_ns, done_ns, ..) in &self.busy[rank] {
            let from_ns = begun_ns.max(until_ns);
            if from_ns < done_ns {
                let working = |activity| !matches!(activity, Activity::Blocked(_) | Activity::Copy);
                let lane = self.history.ranks[rank].lane_between(from_ns, done_ns);
                overlapped_ns +=
                    lane.filter(|stretch| working(stretch.activity)).map(|stretch| stretch.ns()).sum::<u64>();
                until_ns = done_ns;
            }
        }
        overlapped_ns
    }
}

/// Whether a rank does this without waiting for others.
fn own_doing(activity: Activity) -> bool {
    matches!(activity, Activity::Compute | Activity::Own | Activity::Input | Activity::Checkpoint | Activity::Copy)
}

/// What others lose their time to while they wait for a rank that does this.
fn made_by(rank: usize, activity: Activity) -> LossCause {
    match activity {
        Activity::Input => LossCause::Input,
        Activity::Own => LossCause::Own,
        Activity::Checkpoint => LossCause::Checkpoint,
        Activity::Copy => LossCause::Packing,
        _ => LossCause::Late(rank),
    }
}

/// How many operations that began earlier are looked at for one that is still under way. Operations of one group follow
/// each other, so this is a bound on groups that a rank uses at once.
const LOOK_BACK: usize = 64;

/// The stages of an operation that has begun on this rank.
fn stages(operation: &OperationHistory, passage: &Passage, (from_ns, to_ns): (u64, u64), pieces: &mut Vec<CauseSpan>) {
    let stages = [
        (operation.begun_ns().min(passage.moved_ns), LossCause::Agreement),
        (operation.packed_ns().min(passage.moved_ns), LossCause::Packing),
        (passage.moved_ns, LossCause::Transfer),
        (passage.done_ns, LossCause::Packing),
        (to_ns, LossCause::Other),
    ];
    let mut at_ns = from_ns;
    for (end_ns, cause) in stages {
        let end_ns = end_ns.clamp(at_ns, to_ns);
        pieces.push(CauseSpan { from_ns: at_ns, to_ns: end_ns, cause: Some(cause) });
        at_ns = end_ns;
    }
}

/// Pieces without empty ones, neighbours with the same cause joined.
fn joined(pieces: Vec<CauseSpan>) -> Vec<CauseSpan> {
    let mut strip: Vec<CauseSpan> = Vec::new();
    for piece in pieces.into_iter().filter(|piece| piece.from_ns < piece.to_ns) {
        match strip.last_mut() {
            Some(last) if last.cause == piece.cause => last.to_ns = piece.to_ns,
            _ => strip.push(piece),
        }
    }
    strip
}
