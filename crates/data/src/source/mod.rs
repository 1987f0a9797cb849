//! Samples by number: which there are, where they are kept, and what is known about them.
//!
//! [`Records`] are encoded samples: the bytes of a file or of a part of a shard, and a label. Any thread may read any
//! of them at any time. [`open`] finds which format is kept at a path (`find`, `pattern`), looks through shards once
//! (`scan`) and keeps what it found in an index (`index`); `tar`, `tfrecord`, `parquet`, `npy` and `folder` find
//! records in files of one [`format`](crate::format), `labels` makes numbers of what records say. A data set of the
//! trainer is of records ([`open_data_set`]) or of a local folder ([`image_folder`]); `split` draws which samples are
//! for tests.
//!
//! **Invariant:** the same number gives the same record, whatever was asked for before; numbers follow the order of
//! shards by path and of records within a shard.
//!
//! What is deliberately not here: pixels (`decode`, `transform`), and who reads which record when (`sampler`,
//! `loader`).

mod config;
mod data_set;
mod find;
mod folder;
pub mod image_folder;
mod index;
mod labels;
mod local;
mod npy;
mod parquet;
mod pattern;
mod scan;
mod sharded;
pub(crate) mod split;
mod table;
mod tar;
mod tfrecord;

pub use config::{IndexPlace, LabelKind, RecordsConfig, ScanProgress};
pub use data_set::{RecordsDataSet, open_data_set};
pub(crate) use find::shown;
#[doc(hidden)]
pub use index::{any_index, check_any_index};
pub use local::{is_sharded, local};

use std::sync::Arc;

use crate::limit::Limit;
use crate::sample::{Label, Split, Task};
use crate::storage::Storage;
use crate::{DataError, SampleError};

/// Undecoded samples by number. See the module's text.
pub trait Records: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces what is in the buffer by the encoded image, and returns what is known about it.
    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError>;

    /// What is known about a record, without reading its image; nothing where only reading it tells.
    fn label(&self, _index: usize) -> Option<Label> {
        None
    }

    /// What is to be learned.
    fn task(&self) -> Task;

    /// What people call a record: the path of its file; for a part of a shard also its key or number and offset.
    fn name(&self, index: usize) -> String;

    /// The names of classes or labels, by number; empty where they have none.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// One line for people: which format, how many records in how many files.
    fn describe(&self) -> String;

    /// A number that is another one where records have other names, lengths or labels, or come in another order.
    fn fingerprint(&self) -> u64;
}

/// Opens what lies at a path of a storage: a file, a folder, or the files of a pattern (`shards-{000..011}.tar`,
/// `*.tfrecord`). Which format it is, endings and first bytes tell. Shards without an index are looked through, in
/// parallel.
///
/// # Errors
/// If nothing lies there, or nothing that is understood; if a shard is damaged or a record says nothing about itself.
pub fn open(storage: Arc<dyn Storage>, path: &str, config: &RecordsConfig) -> Result<Arc<dyn Records>, DataError> {
    let found = find::find(&storage, path)?;
    let Some(split) = config.split else { return open_found(storage, found, config) };
    match (split, data_set::divided(&storage, found)?) {
        (Split::Train, (learned, _)) => open_found(storage, learned, config),
        (Split::Test, (_, Some(judged))) => open_found(storage, judged, config),
        (Split::Test, (_, None)) => {
            let shown = find::shown(&storage, path);
            Err(DataError(format!(
                "{shown} has no part for tests: neither folders nor names of files nor a table say so"
            )))
        }
    }
}

/// What lies at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Records, for [`open`].
    Records,
    /// Patches of satellites, for [`Patches`](crate::format::tiff::Patches).
    Patches,
}

/// Finds out what lies at a path: files are looked for, and none is read but for its first bytes.
///
/// # Errors
/// If nothing lies there, or nothing that is understood.
pub fn look_for(storage: &Arc<dyn Storage>, path: &str) -> Result<Held, DataError> {
    Ok(match find::look(storage, path)? {
        find::Looked::Records(_) => Held::Records,
        find::Looked::Patches(_) => Held::Patches,
    })
}

/// Opens files whose format is known.
fn open_found(
    storage: Arc<dyn Storage>,
    found: find::Found,
    config: &RecordsConfig,
) -> Result<Arc<dyn Records>, DataError> {
    Limit::check_setting()?;
    let reader: Box<dyn sharded::ShardReader> = match found.format {
        find::Format::Images => return Ok(Arc::new(folder::FolderRecords::open(storage, found, config)?)),
        find::Format::TfRecord => Box::new(tfrecord::TfRecords::new(config)),
        find::Format::Arrays => Box::new(npy::ArrayRows::new(config, found.files.len(), found.part)),
        find::Format::Parquet => Box::new(parquet::ParquetRows::new(config, found.files.len())),
        find::Format::Tar => Box::new(tar::TarSamples::new(config)),
    };
    Ok(Arc::new(sharded::ShardedRecords::open(&storage, &found.files, reader, config)?))
}

#[cfg(test)]
mod tests;
