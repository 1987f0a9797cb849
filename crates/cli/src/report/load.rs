//! The history of a job out of a folder of traces.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use farandole_trace::Trace;
use farandole_trace::align::{Fit, align};
use farandole_trace::history::History;

/// Reads the traces of all ranks, brings their clocks together, and puts them together.
pub(crate) fn history(folder: &Path) -> Result<History> {
    let traces = Trace::read_folder(folder).map_err(|(path, error)| anyhow!("{}: {error}", path.display()))?;
    let fits = align(&traces);
    let built = History::from_traces(&traces, |trace, time_ns| fits[trace].apply(time_ns));
    let mut history = built.with_context(|| format!("reading the traces in {}", folder.display()))?;
    history.clock_error_ns = apart_ns(&fits);
    for (rank, _) in fits.iter().enumerate().filter(|(_, fit)| fit.error_ns.is_none()) {
        eprintln!(
            "farandole: nothing tells how the clock of rank {rank} stands to the others: its times may be anywhere"
        );
    }
    Ok(history)
}

/// How far the clocks of two ranks may be apart: what the two worst are off together.
fn apart_ns(fits: &[Fit]) -> u64 {
    let mut errors: Vec<u64> = fits.iter().filter_map(|fit| fit.error_ns).collect();
    errors.sort_unstable();
    errors.iter().rev().take(2).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clocks_are_apart_by_the_errors_of_both() {
        let fit = |error_ns| Fit { error_ns, ..Fit::REFERENCE };
        assert_eq!(apart_ns(&[fit(Some(0)), fit(Some(700)), fit(None), fit(Some(900))]), 1600);
    }
}
