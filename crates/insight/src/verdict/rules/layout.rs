//! Processes, threads and cores: whether the ranks of a host compete for cores.
//!
//! A rank records how many cores it may use, which ones, and with how many threads it computes. Ranks that share cores
//! compete for them; ranks that were pinned to cores of their own do not. What a better layout brings, a recording
//! cannot tell: it knows how long work took, not how long it would take with a core to itself.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Analysis, Finding, Recommendation, Topic};
use super::Proposal;
use crate::history::RankHistory;
use crate::loss::LossCause;
use farandole_trace::machine;

pub(super) fn crowded(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    is_foremost(analysis, finding).then(|| crowd(analysis)).flatten().map(Proposal::of)
}

/// Crowded cores show in many losses. They are spoken of once: at the largest of those that they can cause.
fn is_foremost(analysis: &Analysis<'_>, finding: &Finding) -> bool {
    let candidates = ["late", "agreement", "packing", "transfer", "other"];
    let largest = candidates.into_iter().max_by_key(|key| analysis.split.lost_ns(key));
    match &finding.topic {
        // Lateness may be two findings: one rank's, and the rest by turns.
        Topic::LateByTurns | Topic::Cause(LossCause::Late(_)) => {
            largest == Some("late") && 2 * finding.lost_ns >= analysis.split.lost_ns("late")
        }
        topic => largest == Some(topic.key()),
    }
}

/// The first host on which ranks have more threads than cores.
fn crowd(analysis: &Analysis<'_>) -> Option<Recommendation> {
    let mut hosts: BTreeMap<&str, Vec<&RankHistory>> = BTreeMap::new();
    for rank in analysis.history.recorded() {
        let rank = &analysis.history.ranks[rank];
        hosts.entry(rank.host.as_str()).or_default().push(rank);
    }
    hosts.into_values().find_map(|ranks| {
        let threads = ranks.iter().map(|rank| rank.threads).sum::<Option<usize>>()?;
        let cores = cores(&ranks)?;
        (threads > cores).then_some(Recommendation::FitThreads { ranks: ranks.len(), threads, cores })
    })
}

/// Cores that these ranks have together. Where each says which ones, those that any has; a limit of the control group,
/// which each counts in, holds for all ranks that have the same cores.
fn cores(ranks: &[&RankHistory]) -> Option<usize> {
    let mut sets: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for rank in ranks {
        let limit = sets.entry(rank.cpus.as_deref()).or_insert(usize::MAX);
        *limit = (*limit).min(rank.cores?);
    }
    let lists: Option<Vec<BTreeSet<usize>>> = sets.keys().map(|list| machine::cpus((*list)?)).collect();
    let limit: usize = sets.values().fold(0, |sum, limit| sum.saturating_add(*limit));
    match lists {
        Some(lists) if lists.len() > 1 => {
            Some(lists.into_iter().flatten().collect::<BTreeSet<usize>>().len().min(limit))
        }
        _ => sets.into_values().min(),
    }
}
