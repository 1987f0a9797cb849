//! `farandole data convert`: the command line, the bar, and the words at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use farandole_data::convert::{Conversion, ConversionProgress, ImageChange, TargetFormat, convert};
use farandole_data::source::Records;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::{SourceArgs, bar, cores, counted};

/// Write a data set as shards of another format, once and offline.
///
/// Every shard is read back and compared. A conversion that was interrupted goes on where it ended when the same
/// command is given again.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  farandole data convert photos shards --to tar --shards 64
  farandole data convert photos small --to tfrecord --shards 64 --resize 256 --shuffle 1
  farandole data convert 'shards-{000..063}.tar' images --to folder")]
pub(super) struct ConvertArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The folder for the result; empty, or with a part of the same conversion
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: To,

    /// How many files; a multiple of the number of readers is sensible [default: one for each 256 MB, 1 at least]
    #[arg(long, value_name = "NUMBER")]
    shards: Option<usize>,

    /// Reduce images to this shorter side and encode them as JPEG anew; smaller ones stay as they are
    #[arg(long, value_name = "PIXELS")]
    resize: Option<usize>,

    /// Quality of images that are encoded anew
    #[arg(long, value_name = "1-100", default_value_t = 90, requires = "resize")]
    quality: u8,

    /// Decode images, and write their pixels: many times larger, and nothing is left to decode
    #[arg(long)]
    decode: bool,

    /// Shuffle the records before they are divided into shards, by this seed
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,

    /// Shards that are written at the same time [default: the number of cores]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,

    /// Leave out records that cannot be read, and name them, instead of ending at the first
    #[arg(long)]
    skip_broken: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    Tar,
    Tfrecord,
    Parquet,
    Folder,
}

/// Bytes of a shard where their number is not given: large enough for storage to stream, small enough for many readers.
const SHARD_BYTES: u64 = 256 << 20;

/// Records whose size is looked at to guess that of all.
const SAMPLED: usize = 100;

pub(super) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let opened = args.source.open()?;
    let (records, title) = (&opened.records, opened.title());
    let conversion = args.conversion(&**records)?;
    match args.to {
        To::Folder => eprintln!("farandole: {title}, becomes a folder of images"),
        to => {
            let format = to.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            eprintln!("farandole: {title}, becomes {}", counted(conversion.shards, &format!("{format} file")));
        }
    }
    let stop = stop_on_signals()?;
    let bar = bar("{bar:24} {pos}/{len} records, {msg}/s, {eta} left");
    let begun = Instant::now();
    let told = |progress: ConversionProgress| {
        let rate = progress.bytes as f64 / begun.elapsed().as_secs_f64().max(1e-3);
        bar.set_message(indicatif::DecimalBytes(rate as u64).to_string());
        bar.set_length(progress.all as u64);
        bar.set_position(progress.records as u64);
    };
    let converted = convert(&**records, &conversion, &told, &stop);
    bar.finish_and_clear();
    let converted = converted.map_err(|error| anyhow!("{error}"))?;
    for broken in &converted.left_out {
        eprintln!("farandole: left out: {broken}");
    }
    if converted.is_stopped {
        eprintln!(
            "farandole: stopped; {} of {} shards are complete, and the same command goes on from there",
            converted.shards + converted.kept_shards,
            conversion.shards
        );
        return Ok(ExitCode::from(130));
    }
    let kept = match converted.kept_shards {
        0 => String::new(),
        kept => format!(" ({} {} complete before)", counted(kept, "more file"), if kept == 1 { "was" } else { "were" }),
    };
    eprintln!(
        "farandole: {}, {} in {}{kept}, read back and compared, in {:.1} s{}",
        counted(converted.records, "record"),
        indicatif::DecimalBytes(converted.written_bytes),
        counted(converted.shards, "file"),
        begun.elapsed().as_secs_f64(),
        match converted.left_out.len() {
            0 => String::new(),
            left_out => format!("; {} left out", counted(left_out, "record")),
        }
    );
    Ok(ExitCode::SUCCESS)
}

impl ConvertArgs {
    fn conversion(&self, records: &dyn Records) -> Result<Conversion> {
        let to = match self.to {
            To::Tar => TargetFormat::Tar,
            To::Tfrecord => TargetFormat::TfRecord,
            To::Parquet => TargetFormat::Parquet,
            To::Folder => TargetFormat::Folder,
        };
        if to == TargetFormat::Folder && self.shards.is_some_and(|shards| shards != 1) {
            bail!("--shards: a folder of images is one; leave out --shards");
        }
        let change = match (self.resize, self.decode) {
            (None, false) => ImageChange::Nothing,
            (Some(shorter_side), false) => ImageChange::Reduce { shorter_side, quality: self.quality },
            (shorter_side, true) => ImageChange::Decode { shorter_side },
        };
        let shards = match (to, self.shards) {
            (TargetFormat::Folder, _) => 1,
            (_, Some(shards)) => shards,
            (_, None) => usual_shards(records).clamp(1, records.len().max(1)),
        };
        Ok(Conversion {
            to,
            folder: self.folder.clone(),
            shards,
            change,
            shuffle_seed: self.shuffle,
            threads: self.threads.unwrap_or_else(cores).max(1),
            leave_out_broken: self.skip_broken,
        })
    }
}

/// As many shards as the records fill, judged by some of them.
fn usual_shards(records: &dyn Records) -> usize {
    let (mut bytes, mut seen, mut encoded) = (0u64, 0u64, Vec::new());
    for place in 0..records.len().min(SAMPLED) {
        let index = place * records.len() / records.len().min(SAMPLED);
        if records.read(index, &mut encoded).is_ok() {
            bytes += encoded.len() as u64;
            seen += 1;
        }
    }
    let all = bytes.checked_div(seen).unwrap_or(0).saturating_mul(records.len() as u64);
    usize::try_from(all.div_ceil(SHARD_BYTES)).unwrap_or(usize::MAX)
}

/// Set by the first signal; the second ends the process at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("listening for signals")?;
    }
    Ok(stop)
}
