//! `farandole data bench`: the pipeline alone, stage by stage, and what a training needs of it.

use std::fmt::Write as _;
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
use serde::Serialize;

use super::advice::{Figures, advice};
use super::measure::{Measured, PREFETCH, Point, measure};
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

/// One row of the result.
#[derive(Serialize)]
struct Row {
    what: &'static str,
    files: &'static str,
    workers: usize,
    #[serde(flatten)]
    measured: Measured,
}

/// Everything, for JSON.
#[derive(Serialize)]
struct Findings {
    source: String,
    transform: String,
    rows: Vec<Row>,
    advice: Vec<String>,
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
    let said = advice(&args.figures(&rows, reduced.as_ref(), need));
    rows.extend(reduced);
    let (source, transform) = (opened.title(), args.transform.clone());
    let findings = Findings { source, transform, rows, advice: said };
    let text = if args.json {
        serde_json::to_string_pretty(&findings).context("the figures as JSON")? + "\n"
    } else {
        text(&findings)
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
    ) -> Result<Row> {
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
        Ok(Row { what, files, workers, measured: measure(&opened.records, &point)? })
    }

    /// The whole pipeline over some images that were reduced beforehand, as a conversion would.
    fn reduced_row(&self, records: &dyn Records, images: &Content) -> Result<Option<Row>> {
        if self.reduced == 0 {
            return Ok(None);
        }
        let Some(small) = Reduced::of(records, self.reduced) else { return Ok(None) };
        let limit = Duration::from_secs_f64(self.seconds);
        let point =
            Point { content: images.clone(), workers: 1, batch: self.batch, prefetch: PREFETCH, limit, once: false };
        let small: Arc<dyn Records> = Arc::new(small);
        Ok(Some(Row { what: "reduced", files: "memory", workers: 1, measured: measure(&small, &point)? }))
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

    fn figures<'a>(&self, rows: &'a [Row], reduced: Option<&'a Row>, need: Option<f64>) -> Figures<'a> {
        let all = rows.iter().filter(|row| (row.what, row.files) == ("all", "warm"));
        let best = all.clone().max_by(|one, other| one.measured.samples_per_s.total_cmp(&other.measured.samples_per_s));
        let alone = all.clone().find(|row| row.workers == 1);
        let (alone, best) = alone.zip(best).expect("invariant: one worker is always measured");
        Figures {
            alone: &alone.measured,
            best: (best.workers, &best.measured),
            reading: &rows[0].measured,
            reduced: reduced.map(|row| (self.reduced, &row.measured)),
            cold: rows.iter().find(|row| (row.what, row.files) == ("all", "cold")).map(|row| &row.measured),
            need,
            cores: cores(),
        }
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

/// A table, and what it means.
fn text(findings: &Findings) -> String {
    let mut text = format!("{}\n{}\n\n", findings.source, findings.transform);
    let _ = writeln!(
        text,
        "{:<8} {:<7} {:>7} {:>11} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}",
        "what", "files", "workers", "samples/s", "MB/s", "read us", "decode us", "change us", "store us", "MB held"
    );
    for Row { what, files, workers, measured } in &findings.rows {
        let Measured { samples_per_s, bytes_per_s, read_us, decode_us, transform_us, store_us, memory_bytes, .. } =
            measured;
        let (megabytes_per_s, megabytes) = (bytes_per_s / 1e6, *memory_bytes as f64 / 1e6);
        let _ = writeln!(
            text,
            "{what:<8} {files:<7} {workers:>7} {samples_per_s:>11.1} {megabytes_per_s:>9.1} {read_us:>9.0} \
             {decode_us:>9.0} {transform_us:>10.0} {store_us:>9.0} {megabytes:>8.1}"
        );
    }
    text.push('\n');
    findings.advice.iter().for_each(|line| text += &format!("{line}\n"));
    text
}
