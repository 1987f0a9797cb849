//! Ranks that take longer for their work than the others.

use super::super::{Case, Finding, Topic, percent_text, time_text};
use super::Saying;
use crate::loss::Cause;
use crate::replay::Change;

/// In how many of the iterations a rank is late at most for it to be something else than a slow rank.
const RARELY: f64 = 0.2;

/// Share of the run in which a main thread must have waited for a core for that to be why its rank is late.
const WAITS_FOR_CORES: f64 = 0.1;

/// How many times as long as those of the others.
const FAR_LONGER: f64 = 2.0;

fn rank(finding: &Finding) -> Option<usize> {
    if let Topic::Cause(Cause::Late(rank)) = finding.topic { Some(rank) } else { None }
}

/// Whether a rank is late in few iterations only.
fn rarely(finding: &Finding) -> bool {
    let evidence = &finding.evidence;
    evidence.iterations >= 5 && (evidence.iterations_hit as f64) < RARELY * evidence.iterations as f64
}

pub(super) fn slow_rank(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let late = rank(finding).filter(|_| !rarely(finding))?;
    let ranks = &case.history.ranks;
    let others: Vec<u64> =
        case.history.recorded().filter(|&rank| rank != late).map(|rank| ranks[rank].useful_ns()).collect();
    let mean_ns = others.iter().sum::<u64>() / others.len().max(1) as u64;
    let host = ranks[late].host_name();
    if let Some(saying) = pushed_aside(case, late) {
        return Some(saying);
    }
    let more = match finding.phase.as_deref() {
        Some(phase @ "evaluation") => {
            format!("It takes longer in “{phase}”: give every rank the same share of what is evaluated.")
        }
        Some(phase) => format!(
            "It takes longer in “{phase}”: see whether it has more to do there (a larger batch, longer samples, code for this rank alone) or a \
             slower device."
        ),
        None => "See whether it has more to do (a larger batch, longer samples, code for this rank alone) or a slower device."
            .to_owned(),
    };
    let change = format!(
        "Rank {late} on {host} works {} where the others need {}. {more}",
        time_text(ranks[late].useful_ns()),
        time_text(mean_ns)
    );
    Some(Saying::new(change, &[&case.doctor(late)]).gaining(case.gain(&[Change::NotLate(late)])))
}

/// What is said of a late rank whose main thread had to wait for a core, and the others' did not.
fn pushed_aside(case: &Case<'_>, late: usize) -> Option<Saying> {
    let share = case.history.ranks[late].core_wait?;
    let others: Option<Vec<f64>> =
        case.history.recorded().filter(|&rank| rank != late).map(|rank| case.history.ranks[rank].core_wait).collect();
    let others = others.filter(|others| !others.is_empty())?;
    let mean = others.iter().sum::<f64>() / others.len() as f64;
    if share < WAITS_FOR_CORES || share < FAR_LONGER * mean {
        return None;
    }
    let change = format!(
        "The main thread of rank {late} on {} had no core in {} of the run although it could have run, those of the others in {}: another program \
         is on its cores. Move that elsewhere, or give the rank cores of its own.",
        case.history.ranks[late].host_name(),
        percent_text(100.0 * share),
        percent_text(100.0 * mean)
    );
    Some(Saying::new(change, &[&case.doctor(late)]).gaining(case.gain(&[Change::NotLate(late)])))
}

pub(super) fn rare_and_long(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let late = rank(finding).filter(|_| rarely(finding))?;
    let change = format!(
        "Rank {late} is late in few iterations, but long: it does something there that the others do not (evaluation, logging, a \
         checkpoint). Mark it as a phase and this report names it; then share it or move it elsewhere."
    );
    let how = ["python: with farandole.phase(\"evaluate\"): …"];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::NotLate(late)])))
}

pub(super) fn uneven_work(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    let change = "Another rank is the last one every time: work differs from batch to batch. Give all ranks batches of the same cost \
                  (sort or bucket samples by length), and keep other programs off their cores.";
    Some(Saying::new(change, &[]).gaining(case.gain(&[Change::Balanced])))
}
