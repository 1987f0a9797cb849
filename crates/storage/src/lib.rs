//! Where bytes lie: files of this machine, or objects of a store.
//!
//! A [`Storage`] is a tree of named objects that are read by ranges. Formats and records of data sets
//! (`farandole-data`) read through it alone, so what can be read from a disk can be read from an object store, and a
//! cache is a storage that asks another one.
//!
//! **Invariant:** a read fills its whole buffer or fails with the object, the offset and the cause. Whoever implements
//! a storage bounds how long a read takes.
//!
//! [`open`] turns what people write, a path or a URL, into a storage: [`LocalFiles`], or (`remote`) an object store or
//! a web server behind a [`cache`].
//!
//! What is deliberately not here: writing. Data sets are written to local folders.

#![forbid(unsafe_code)]

pub mod cache;
mod counters;
mod local;
mod open;
pub mod regular;
#[cfg(feature = "remote")]
mod remote;
#[cfg(all(test, feature = "remote"))]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

pub use counters::{StorageCounters, StorageCounts};
pub use local::LocalFiles;
pub use open::{StorageOptions, StorageVariables, open};
#[cfg(all(any(test, fuzzing), feature = "remote"))]
#[doc(hidden)]
pub use remote::check_any_answer;

/// Objects that are read by ranges. See the module's text.
pub trait Storage: Send + Sync + std::fmt::Debug {
    /// All objects whose path begins with `prefix`, in the order of their paths' bytes.
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError>;

    /// How long an object is.
    fn size(&self, path: &str) -> Result<u64, StorageError>;

    /// Fills the buffer with the bytes from `offset` on.
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError>;

    /// Which content an object has. Whoever keeps bytes of it keeps them under this. A storage that cannot tell says
    /// how long the object is.
    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        Ok(ObjectVersion { bytes: self.size(path)?, tag: 0 })
    }

    /// What has happened so far: requests, repeated ones, blocks found and fetched.
    fn counts(&self) -> StorageCounts {
        StorageCounts::default()
    }

    /// One line for people: which kind of storage, and where.
    fn describe(&self) -> String;

    /// Where an object lies on this machine, if it does.
    fn local_path(&self, _path: &str) -> Option<std::path::PathBuf> {
        None
    }
}

/// A content of an object: another one has, but for a collision of hashes, another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// How long the object is.
    pub bytes: u64,
    /// A hash of what the store calls the content (its ETag), or when a file was last changed; 0 where nobody knows.
    pub tag: u64,
}

/// An object of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its path within the storage, with `/` between the parts and none at the beginning.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
}

/// Why bytes cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// The path within the storage, as people would write it.
    pub path: String,
    /// Where in the object, if the error is about a range.
    pub offset: Option<u64>,
    /// What kind of error, for those who can do something about it.
    pub kind: StorageErrorKind,
    /// The cause, in words.
    pub cause: String,
}

/// What kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// There is no such object.
    NotFound,
    /// The object may not be read: permissions, credentials.
    Denied,
    /// The object ends before the range does.
    Truncated,
    /// No answer in time, after all attempts.
    TimedOut,
    /// Anything else.
    Failed,
}

impl std::fmt::Display for StorageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{}, at byte {offset}: {}", self.path, self.cause),
            None => write!(f, "{}: {}", self.path, self.cause),
        }
    }
}

impl std::error::Error for StorageError {}
