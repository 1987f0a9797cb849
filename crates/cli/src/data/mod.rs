//! `farandole data`: data sets are converted, and the pipeline that reads them is measured.
//!
//! `convert` writes shards, `bench` measures, `measure` runs one point of that; [`farandole_study::pipeline`] says what
//! the figures mean.
//! `point` is the command that studies start for each of their points, `copies` makes the copies of a data set that a
//! study of formats compares.
//! What is read, and how, is the business of the crate `farandole-data`.

mod bench;
mod convert;
mod copies;
mod measure;
mod point;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use farandole_data::sample::Split;
use farandole_data::source::{self, Records, RecordsConfig, ScanProgress};
use farandole_data::storage::{self, Storage, StorageOptions};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{Advice, fadvise};

use bench::BenchArgs;
use convert::ConvertArgs;
pub(crate) use copies::{Copies, copies, format_of};
use point::PointArgs;

/// Convert data sets, and measure how fast they are read.
#[derive(Args, Debug)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Convert(Box<ConvertArgs>),
    Bench(Box<BenchArgs>),
    #[command(hide = true)]
    Point(Box<PointArgs>),
}

/// What is read.
#[derive(Args, Clone, Debug)]
struct SourceArgs {
    /// A folder of images, TFRecord, WebDataset (tar), Parquet or NumPy files: a path, a pattern such as
    /// 'shards-{000..011}.tar', or a URL (docs/formats.md, docs/storage.md)
    #[arg(value_name = "SOURCE")]
    source: String,

    /// The field or column with the image [default: found by its usual names]
    #[arg(long, value_name = "NAME")]
    image_field: Option<String>,

    /// The field or column with the label [default: found by its usual names]
    #[arg(long, value_name = "NAME")]
    label_field: Option<String>,

    /// The part of a data set that is divided into several: train or test [default: the data set must not be divided]
    #[arg(long, value_name = "PART")]
    split: Option<SplitArg>,
}

/// A part of a data set.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SplitArg {
    Train,
    Test,
}

impl From<SplitArg> for Split {
    fn from(arg: SplitArg) -> Split {
        match arg {
            SplitArg::Train => Split::Train,
            SplitArg::Test => Split::Test,
        }
    }
}

impl SourceArgs {
    /// A source whose fields are found by their usual names.
    fn named(source: &str) -> SourceArgs {
        SourceArgs { source: source.to_owned(), image_field: None, label_field: None, split: None }
    }

    /// Finds the records. Shards that have no index are looked through, with a bar on a terminal.
    fn open(&self) -> Result<Opened> {
        let options = StorageOptions::from_environment().map_err(|wrong| anyhow!("{wrong}"))?;
        let opened = storage::open(&self.source, &options);
        let (storage, path) = opened.map_err(|error| anyhow!("{error}"))?;
        let bar = bar("looking through {pos} of {len} shards");
        let shown = bar.clone();
        let told = move |progress: ScanProgress| {
            shown.set_length(progress.shards as u64);
            shown.set_position(progress.done as u64);
        };
        let config = RecordsConfig {
            image: self.image_field.clone(),
            label: self.label_field.clone(),
            split: self.split.map(Split::from),
            progress: Some(Arc::new(told)),
            ..RecordsConfig::default()
        };
        let records = source::open(Arc::clone(&storage), &path, &config);
        bar.finish_and_clear();
        // A path of a remote storage alone would look like one of this machine.
        let records = records.map_err(|error| match is_remote(&self.source) {
            true => anyhow!("{}: {error}", self.source),
            false => anyhow!("{error}"),
        })?;
        Ok(Opened { records, storage, source: self.source.clone(), path })
    }
}

/// Records, and where they lie.
struct Opened {
    records: Arc<dyn Records>,
    storage: Arc<dyn Storage>,
    /// What the user wrote, and the path of it within the storage.
    source: String,
    path: String,
}

impl Opened {
    /// What was found, and where.
    fn title(&self) -> String {
        titled(&self.source, &self.path, &self.records.describe())
    }

    /// Asks the kernel to forget what it holds of the files in memory.
    fn forget(&self) -> Result<()> {
        forget(&*self.storage)
    }
}

/// Asks the kernel to forget what it holds of a storage's files in memory. Pages that are not on the disk yet are
/// written first: it would keep those.
fn forget(storage: &dyn Storage) -> Result<()> {
    for object in storage.list("").map_err(|error| anyhow!("{error}"))? {
        let path = storage.local_path(&object.path).ok_or_else(|| {
            anyhow!("{} is not on this machine: what is kept of it cannot be forgotten", storage.describe())
        })?;
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        file.sync_data().with_context(|| path.display().to_string())?;
        fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Whether a source is read over the network by this process itself, and not from files of this machine.
pub(crate) fn is_remote(source: &str) -> bool {
    source.split_once("://").is_some_and(|(scheme, _)| scheme != "file")
}

/// Why files of a source cannot be read from a disk anew: they lie in memory.
pub(crate) fn lies_in_memory(source: &str) -> Option<String> {
    let path = Path::new(source.strip_prefix("file://").unwrap_or(source));
    let there = path.ancestors().find(|path| path.exists())?;
    let kind = rustix::fs::statfs(there).ok()?.f_type as i64;
    [TMPFS, RAMFS].contains(&kind).then(|| format!("{} is a file system in memory: nothing is cold", there.display()))
}

/// What statfs(2) calls file systems without a disk.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Refuses words that are no transform.
pub(crate) fn check_transform(words: &str) -> Result<()> {
    point::pixels(words).map(drop)
}

/// Makes a source cold: the kernel forgets its files. Of what lies on another machine nothing is kept here.
pub(crate) fn make_cold(source: &str) -> Result<()> {
    let options = StorageOptions::from_environment().map_err(|wrong| anyhow!("{wrong}"))?;
    let (storage, _) = storage::open(source, &options).map_err(|error| anyhow!("{error}"))?;
    if is_remote(source) { Ok(()) } else { forget(&*storage) }
}

/// Makes a source warm: every record is read once, as long as somebody still wants it.
pub(crate) fn make_warm(source: &str, wanted: &dyn Fn() -> bool) -> Result<()> {
    let records = SourceArgs::named(source).open()?.records;
    let mut encoded = Vec::new();
    for index in (0..records.len()).take_while(|_| wanted()) {
        // One that cannot be read is a matter of the run.
        let _ = records.read(index, &mut encoded);
    }
    Ok(())
}

/// What was found in a source, and where: a description that names it, or one that names it as a path of its storage.
fn titled(source: &str, path: &str, described: &str) -> String {
    if !is_remote(source) && described.contains(source) {
        return described.to_owned();
    }
    let folder = format!("{}/: ", path.trim_end_matches('/'));
    format!("{source}: {}", described.strip_prefix(&folder).unwrap_or(described))
}

/// So many of something.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A bar on a terminal, and nothing elsewhere.
fn bar(template: &str) -> ProgressBar {
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let bar = if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Carries out the subcommand.
pub(crate) fn run(args: &DataArgs) -> Result<ExitCode> {
    match &args.command {
        DataCommand::Convert(args) => convert::run(args),
        DataCommand::Bench(args) => bench::run(args),
        DataCommand::Point(args) => point::run(args),
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_the_source_once() {
        for (source, path, described, expected) in [
            ("photos", "", "photos/: 3 images", "photos/: 3 images"),
            ("photos.tar", "photos.tar", "WebDataset: 3 records", "photos.tar: WebDataset: 3 records"),
            ("s3://b/a/photos/", "a/photos/", "a/photos/: 3 images", "s3://b/a/photos/: 3 images"),
            ("nfs://h/e/x-*.tar", "e/x-*.tar", "WebDataset: 3 records", "nfs://h/e/x-*.tar: WebDataset: 3 records"),
        ] {
            assert_eq!(titled(source, path, described), expected);
        }
    }
}
