//! Converts a data set once and offline: any records into shards of any format that is written here.
//!
//! Records are divided into as many shards as are wanted, in their order or shuffled by a seed; threads write one shard
//! each (`shard`). What does not change from epoch to epoch can be done on the way ([`ImageChange`]): images are
//! reduced to a size that is large enough for every crop, or decoded. Every shard is read back and compared with what
//! was written.
//!
//! **Going on**: a folder has a note of the conversion that fills it (`note`). Shards get their names when they are
//! complete, so the same conversion into the same folder goes on with those that are missing; another one is refused.
//!
//! **Invariant:** what is written depends on the records and the conversion alone, and not on the number of threads or
//! on how often it was interrupted.
//!
//! What is deliberately not here: augmentation, which has to differ from epoch to epoch, and writing to object stores.

mod note;
mod shard;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

pub use shard::reduced_jpeg;

use crate::DataError;
use crate::sample::Task;
use crate::sampler::{Permutation, SampleOrder};
use crate::source::Records;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetFormat {
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
    /// Shards of WebDataset.
    Tar,
    /// Parquet files with an image and a label in each row.
    Parquet,
    /// A file for each image, in a folder for each class. There is one shard, the folder.
    Folder,
}

impl TargetFormat {
    /// The usual ending of its files.
    pub fn ending(self) -> &'static str {
        match self {
            TargetFormat::TfRecord => "tfrecord",
            TargetFormat::Tar => "tar",
            TargetFormat::Parquet => "parquet",
            TargetFormat::Folder => "",
        }
    }
}

/// What becomes of images on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageChange {
    /// They stay as they are, byte for byte.
    Nothing,
    /// Those whose shorter side is longer than this are reduced to it, and encoded as JPEG anew. Others stay.
    Reduce {
        /// Pixels of the shorter side.
        shorter_side: usize,
        /// From 1 to 100, as usual for JPEG.
        quality: u8,
    },
    /// They are decoded, and written as bare pixels (PNM): many times larger, and free to read.
    Decode {
        /// Reduced to this shorter side before, where it is longer.
        shorter_side: Option<usize>,
    },
}

/// A conversion. See the module's text.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// What is written.
    pub to: TargetFormat,
    /// Where; made if it is not there.
    pub folder: PathBuf,
    /// How many shards; one for a folder of images.
    pub shards: usize,
    /// What becomes of images.
    pub change: ImageChange,
    /// By which records are shuffled before they are divided; without it they keep their order.
    pub shuffle_seed: Option<u64>,
    /// How many shards are written at the same time.
    pub threads: usize,
    /// Whether records that cannot be read or decoded are left out and named, instead of ending the conversion.
    pub leave_out_broken: bool,
}

/// How far a conversion has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversionProgress {
    /// Records that are done, those of shards that were there among them.
    pub records: usize,
    /// All records.
    pub all: usize,
    /// Bytes that were written.
    pub bytes: u64,
}

/// What a conversion has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Records that were written.
    pub records: usize,
    /// Shards that were written.
    pub shards: usize,
    /// Shards that an earlier run of this conversion had written.
    pub kept_shards: usize,
    /// Bytes of images that were read.
    pub read_bytes: u64,
    /// Bytes of images that were written.
    pub written_bytes: u64,
    /// Why records were left out, each with its name, in their order.
    pub left_out: Vec<String>,
    /// Whether it was stopped before it was complete.
    pub is_stopped: bool,
}

/// The name of a shard's file: WebDataset's and TensorFlow's habit, so that names sort as numbers do.
pub fn shard_name(to: TargetFormat, number: usize, shards: usize) -> String {
    format!("shard-{number:05}-of-{shards:05}.{}", to.ending())
}

/// Converts all records. `told` hears of progress from any thread; `stop` ends it early, without loss of what is
/// complete.
///
/// # Errors
/// If a record cannot be read and is not to be left out; if a shard cannot be written, or what was written is not what
/// is read back; if the folder holds something else.
pub fn convert(
    records: &dyn Records,
    conversion: &Conversion,
    told: &(dyn Fn(ConversionProgress) + Sync),
    stop: &AtomicBool,
) -> Result<Converted, DataError> {
    check(records, conversion)?;
    let shards = if conversion.to == TargetFormat::Folder { 1 } else { conversion.shards };
    note::agree(records, conversion, shards)?;
    let order = match conversion.shuffle_seed {
        Some(seed) => Permutation::new(SampleOrder::Shuffled, seed, 0, records.len()),
        None => Permutation::new(SampleOrder::InOrder, 0, 0, records.len()),
    };
    let work = Work { records, conversion, shards, order, told, stop, done: Mutex::default() };
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Result<(), DataError>> = std::thread::scope(|scope| {
        let run = || work.write_shards(&next);
        let threads: Vec<_> = (0..conversion.threads.clamp(1, shards)).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(DataError("a thread has panicked".to_owned()))))
            .collect()
    });
    outcomes.into_iter().collect::<Result<Vec<()>, DataError>>()?;
    let mut done = work.done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.left_out.sort();
    let left_out = done.left_out.into_iter().map(|(_, why)| why).collect();
    let is_stopped = stop.load(Ordering::Relaxed);
    Ok(Converted { left_out, is_stopped, ..done.sums })
}

/// What all threads share.
struct Work<'a> {
    records: &'a dyn Records,
    conversion: &'a Conversion,
    shards: usize,
    order: Permutation,
    told: &'a (dyn Fn(ConversionProgress) + Sync),
    stop: &'a AtomicBool,
    /// Taken by each thread when a record is done.
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    progress: ConversionProgress,
    sums: Converted,
    /// With their positions, for threads come to them in any order.
    left_out: Vec<(usize, String)>,
}

impl Work<'_> {
    /// What each thread does. The first error ends all of them.
    fn write_shards(&self, next: &AtomicUsize) -> Result<(), DataError> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.shards || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Err(error) = self.write_shard(number) {
                self.stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    /// The positions of a shard's records.
    fn positions(&self, number: usize) -> std::ops::Range<usize> {
        let cut = |number: usize| (self.records.len() as u128 * number as u128 / self.shards as u128) as usize;
        cut(number)..cut(number + 1)
    }

    fn path(&self, number: usize) -> PathBuf {
        match self.conversion.to {
            TargetFormat::Folder => self.conversion.folder.clone(),
            to => self.conversion.folder.join(shard_name(to, number, self.shards)),
        }
    }

    fn note(&self, change: impl FnOnce(&mut Done)) {
        let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut done);
        done.progress.all = self.records.len();
        let progress = done.progress;
        drop(done);
        (self.told)(progress);
    }
}

fn check(records: &dyn Records, conversion: &Conversion) -> Result<(), DataError> {
    let refuse = |why: String| Err(DataError(why));
    if records.is_empty() {
        return refuse("there are no records to convert".to_owned());
    }
    if conversion.shards == 0 || conversion.shards > records.len() {
        return refuse(format!("{} records cannot be divided into {} shards", records.len(), conversion.shards));
    }
    if conversion.to == TargetFormat::Folder && !matches!(records.task(), Task::SingleLabel { .. }) {
        return refuse(
            "a folder of images has a folder for each class: take another format for other labels".to_owned(),
        );
    }
    match conversion.change {
        ImageChange::Reduce { quality, .. } if !(1..=100).contains(&quality) => {
            refuse(format!("a quality of {quality}: from 1 to 100"))
        }
        ImageChange::Reduce { shorter_side: 0, .. } | ImageChange::Decode { shorter_side: Some(0) } => {
            refuse("images cannot be reduced to nothing".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether something lies at a path.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests;
