//! `farandole data point`: one point of a study of the input pipeline, measured in a process of its own.
//!
//! Whoever starts it says where the figures go, as JSON. Not for people: `farandole data bench` is.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use farandole_data::loader::{Content, Pixels};
use farandole_data::transform::{Element, Layout, STEP_WORDS, steps};

use super::measure::{Point, measure};
use super::{Opened, SourceArgs, is_remote};

/// Measure one point of a study.
#[derive(Args, Debug)]
pub(super) struct PointArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// What is done to images
    #[arg(long)]
    transform: String,
    /// Samples of a batch
    #[arg(long)]
    batch: usize,
    /// Threads
    #[arg(long)]
    workers: usize,
    /// Batches ahead
    #[arg(long)]
    prefetch: usize,
    /// How long it is measured
    #[arg(long)]
    seconds: f64,
    /// Whether files are read from the disk, or over the network, anew
    #[arg(long)]
    cold: bool,
    /// Where the figures go
    #[arg(long)]
    figures: PathBuf,
}

/// What is done to images, from the words of the command line.
pub(super) fn pixels(transform: &str) -> Result<Pixels> {
    let words = steps(transform).map_err(|why| anyhow!("--transform: {why}\nWords are: {STEP_WORDS}"))?;
    Pixels::new(words, 3, Element::F32, Layout::Nchw).map_err(|why| anyhow!("--transform: {why}"))
}

pub(super) fn run(args: &PointArgs) -> Result<ExitCode> {
    ensure!(args.seconds > 0.0 && args.seconds.is_finite(), "--seconds: more than 0");
    let content = Content::Images(pixels(&args.transform)?);
    let opened = args.source.open()?;
    ensure!(!opened.records.is_empty(), "{}: there is nothing to read", opened.title());
    eprintln!("{}", opened.title());
    let limit = Duration::from_secs_f64(args.seconds);
    let point =
        Point { content, workers: args.workers, batch: args.batch, prefetch: args.prefetch, limit, once: args.cold };
    prepare(&opened, args, &point)?;
    let measured = measure(&opened.records, &point)?;
    let text = serde_json::to_string_pretty(&measured).context("the figures as JSON")?;
    std::fs::write(&args.figures, text).with_context(|| format!("writing {}", args.figures.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Warm: the same samples were read just before. Cold: the kernel has forgotten the files; what lies elsewhere was
/// never here.
fn prepare(opened: &Opened, args: &PointArgs, point: &Point) -> Result<()> {
    match (args.cold, is_remote(&args.source.source)) {
        (true, true) => Ok(()),
        (true, false) => opened.forget(),
        (false, _) => {
            measure(&opened.records, &Point { content: Content::Encoded, once: true, ..point.clone() }).map(drop)
        }
    }
}
