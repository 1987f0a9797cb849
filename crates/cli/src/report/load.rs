//! The history of a job out of a folder of traces.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use farandole_trace::Trace;
use farandole_trace::history::History;

/// Reads the traces of all ranks, brings their clocks together, and puts them together.
pub(crate) fn history(folder: &Path) -> Result<History> {
    let traces = Trace::read_folder(folder).map_err(|(path, error)| anyhow!("{}: {error}", path.display()))?;
    let built = History::from_traces(&traces, |trace, time_ns| on_common_clock(&traces, trace, time_ns));
    built.with_context(|| format!("reading the traces in {}", folder.display()))
}

/// A time of one trace on the clock of the first. Ranks of one host read the same clock; those of others go by the time of day.
fn on_common_clock(traces: &[Trace], trace: usize, time_ns: u64) -> u64 {
    let (first, own) = (&traces[0].header, &traces[trace].header);
    if own.clock == first.clock {
        return time_ns;
    }
    let unix_ns = i128::from(time_ns) - i128::from(own.anchor_ns) + i128::from(own.anchor_unix_ns);
    u64::try_from(unix_ns - i128::from(first.anchor_unix_ns) + i128::from(first.anchor_ns)).unwrap_or(0)
}
