//! Who waits for whom, and since when.
//!
//! [`report`] is given what the coordinator knows: each name that some ranks have asked for and others have not. What
//! waits too long is explained in the words that Horovod's users know, followed by what they rarely find out by
//! themselves: that a missing rank waits for a name that is almost the same, or that a rank has asked for nothing at
//! all.
//!
//! Only the missing ranks know what they are doing. The coordinator asks them (`probe`), they report their status
//! (`rank_status`), and all ranks get one report in the same words (`words`). Direct calls have no coordinator: the
//! ranks that wait in them report it (`direct`).
//!
//! During replay the coordinator knows nothing; a replayed bucket that does not finish is therefore broken off after
//! [`Settings::run_limit`](crate::agree::Settings::run_limit) and negotiated, which brings it here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::request::Rank;

mod direct;
mod lacking;
mod probe;
mod rank_status;
mod words;

pub use direct::DirectWait;
pub use lacking::{Omission, UnevenGroups};
pub use probe::{PATIENCE, Places, Sight, StallProbe, Testimony};
pub use rank_status::{
    DirectCall, GroupState, Interpreter, Lately, MainThread, RankStatus, RunningBucket, StallFinding, ThreadStack, Word,
};
pub(crate) use words::no_gradient;

/// When waiting becomes a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// Waiting longer than this is reported.
    pub warn_after: Duration,
    /// Waiting longer than this should end the job; zero means never.
    pub shut_down_after: Duration,
}

impl Default for StallLimits {
    /// Horovod's defaults: a warning after a minute, no end.
    fn default() -> StallLimits {
        StallLimits { warn_after: Duration::from_secs(60), shut_down_after: Duration::ZERO }
    }
}

/// One request that some ranks have made and others have not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The tensor's name.
    pub name: Arc<str>,
    /// When the first rank announced it.
    pub since: Duration,
    /// Ranks of the group that have not announced it.
    pub missing: Vec<Rank>,
    /// Ranks of the group that have announced it, and wait.
    pub asked: Vec<Rank>,
    /// Whether all ranks have asked for this name before.
    pub has_run: bool,
    /// How many operations had finished on a rank when it asked; of several ranks the greatest.
    pub seen: u64,
}

/// A stall, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The requests that have waited too long, longest first.
    pub stalled: Vec<Waiting>,
    /// Names that wait, too, but not for so long. They are most likely part of the same stall, and not worth another
    /// report.
    pub also_waiting: Vec<Arc<str>>,
    /// Ranks that have gone on without a request that others wait for.
    pub omissions: Vec<Omission>,
    /// Groups of which ranks have asked for different numbers of tensors.
    pub uneven_groups: Vec<UnevenGroups>,
    /// Names that may have been meant to be the same: one that waits, and one that a rank missing there has asked for.
    pub near_misses: Vec<NearMiss>,
    /// Ranks that wait for each other under different names.
    pub crossings: Vec<Crossing>,
    /// How long the first of `stalled` has waited.
    pub waited: Duration,
    /// Whether one has waited so long that the job should end.
    pub shut_down: bool,
    /// The explanation.
    pub text: String,
}

/// Two names that look alike, each waiting for ranks that have asked for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// The name that waits.
    pub name: Arc<str>,
    /// The rank of the group that it waits for.
    pub rank: Rank,
    /// What that rank has asked for instead.
    pub instead: Arc<str>,
}

/// Two ranks that wait for each other: each has asked for a name that the other has not asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The name that waits.
    pub name: Arc<str>,
    /// The rank of the group that it waits for.
    pub rank: Rank,
    /// What that rank has asked for.
    pub instead: Arc<str>,
    /// The rank that has asked for the first and not for the second.
    pub other: Rank,
}

/// Names of one rank that are listed before the rest becomes "...", as in Horovod.
const NAMES_LISTED: usize = 6;

/// Near misses that are listed; more would hide the first.
const NEAR_MISSES_LISTED: usize = 5;

/// Explains what has waited too long; `None` if nothing has. `world_ranks` as in
/// [`Settings`](crate::agree::Settings::world_ranks).
pub fn report(waiting: Vec<Waiting>, limits: &StallLimits, world_ranks: &[Rank], now: Duration) -> Option<Report> {
    let waited = |request: &Waiting| now.saturating_sub(request.since);
    let mut stalled: Vec<Waiting> = waiting.iter().filter(|r| waited(r) > limits.warn_after).cloned().collect();
    if stalled.is_empty() {
        return None;
    }
    stalled.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
    let ends = limits.shut_down_after > limits.warn_after;
    let mut by_rank: BTreeMap<Rank, (bool, Vec<&str>)> = BTreeMap::new();
    for request in &stalled {
        for rank in &request.missing {
            let (overdue, names) = by_rank.entry(*rank).or_default();
            *overdue |= ends && waited(request) > limits.shut_down_after;
            names.push(&request.name);
        }
    }
    let shut_down = by_rank.values().any(|(overdue, _)| *overdue);
    let omissions = lacking::omissions(&stalled, &waiting);
    let uneven_groups = lacking::uneven_groups(&stalled, &waiting);
    let is_omitted = |name: &Arc<str>, rank: Rank| omissions.iter().any(|o| o.name == *name && o.rank == rank);
    let mut near_misses = near_misses(&stalled, &waiting);
    let is_uneven = |name: &str| {
        let group = lacking::group_of(name);
        group.is_some_and(|(group, _)| uneven_groups.iter().any(|uneven| &*uneven.name == group))
    };
    near_misses.retain(|near_miss| !is_omitted(&near_miss.name, near_miss.rank) && !is_uneven(&near_miss.name));
    let mut crossings = crossings(&stalled, &waiting);
    crossings.retain(|crossing| !is_omitted(&crossing.name, crossing.rank));
    let recent = waiting.iter().filter(|r| waited(r) <= limits.warn_after && !r.missing.is_empty());
    let also_waiting = recent.map(|request| Arc::clone(&request.name)).collect();
    let waited = waited(&stalled[0]);
    let text = explain(&by_rank, &near_misses, limits, world_ranks, waited);
    Some(Report { also_waiting, omissions, uneven_groups, waited, near_misses, crossings, shut_down, text, stalled })
}

fn explain(
    by_rank: &BTreeMap<Rank, (bool, Vec<&str>)>,
    near_misses: &[NearMiss],
    limits: &StallLimits,
    world_ranks: &[Rank],
    longest: Duration,
) -> String {
    let world = |rank: Rank| world_ranks.get(rank.index()).copied().unwrap_or(rank);
    let mut text = format!(
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for \
         remainder of ranks for more than {} seconds. The oldest has waited for {} seconds. Either ranks submit \
         different tensors, or some do not submit any more.\nMissing ranks:",
        limits.warn_after.as_secs(),
        longest.as_secs()
    );
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        text.push('\n');
        text.write_fmt(arguments).expect("a string takes everything");
    };
    for (rank, (overdue, names)) in by_rank {
        let mark = if *overdue { "!" } else { "" };
        let more = if names.len() > NAMES_LISTED { " ..." } else { "" };
        let listed = names[..names.len().min(NAMES_LISTED)].join(", ");
        line(format_args!("{}{mark}: [{listed}{more}]", world(*rank)));
    }
    for near_miss in near_misses.iter().take(NEAR_MISSES_LISTED) {
        let NearMiss { name, rank, instead } = near_miss;
        line(format_args!("Rank {} has not submitted {name:?} but {instead:?}. Is it the same tensor?", world(*rank)));
    }
    if by_rank.values().any(|(overdue, _)| *overdue) {
        let limit = limits.shut_down_after.as_secs();
        line(format_args!("Ranks marked by \"!\" are missing for more than {limit} seconds. Will shutdown."));
    }
    text
}

/// For each stalled name the most similar name, if any is similar, that a missing rank has asked for and that is itself
/// waiting for a rank that has asked for the first.
fn near_misses(stalled: &[Waiting], waiting: &[Waiting]) -> Vec<NearMiss> {
    let mut found = Vec::new();
    for request in stalled.iter().filter(|request| !request.has_run) {
        for rank in &request.missing {
            let asked_by_rank = waiting
                .iter()
                .filter(|other| !other.has_run && !other.missing.contains(rank) && !other.missing.is_empty());
            let nearest = asked_by_rank
                .filter_map(|other| Some((unlikeness(&request.name, &other.name)?, &other.name)))
                .min_by(|a, b| a.cmp(b));
            if let Some((_, instead)) = nearest {
                found.push(NearMiss { name: Arc::clone(&request.name), rank: *rank, instead: Arc::clone(instead) });
            }
        }
    }
    found
}

/// For each stalled name and missing rank the oldest name that goes the other way, if there is one.
fn crossings(stalled: &[Waiting], waiting: &[Waiting]) -> Vec<Crossing> {
    let mut found = Vec::new();
    for request in stalled {
        for rank in &request.missing {
            let back = waiting.iter().filter(|other| !other.missing.contains(rank)).filter_map(|other| {
                let lacking = other.missing.iter().find(|lacking| !request.missing.contains(lacking))?;
                Some((other.since, &other.name, *lacking))
            });
            if let Some((_, instead, other)) = back.min() {
                found.push(Crossing {
                    name: Arc::clone(&request.name),
                    rank: *rank,
                    instead: Arc::clone(instead),
                    other,
                });
            }
        }
    }
    found
}

/// How many letters must be changed, added or left out to turn one name into the other, if so few that they look alike:
/// up to a quarter of the longer name. One that ends with the other is as near as can be: only a prefix is missing.
fn unlikeness(a: &str, b: &str) -> Option<usize> {
    if a == b {
        return None;
    }
    let is_suffix = |long: &str, short: &str| !short.is_empty() && long.ends_with(short);
    if is_suffix(a, b) || is_suffix(b, a) {
        return Some(0);
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let allowed = a.len().max(b.len()) / 4;
    if a.len().abs_diff(b.len()) > allowed {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(name: &str, since_s: u64, missing: &[u32]) -> Waiting {
        let missing = missing.iter().map(|rank| Rank(*rank)).collect();
        Waiting { name: name.into(), since: Duration::from_secs(since_s), missing, ..Waiting::default() }
    }

    const LIMITS: StallLimits =
        StallLimits { warn_after: Duration::from_secs(60), shut_down_after: Duration::from_secs(100) };

    #[test]
    fn nothing_is_reported_before_its_time() {
        assert_eq!(report(vec![waiting("a", 0, &[1])], &LIMITS, &[], Duration::from_secs(60)), None);
    }

    #[test]
    fn each_missing_rank_gets_a_line_with_up_to_six_names() {
        let many = (0..7).map(|n| waiting(&format!("tensor{n}"), 5, &[2])).collect();
        let report = report(many, &LIMITS, &[Rank(0), Rank(3), Rank(7)], Duration::from_secs(70)).unwrap();
        assert!(!report.shut_down);
        let line = "\n7: [tensor0, tensor1, tensor2, tensor3, tensor4, tensor5 ...]";
        assert!(report.text.contains(line), "{}", report.text);
        assert!(report.text.starts_with("One or more tensors were submitted to be reduced"));
    }

    #[test]
    fn overdue_ranks_are_marked() {
        let report =
            report(vec![waiting("a", 0, &[1]), waiting("b", 50, &[2])], &LIMITS, &[], Duration::from_secs(120));
        let report = report.unwrap();
        assert!(report.shut_down);
        assert!(report.text.contains("\n1!: [a]") && report.text.contains("\n2: [b]"), "{}", report.text);
    }

    #[test]
    fn names_that_were_meant_to_be_the_same_are_pointed_out() {
        let table = vec![waiting("grad/layer1.weight", 0, &[1]), waiting("grad/layer1.weigth", 1, &[0])];
        let report = report(table, &LIMITS, &[], Duration::from_secs(90)).unwrap();
        assert_eq!(report.near_misses.len(), 2);
        assert_eq!(&*report.near_misses[0].instead, "grad/layer1.weigth");
        assert!(report.text.contains("Is it the same tensor?"));
        assert_eq!(unlikeness("allreduce.x", "x"), Some(0));
        assert_eq!(unlikeness("alpha", "omega"), None);
    }
}
