//! `farandole data`: data sets are converted, and the pipeline that reads them is measured.
//!
//! `convert` writes shards, `bench` measures, `measure` runs one point of that, `advice` says what the figures mean.
//! What is read, and how, is the business of the crate `farandole-data`.

mod advice;
mod bench;
mod convert;
mod measure;

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use farandole_data::records::{self, Records, RecordsConfig, ScanProgress};
use farandole_data::sample::Split;
use farandole_data::storage::{self, Storage, StorageOptions};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{Advice, fadvise};

use bench::BenchArgs;
use convert::ConvertArgs;

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
        let records = records::open(Arc::clone(&storage), &path, &config).map_err(|error| anyhow!("{error}"));
        bar.finish_and_clear();
        Ok(Opened { records: records?, storage })
    }
}

/// Records, and where they lie.
struct Opened {
    records: Arc<dyn Records>,
    storage: Arc<dyn Storage>,
}

impl Opened {
    /// Asks the kernel to forget what it holds of the files in memory.
    fn forget(&self) -> Result<()> {
        let objects = self.storage.list("").map_err(|error| anyhow!("{error}"))?;
        for object in objects {
            let path = self.storage.local_path(&object.path).ok_or_else(|| {
                anyhow!("{} is not on this machine: what is kept of it cannot be forgotten", self.storage.describe())
            })?;
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
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
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
