//! Copies of a part of a data set, one in each format, for a study that compares formats.
//!
//! Every copy has the same records, picked evenly from the whole, so that formats differ and nothing else. Copies that
//! are complete stay, and a later call finds them; one that was interrupted goes on.
//!
//! **Invariant:** nothing is written before it is known that all copies fit on the disk, by the size of the records.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farandole_data::SampleError;
use farandole_data::convert::{Conversion, ConversionProgress, ImageChange, TargetFormat, convert};
use farandole_data::sample::{Label, Task};
use farandole_data::source::Records;

use super::{SourceArgs, bar, cores};

/// What is copied, and into which formats.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    pub(crate) source: String,
    /// Names of formats: `folder`, `tar`, `tfrecord`, `parquet`, each also with `@SIDE`: its images reduced to this
    /// shorter side.
    pub(crate) formats: Vec<String>,
    /// Records of each copy, at most.
    pub(crate) samples: usize,
    /// The folder for all of them.
    pub(crate) folder: PathBuf,
}

/// The formats that can be written.
const FORMATS: [(&str, TargetFormat); 4] = [
    ("folder", TargetFormat::Folder),
    ("tar", TargetFormat::Tar),
    ("tfrecord", TargetFormat::TfRecord),
    ("parquet", TargetFormat::Parquet),
];

/// Quality of images that are encoded anew: that of `farandole data convert`.
const QUALITY: u8 = 90;

/// What a copy takes beside its records: names, indices, and the last block of each file. A generous guess, for a disk
/// that is nearly full is no place for a study.
const OVERHEAD_BYTES: u64 = 4096;

/// What a format's name means.
pub(crate) fn format_of(name: &str) -> Result<(TargetFormat, Option<usize>)> {
    let (word, side) = name.split_once('@').map_or((name, None), |(word, side)| (word, Some(side)));
    let known = FORMATS.iter().find(|(known, _)| *known == word);
    let side = side.map(|side| side.parse::<usize>().ok().filter(|side| *side > 0));
    match (known, side) {
        (Some((_, format)), None) => Ok((*format, None)),
        (Some((_, format)), Some(Some(side))) => Ok((*format, Some(side))),
        _ => bail!(
            "--formats {name}: there are {}, each also with a shorter side to which images are reduced, as in tar@256",
            FORMATS.map(|(name, _)| name).join(", ")
        ),
    }
}

/// Makes what is missing. Nothing if somebody has asked to stop meanwhile; otherwise the path of each copy.
pub(crate) fn copies(wanted: &Copies, is_stopped: &(dyn Fn() -> bool + Sync)) -> Result<Option<Vec<PathBuf>>> {
    let formats = wanted.formats.iter().map(|name| format_of(name)).collect::<Result<Vec<_>>>()?;
    let all = SourceArgs::named(&wanted.source).open()?.records;
    ensure!(!all.is_empty(), "{}: there is nothing to copy", all.describe());
    let picked = Picked::of(all, wanted.samples);
    std::fs::create_dir_all(&wanted.folder).with_context(|| format!("making {}", wanted.folder.display()))?;
    let mut paths = Vec::new();
    let folder_of = |name: &str| wanted.folder.join(format!("{}-{}", name.replace('@', "-"), picked.len()));
    let missing = wanted.formats.iter().filter(|name| !folder_of(name).exists()).count();
    picked.check_space(missing, &wanted.folder)?;
    for (name, (to, side)) in wanted.formats.iter().zip(formats) {
        let folder = folder_of(name);
        let change =
            side.map_or(ImageChange::Nothing, |shorter_side| ImageChange::Reduce { shorter_side, quality: QUALITY });
        // One for each core, so that a copy has as many readers as there can be.
        let shards = if to == TargetFormat::Folder { 1 } else { cores().min(picked.len()) };
        let threads = cores();
        let conversion = Conversion { to, folder, shards, change, shuffle_seed: None, threads, leave_out_broken: true };
        if !convert_one(&picked, &conversion, name, is_stopped)? {
            return Ok(None);
        }
        paths.push(conversion.folder);
    }
    Ok(Some(paths))
}

/// False if it was stopped.
fn convert_one(
    picked: &Picked,
    conversion: &Conversion,
    name: &str,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<bool> {
    let bar = bar("{msg} {bar:24} {pos}/{len} records");
    bar.set_message(format!("copying to {name}"));
    let stop = AtomicBool::new(false);
    let told = |progress: ConversionProgress| {
        bar.set_length(progress.all as u64);
        bar.set_position(progress.records as u64);
        stop.fetch_or(is_stopped(), Ordering::Relaxed);
    };
    let converted = convert(picked, conversion, &told, &stop);
    bar.finish_and_clear();
    let converted = converted.map_err(|error| anyhow!("{error}")).with_context(|| format!("the copy in {name}"))?;
    for broken in &converted.left_out {
        eprintln!("farandole: left out of the copy in {name}: {broken}");
    }
    Ok(!converted.is_stopped)
}

/// Some records of a data set, evenly picked.
struct Picked {
    all: Arc<dyn Records>,
    count: usize,
}

impl Picked {
    fn of(all: Arc<dyn Records>, samples: usize) -> Picked {
        Picked { count: all.len().min(samples), all }
    }

    fn place(&self, index: usize) -> usize {
        (index as u128 * self.all.len() as u128 / self.count as u128) as usize
    }

    /// Refuses copies that the disk has no room for.
    fn check_space(&self, copies: usize, folder: &Path) -> Result<()> {
        /// Records whose size is looked at to guess that of all.
        const SEEN: usize = 100;
        let (mut bytes, mut encoded) = (0, Vec::new());
        let seen = self.count.min(SEEN);
        for place in 0..seen {
            if self.read(place * self.count / seen, &mut encoded).is_ok() {
                bytes += encoded.len() as u64;
            }
        }
        let there = rustix::fs::statvfs(folder).with_context(|| folder.display().to_string())?;
        let free_bytes = there.f_bavail.saturating_mul(there.f_frsize);
        check_room(copies, self.count, bytes / seen as u64, (free_bytes, folder))
    }
}

/// Refuses copies of so many records of so many bytes where a folder has no room for them.
fn check_room(copies: usize, records: usize, record_bytes: u64, (free, folder): (u64, &Path)) -> Result<()> {
    let needed = (copies as u64 * records as u64).saturating_mul(record_bytes + OVERHEAD_BYTES);
    let shown = |bytes: u64| indicatif::DecimalBytes(bytes).to_string();
    ensure!(
        needed <= free,
        "{copies} copies of {records} records need about {}, and {} has {} left: take fewer records (--samples) or \
         formats (--formats), or another folder (--out)",
        shown(needed),
        folder.display(),
        shown(free)
    );
    Ok(())
}

impl Records for Picked {
    fn len(&self) -> usize {
        self.count
    }
    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        self.all.read(self.place(index), encoded)
    }
    fn label(&self, index: usize) -> Option<Label> {
        self.all.label(self.place(index))
    }
    fn task(&self) -> Task {
        self.all.task()
    }
    fn name(&self, index: usize) -> String {
        self.all.name(self.place(index))
    }
    fn class_names(&self) -> &[String] {
        self.all.class_names()
    }
    fn describe(&self) -> String {
        format!("{} records of {}", self.count, self.all.describe())
    }
    fn fingerprint(&self) -> u64 {
        self.all.fingerprint().rotate_left(1) ^ self.count as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_do_not_fit_are_refused_before_any_is_made() {
        let disk = Path::new("/disk");
        check_room(4, 1000, 100_000, (1 << 30, disk)).unwrap();
        let error = check_room(4, 1000, 100_000, (1 << 28, disk)).unwrap_err().to_string();
        assert!(error.contains("4 copies of 1000 records need about 416") && error.contains("/disk has"), "{error}");
        assert!(error.contains("--samples"), "{error}");
    }

    #[test]
    fn formats_have_names_and_sides() {
        assert_eq!(format_of("tar").unwrap(), (TargetFormat::Tar, None));
        assert_eq!(format_of("parquet@256").unwrap(), (TargetFormat::Parquet, Some(256)));
        for wrong in ["zip", "tar@", "tar@0", "tar@x", ""] {
            assert!(format_of(wrong).unwrap_err().to_string().contains("tfrecord"), "{wrong}");
        }
    }
}
