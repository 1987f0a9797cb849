//! `farandole timeline`: the traces of a run as one timeline, for a viewer.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use farandole_insight::align::put_on_one_clock;
use farandole_insight::timeline;
use farandole_trace::{Trace, TraceEnding, Unreadable};

/// Put the traces of all ranks into one timeline, on one clock.
///
/// Open the file at ui.perfetto.dev or chrome://tracing. Each rank is a process there, its threads are rows with the
/// phases of the program, and the collectives of each group have a row of their own.
#[derive(Args, Clone, Debug)]
pub(crate) struct TimelineArgs {
    /// The folder with the traces, as `farandole run --trace DIR` leaves it.
    folder: PathBuf,

    /// The file to write; `-` writes to standard output.
    #[arg(long, short = 'o', default_value = "timeline.json", value_name = "FILE")]
    output: PathBuf,
}

/// Reads, aligns, writes.
pub(crate) fn run(args: &TimelineArgs) -> Result<()> {
    let (mut traces, spoilt) =
        Trace::read_folder(&args.folder).map_err(|(path, error)| anyhow::anyhow!("{}: {error}", path.display()))?;
    for Unreadable { path, error } in spoilt {
        eprintln!("farandole: {} is passed over: {error}", path.display());
    }
    let fits = put_on_one_clock(&mut traces);
    for (trace, fit) in traces.iter().zip(&fits) {
        let rank = trace.header.rank;
        if let TraceEnding::Damaged { at_byte } = trace.ending {
            eprintln!(
                "farandole: rank {rank}: its trace is damaged from byte {at_byte} on; what stands before is shown"
            );
        }
        if trace.dropped > 0 {
            let dropped = trace.dropped;
            eprintln!("farandole: rank {rank}: {dropped} records were overwritten before they could be written");
        }
        if fit.error_ns.is_none() {
            eprintln!(
                "farandole: rank {rank} shares no collective with the others; it is shown by its host's time of day"
            );
        }
    }
    let mut out: Box<dyn Write> = match args.output.as_os_str() {
        dash if dash == "-" => Box::new(std::io::stdout()),
        _ => Box::new(File::create(&args.output).with_context(|| format!("creating {}", args.output.display()))?),
    };
    let mut buffer = BufWriter::new(&mut out);
    timeline::write(&traces, &fits, &mut buffer).and_then(|()| buffer.flush()).context("writing the timeline")
}
