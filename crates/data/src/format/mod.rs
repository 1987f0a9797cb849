//! Files with many records in them: how they are found, read and written.
//!
//! Each format has a module that reads records one after another ([`SequentialReader`]: large reads, bounded memory) or
//! one by its place, and writes them. [`tfrecord`] frames records that are [`example`]s, [`tar`] has the shards of
//! WebDataset, [`parquet`] files have an image in each row, [`npy`] has arrays, and [`tiff`] the bands of satellites.
//! All of them read a [`StoredFile`], so any storage will do, and write a [`NewFile`], which has its final name only
//! when it is complete.
//!
//! **Invariant:** decoders are total. Whatever is in a file, reading ends with a record or with a [`FormatError`] that
//! names file and offset. Each length is compared with the rest of the file and with the [`Limit`](crate::limit::Limit)
//! of an item before memory is taken for it.
//!
//! What is deliberately not here: what a record means (`source`), and pixels (`decode`).

pub mod example;
mod new_file;
pub mod npy;
pub mod parquet;
pub mod pnm;
mod stored_file;
pub mod tar;
pub mod tfrecord;
pub mod tiff;
mod write;

pub use new_file::NewFile;
pub use parquet::ParquetShard;
pub use stored_file::{SequentialReader, StoredFile};
pub use write::{FolderWriter, NewRecord, ShardWriter, TarShard, TfRecordShard};
pub(crate) use write::{class_folder, image_ending};

use crate::storage::StorageError;

/// Bytes of a read, where records are read one after another. The part of a record at the end of a piece is moved to
/// the front before the next one is read: that must be little against a piece, and images have about 100 KB.
pub const PIECE_BYTES: usize = 1 << 20;

/// Why a file cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// The file, as people would write it.
    pub path: String,
    /// Where in it, if the error is about a place.
    pub offset: Option<u64>,
    /// The cause, in words.
    pub cause: String,
}

impl std::fmt::Display for FormatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{}, at byte {offset}: {}", self.path, self.cause),
            None => write!(f, "{}: {}", self.path, self.cause),
        }
    }
}

impl std::error::Error for FormatError {}

impl From<StorageError> for FormatError {
    fn from(error: StorageError) -> FormatError {
        FormatError { path: error.path, offset: error.offset, cause: error.cause }
    }
}
