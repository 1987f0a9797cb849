//! The history of a job out of a folder of traces.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use farandole_insight::align::{ClockFit, put_on_one_clock};
use farandole_insight::efficiency::Efficiencies;
use farandole_insight::generations::Generations;
use farandole_insight::history::{History, Lack};
use farandole_insight::trouble::Trouble;
use farandole_trace::{Trace, Unreadable};

/// What a folder of traces is about.
pub(crate) struct Loaded {
    /// What the ranks did; in an elastic job those of one generation, between recoveries.
    pub(crate) history: History,
    /// All generations of an elastic job.
    pub(crate) generations: Option<Generations>,
}

/// The stall or failure on which the traces in a folder were dumped, if they were.
pub(crate) fn trouble(folder: &Path) -> Result<Option<Trouble>> {
    let (traces, _) = Trace::read_folder(folder).map_err(|(path, error)| anyhow!("{}: {error}", path.display()))?;
    Ok(Trouble::of(&traces))
}

/// The history of a job; of an elastic one the generation with most iterations.
pub(crate) fn history(folder: &Path) -> Result<History> {
    Ok(job(folder, None)?.history)
}

/// Reads the traces of all ranks, brings their clocks together, and puts them together. What is missing is noted in the
/// history and, for those who read no more than standard error, said there. Of an elastic job the generation with this
/// number is looked at.
pub(crate) fn job(folder: &Path, generation: Option<u64>) -> Result<Loaded> {
    let (mut traces, spoilt) =
        Trace::read_folder(folder).map_err(|(path, error)| anyhow!("{}: {error}", path.display()))?;
    let fits = put_on_one_clock(&mut traces);
    for (trace, _) in traces.iter().zip(&fits).filter(|(_, fit)| fit.error_ns.is_none()) {
        let rank = trace.header.rank;
        eprintln!(
            "farandole: nothing tells how the clock of rank {rank} stands to the others: its times may be anywhere"
        );
    }
    let is_elastic = traces.iter().any(|trace| trace.header.generation() > 0);
    let reading = || format!("reading the traces in {}", folder.display());
    let mut loaded = if is_elastic {
        one_of(traces, generation).with_context(reading)?
    } else {
        ensure!(generation.is_none(), "--generation is for elastic jobs, and the traces are of one with a fixed size");
        let history = History::from_traces(&traces, |_, time_ns| time_ns).with_context(reading)?;
        Loaded { history, generations: None }
    };
    loaded.history.clock_error_ns = apart_ns(&fits);
    complain(&mut loaded.history, spoilt);
    Ok(loaded)
}

/// One generation of an elastic job: the one with this number, or the one with most iterations of all ranks together;
/// where none are marked, with most time.
fn one_of(traces: Vec<Trace>, wanted: Option<u64>) -> Result<Loaded> {
    let (mut generations, parts) = Generations::split(traces);
    let mut most: Option<((u64, u64), u64, History)> = None;
    for (generation, part) in generations.list.iter_mut().zip(parts) {
        // Of a generation that was over at once nothing is left between recoveries.
        let Ok(history) = History::from_traces(&part, |_, time_ns| time_ns) else { continue };
        generation.efficiency = Some(Efficiencies::of(&history).parallel).filter(|_| history.end_ns > 0);
        let number = generation.number;
        let weight = ((history.iterations() * history.recorded_size()) as u64, history.total_ns());
        let counts = wanted.is_none_or(|wanted| wanted == number);
        if counts && most.as_ref().is_none_or(|(most, ..)| weight > *most) {
            most = Some((weight, number, history));
        }
    }
    let numbers: Vec<String> = generations.list.iter().map(|generation| generation.number.to_string()).collect();
    let (_, shown, history) = most.ok_or_else(|| match wanted {
        Some(wanted) => anyhow!(
            "there is nothing of generation {wanted} between recoveries; there are traces of {}",
            numbers.join(", ")
        ),
        None => anyhow!("the traces are empty"),
    })?;
    generations.shown = shown;
    Ok(Loaded { history, generations: Some(generations) })
}

/// Says what is missing.
fn complain(history: &mut History, spoilt: Vec<Unreadable>) {
    for unreadable in spoilt {
        let Unreadable { path, error } = &unreadable;
        let gap = history.gaps.iter_mut().find(|gap| Some(gap.rank) == unreadable.rank());
        match gap {
            Some(gap) if gap.lack == Lack::Everything => gap.why = format!("{}: {error}", path.display()),
            _ => eprintln!("farandole: {} is passed over: {error}", path.display()),
        }
    }
    if let Some(gap) = history.gaps.first() {
        let more =
            if history.gaps.len() > 1 { format!(" (and {} more)", history.gaps.len() - 1) } else { String::new() };
        eprintln!("farandole: the recording is incomplete: {gap}{more}");
    }
}

/// How far the clocks of two ranks may be apart: what the two worst are off together.
fn apart_ns(fits: &[ClockFit]) -> u64 {
    let mut errors: Vec<u64> = fits.iter().filter_map(|fit| fit.error_ns).collect();
    errors.sort_unstable();
    errors.iter().rev().take(2).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clocks_are_apart_by_the_errors_of_both() {
        let fit = |error_ns| ClockFit { error_ns, ..ClockFit::REFERENCE };
        assert_eq!(apart_ns(&[fit(Some(0)), fit(Some(700)), fit(None), fit(Some(900))]), 1600);
    }
}
