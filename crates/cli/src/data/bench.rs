//! `farandole data bench`: the pipeline alone, stage by stage, and what a training needs of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use farandole_data::SampleError;
use farandole_data::convert::reduced_jpeg;
use farandole_data::loader::Content;
use farandole_data::sample::{Label, Task};
use farandole_data::source::Records;
use farandole_insight::verdict::InputNeeds;
use farandole_study::pipeline::{PipelineFindings, PipelineRow};

use super::measure::{PREFETCH, Point, measure};
use super::point::pixels;
use super::{Opened, SourceArgs, cores};

/// Measure how fast a data set is read, decoded and made into batches, without a training.
///
/// Each row is a number of workers, measured for some seconds: read alone, then with decoding and all changes. The last
/// lines say where the time goes, and how many workers a training needs.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  farandole data bench photos
  farandole data bench 'shards-{000..063}.tar' --workers 1,2,4,8 --need 410 --cold
  farandole data bench photos --cold --need-from trace")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// What is done to images, with commas between [see below for all words]
    #[arg(long, value_name = "WORDS", default_value = "random-resized-crop=224,flip,normalize=imagenet")]
    transform: String,

    /// Samples of a batch
    #[arg(long, value_name = "SAMPLES", default_value_t = 64)]
    batch: usize,

    /// Numbers of workers, each of which is measured [default: 1, 2, 4, … up to the number of cores]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workers: Vec<usize>,

    /// How long each row is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,

    /// Samples a second that the training takes; --need-from asks a trace of it
    #[arg(long, value_name = "RATE")]
    need: Option<f64>,

    /// The trace of a training (a folder of `--trace`) that takes these samples: what it would take if it never waited
    /// for input is what is needed
    #[arg(long, value_name = "DIR", conflicts_with = "need")]
    need_from: Option<PathBuf>,

    /// Also measure files that the kernel has to read from the disk anew
    #[arg(long)]
    cold: bool,

    /// The shorter side for which is measured what reducing images once would gain; 0: not measured
    #[arg(long, value_name = "PIXELS", default_value_t = 256)]
    reduced: usize,

    /// Print the figures as JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Samples that are reduced in memory to see what that would gain.
const REDUCED_SAMPLES: usize = 200;

pub(super) fn run(args: &BenchArgs) -> Result<ExitCode> {
    ensure!(args.seconds > 0.0 && args.seconds.is_finite(), "--seconds: more than 0");
    ensure!(args.batch > 0, "--batch: at least one sample");
    ensure!(args.workers.iter().all(|workers| *workers > 0), "--workers: at least 1");
    ensure!(args.need.is_none_or(|need| need > 0.0), "--need: more than 0");
    let pixels = pixels(&args.transform)?;
    let need = args.need()?;
    let opened = args.source.open()?;
    if args.cold {
        opened.forget().context("--cold")?;
    }
    let images = Content::Images(pixels);
    let mut rows = Vec::new();
    let workers = args.all_workers();
    rows.push(args.row(&opened, "read", "warm", &Content::Encoded, 1)?);
    for workers in &workers {
        rows.push(args.row(&opened, "all", "warm", &images, *workers)?);
    }
    if args.cold {
        rows.push(args.row(&opened, "read", "cold", &Content::Encoded, 1)?);
        rows.push(args.row(&opened, "all", "cold", &images, *workers.last().unwrap_or(&1))?);
    }
    let reduced = args.reduced_row(&*opened.records, &images)?;
    let reduced = reduced.map(|row| (args.reduced, row));
    let (source, transform) = (opened.title(), args.transform.clone());
    let findings = PipelineFindings::of((source, transform), rows, reduced, need, cores());
    let text = if args.json {
        serde_json::to_string_pretty(&findings).context("the figures as JSON")? + "\n"
    } else {
        findings.text()
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing the figures")?;
    Ok(ExitCode::SUCCESS)
}

impl BenchArgs {
    /// Those that were named, with 1 among them: advice is about it.
    fn all_workers(&self) -> Vec<usize> {
        let mut workers = self.workers.clone();
        if workers.is_empty() {
            workers = (0..).map(|power| 1 << power).take_while(|workers| *workers < cores()).collect();
            workers.push(cores());
        }
        workers.push(1);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    fn row(
        &self,
        opened: &Opened,
        what: &'static str,
        files: &'static str,
        content: &Content,
        workers: usize,
    ) -> Result<PipelineRow> {
        let limit = Duration::from_secs_f64(self.seconds);
        let point = Point {
            content: content.clone(),
            workers,
            batch: self.batch,
            prefetch: PREFETCH,
            limit,
            once: files == "cold",
        };
        if files == "cold" {
            opened.forget().context("--cold")?;
        } else {
            // The same samples, so that all of them are in memory.
            let content = Content::Encoded;
            measure(&opened.records, &Point { content, limit: limit / 2, ..point.clone() })?;
        }
        Ok(PipelineRow { what, files, workers, measured: measure(&opened.records, &point)? })
    }

    /// The whole pipeline over some images that were reduced beforehand, as a conversion would.
    fn reduced_row(&self, records: &dyn Records, images: &Content) -> Result<Option<PipelineRow>> {
        if self.reduced == 0 {
            return Ok(None);
        }
        let Some(small) = Reduced::of(records, self.reduced) else { return Ok(None) };
        let limit = Duration::from_secs_f64(self.seconds);
        let point =
            Point { content: images.clone(), workers: 1, batch: self.batch, prefetch: PREFETCH, limit, once: false };
        let small: Arc<dyn Records> = Arc::new(small);
        Ok(Some(PipelineRow { what: "reduced", files: "memory", workers: 1, measured: measure(&small, &point)? }))
    }

    /// Samples a second that the training takes, if anybody says so.
    fn need(&self) -> Result<Option<f64>> {
        let Some(folder) = &self.need_from else { return Ok(self.need) };
        let history = crate::report::load::history(folder).context("--need-from")?;
        let needs = InputNeeds::of(&history).with_context(|| {
            format!(
                "--need-from {}: the trace does not say how many samples were made; `farandole train` and \
                 farandole.data.Loader record it",
                folder.display()
            )
        })?;
        Ok(Some(needs.taken_per_s * needs.ranks as f64))
    }
}

/// Some records in memory, their images reduced.
struct Reduced {
    samples: Vec<(Vec<u8>, Label)>,
    task: Task,
}

impl Reduced {
    /// Nothing if no image is larger than that.
    fn of(records: &dyn Records, shorter_side: usize) -> Option<Reduced> {
        let (count, mut encoded) = (records.len().min(REDUCED_SAMPLES), Vec::new());
        let mut samples = Vec::new();
        for place in 0..count {
            // Broken ones were counted where the data set itself was measured.
            let Ok(label) = records.read(place * records.len() / count, &mut encoded) else { continue };
            if let Ok(Some(small)) = reduced_jpeg(&encoded, shorter_side, 90) {
                samples.push((small, label));
            }
        }
        (!samples.is_empty()).then(|| Reduced { samples, task: records.task() })
    }
}

impl Records for Reduced {
    fn len(&self) -> usize {
        self.samples.len()
    }
    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        let (image, label) = &self.samples[index];
        encoded.clone_from(image);
        Ok(label.clone())
    }
    fn task(&self) -> Task {
        self.task
    }
    fn name(&self, index: usize) -> String {
        format!("reduced sample {index}")
    }
    fn describe(&self) -> String {
        format!("{} reduced samples in memory", self.samples.len())
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}
