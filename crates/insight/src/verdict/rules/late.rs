//! Ranks that take longer for their work than the others.

use super::super::{Analysis, Finding, Recommendation, Topic};
use super::Proposal;
use crate::loss::LossCause;
use crate::replay::Change;

/// In how many of the iterations a rank is late at most for it to be something else than a slow rank.
const RARELY: f64 = 0.2;

/// Share of the run in which a main thread must have waited for a core for that to be why its rank is late.
const WAITS_FOR_CORES: f64 = 0.1;

/// How many times as long as those of the others.
const FAR_LONGER: f64 = 2.0;

fn rank(finding: &Finding) -> Option<usize> {
    if let Topic::Cause(LossCause::Late(rank)) = finding.topic { Some(rank) } else { None }
}

/// Whether a rank is late in few iterations only.
fn rarely(finding: &Finding) -> bool {
    let evidence = &finding.evidence;
    evidence.iterations >= 5 && (evidence.iterations_hit as f64) < RARELY * evidence.iterations as f64
}

pub(super) fn slow_rank(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let late = rank(finding).filter(|_| !rarely(finding))?;
    let recommendation = free_cores(analysis, late).unwrap_or_else(|| examine(analysis, late, finding.phase.clone()));
    Some(Proposal::gaining(recommendation, analysis.gain(&[Change::NotLate(late)])))
}

fn examine(analysis: &Analysis<'_>, late: usize, phase: Option<String>) -> Recommendation {
    let ranks = &analysis.history.ranks;
    let others: Vec<u64> =
        analysis.history.recorded().filter(|&rank| rank != late).map(|rank| ranks[rank].useful_ns()).collect();
    let others_useful_ns = others.iter().sum::<u64>() / others.len().max(1) as u64;
    let (location, useful_ns) = (analysis.location(late), ranks[late].useful_ns());
    Recommendation::ExamineSlowRank { rank: late, location, useful_ns, others_useful_ns, phase }
}

/// For a late rank whose main thread had to wait for a core, when those of the others did not.
fn free_cores(analysis: &Analysis<'_>, late: usize) -> Option<Recommendation> {
    let share = analysis.history.ranks[late].core_wait?;
    let others: Option<Vec<f64>> = analysis
        .history
        .recorded()
        .filter(|&rank| rank != late)
        .map(|rank| analysis.history.ranks[rank].core_wait)
        .collect();
    let others = others.filter(|others| !others.is_empty())?;
    let mean = others.iter().sum::<f64>() / others.len() as f64;
    (share >= WAITS_FOR_CORES && share >= FAR_LONGER * mean).then(|| Recommendation::FreeCores {
        rank: late,
        location: analysis.location(late),
        waited_percent: 100.0 * share,
        others_waited_percent: 100.0 * mean,
    })
}

pub(super) fn rare_and_long(analysis: &Analysis<'_>, finding: &Finding) -> Option<Proposal> {
    let rank = rank(finding).filter(|_| rarely(finding))?;
    Some(Proposal::gaining(Recommendation::MarkPhase { rank }, analysis.gain(&[Change::NotLate(rank)])))
}

pub(super) fn uneven_work(analysis: &Analysis<'_>, _: &Finding) -> Option<Proposal> {
    Some(Proposal::gaining(Recommendation::BalanceBatches, analysis.gain(&[Change::Balanced])))
}
