//! The flags of studies of the input pipeline, and what their defaults are on this machine.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::TypedValueParser;
use farandole_study::input::{Cache, InputAxes, InputWorkload, named, shown};
use farandole_study::sweep::StudyKind;

use super::numbers::numbers;
use crate::data::{self, Copies};

/// What is read, and by whom.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Studies of storage, format and loader")]
pub(crate) struct InputArgs {
    /// What is read, in a study of format or loader: a path, a pattern or a URL
    #[arg(value_name = "SOURCE")]
    source: Option<String>,

    /// What is compared in a study of storage: paths, patterns and URLs
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    sources: Vec<String>,

    /// What is compared in a study of format: folder, tar, tfrecord, parquet, each also with a shorter side to which
    /// images are reduced, as in tar@256 [default: folder,tar,tfrecord,parquet]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    formats: Vec<String>,

    /// Records of each copy in a study of format, picked evenly [default: 2000]
    #[arg(long, value_name = "RECORDS")]
    samples: Option<usize>,

    /// Threads of each rank that make batches [default: the number of cores; for loader 1, 2, 4, … up to it]
    #[arg(long, value_name = "LIST")]
    workers: Option<String>,

    /// Batches that are made ahead [default: 2; for loader 1,2,4]
    #[arg(long, value_name = "LIST")]
    prefetch: Option<String>,

    /// What is kept of the source [default: cold,warm; for loader warm]
    #[arg(long, value_parser = caches(), value_name = "LIST", value_delimiter = ',')]
    cache: Vec<Cache>,

    /// What is done to images, with commas between, as in `farandole data bench` [default:
    /// random-resized-crop=224,flip,normalize=imagenet]
    #[arg(long, value_name = "WORDS")]
    transform: Option<String>,

    /// How long each run is measured, in seconds [default: 3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,

    /// Let `farandole train` use the batches, instead of nobody
    #[arg(long)]
    pub(super) in_training: bool,
}

fn caches() -> impl TypedValueParser<Value = Cache> {
    super::args::one_of(&Cache::ALL, Cache::word, Cache::meaning)
}

/// Images of networks for ImageNet.
const TRANSFORM: &str = "random-resized-crop=224,flip,normalize=imagenet";

/// Long enough for a disk to show its rate, short enough for a dozen points.
const SECONDS: f64 = 3.0;

/// Records of a copy: some hundred megabytes of photographs.
const SAMPLES: usize = 2000;

impl InputArgs {
    /// Refuses what would be ignored. `given` are flags of other studies that mean nothing in this one.
    pub(super) fn refuse_what_would_be_ignored(&self, kind: StudyKind) -> Result<()> {
        let word = kind.word();
        let input = kind.is_input();
        for (flag, given, used) in [
            ("SOURCE", self.source.is_some(), matches!(kind, StudyKind::Format | StudyKind::Loader)),
            ("--sources", !self.sources.is_empty(), kind == StudyKind::Storage),
            ("--formats", !self.formats.is_empty(), kind == StudyKind::Format),
            ("--samples", self.samples.is_some(), kind == StudyKind::Format),
            ("--workers", self.workers.is_some(), input),
            ("--prefetch", self.prefetch.is_some(), input),
            ("--cache", !self.cache.is_empty(), input),
            ("--transform", self.transform.is_some(), input && !self.in_training),
            ("--seconds", self.seconds.is_some(), input && !self.in_training),
            ("--in-training", self.in_training, input),
        ] {
            let where_ = if input && self.in_training && flag != "SOURCE" { " in training" } else { "" };
            ensure!(used || !given, "{flag} means nothing in a study of kind {word}{where_}");
        }
        match kind {
            StudyKind::Storage => ensure!(!self.sources.is_empty(), "a study of storage compares --sources A,B,…"),
            StudyKind::Format | StudyKind::Loader => {
                ensure!(self.source.is_some(), "a study of kind {word} reads a SOURCE: farandole study {word} SOURCE");
            }
            _ => {}
        }
        Ok(())
    }

    /// What is the same for all points, in a study of these kinds.
    pub(super) fn workload(&self, kind: StudyKind) -> Option<InputWorkload> {
        kind.is_input().then(|| InputWorkload {
            source: self.source.as_deref().map(shown),
            transform: self.transform.clone().unwrap_or_else(|| TRANSFORM.to_owned()),
            seconds: self.seconds.unwrap_or(SECONDS),
            in_training: self.in_training,
            samples: if kind == StudyKind::Format { self.samples.unwrap_or(SAMPLES) } else { 0 },
        })
    }

    /// What is varied. The sources of a study of formats are its copies, which are made later.
    pub(super) fn axes(&self, kind: StudyKind, cores: usize) -> Result<Option<InputAxes>> {
        self.refuse_what_would_be_ignored(kind)?;
        if !kind.is_input() {
            return Ok(None);
        }
        let seconds = self.seconds.unwrap_or(SECONDS);
        ensure!(seconds > 0.0 && seconds.is_finite(), "--seconds: more than 0");
        ensure!(self.samples != Some(0), "--samples 0: nothing would be measured");
        if let Some(words) = &self.transform {
            data::check_transform(words)?;
        }
        let list = |flag: &str, given: &Option<String>, usual: Vec<usize>| match given {
            Some(list) => numbers(list).with_context(|| flag.to_owned()),
            None => Ok(usual),
        };
        let loader = kind == StudyKind::Loader;
        let usual_workers = if loader { super::args::doublings(cores) } else { vec![cores.max(1)] };
        let usual_caches = if loader { vec![Cache::Warm] } else { vec![Cache::Cold, Cache::Warm] };
        let mut caches: Vec<Cache> = Vec::new();
        for cache in if self.cache.is_empty() { &usual_caches } else { &self.cache } {
            ensure!(!caches.contains(cache), "--cache: {} is there twice", cache.word());
            caches.push(*cache);
        }
        Ok(Some(InputAxes {
            sources: match kind {
                StudyKind::Storage => named(&self.sources)?,
                StudyKind::Format => named(&self.format_names()?)?,
                _ => named(self.source.as_slice())?,
            },
            workers: list("--workers", &self.workers, usual_workers)?,
            prefetch: list("--prefetch", &self.prefetch, if loader { vec![1, 2, 4] } else { vec![2] })?,
            caches,
        }))
    }

    fn format_names(&self) -> Result<Vec<String>> {
        let usual = || ["folder", "tar", "tfrecord", "parquet"].map(str::to_owned).to_vec();
        let names = if self.formats.is_empty() { usual() } else { self.formats.clone() };
        names.iter().try_for_each(|name| data::format_of(name).map(drop))?;
        Ok(names)
    }

    /// The copies that a study of formats compares.
    pub(super) fn copies(&self, folder: &Path) -> Result<Copies> {
        let source = self.source.clone().context("invariant: a study of formats has a source")?;
        let samples = self.samples.unwrap_or(SAMPLES);
        Ok(Copies { source, formats: self.format_names()?, samples, folder: folder.join("copies") })
    }
}
