//! The history of a job out of a folder of traces.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use farandole_insight::align::{ClockFit, align};
use farandole_insight::history::{History, Lack};
use farandole_trace::{Trace, Unreadable};

/// Reads the traces of all ranks, brings their clocks together, and puts them together. What is missing is noted in the
/// history and, for those who read no more than standard error, said there.
pub(crate) fn history(folder: &Path) -> Result<History> {
    let (traces, spoilt) =
        Trace::read_folder(folder).map_err(|(path, error)| anyhow!("{}: {error}", path.display()))?;
    let fits = align(&traces);
    let built = History::from_traces(&traces, |trace, time_ns| fits[trace].apply(time_ns));
    let mut history = built.with_context(|| format!("reading the traces in {}", folder.display()))?;
    history.clock_error_ns = apart_ns(&fits);
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
    for (trace, _) in traces.iter().zip(&fits).filter(|(_, fit)| fit.error_ns.is_none()) {
        let rank = trace.header.rank;
        eprintln!(
            "farandole: nothing tells how the clock of rank {rank} stands to the others: its times may be anywhere"
        );
    }
    Ok(history)
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
