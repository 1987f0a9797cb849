//! Samples by number, before they are decoded.
//!
//! [`Records`] are what a data set keeps of its samples: the bytes of a file or of a part of a shard, and what is known
//! about them. Any thread may read any of them at any time; `format` finds them in files.
//!
//! **Invariant:** the same number gives the same record, whatever was asked for before; numbers follow the order of
//! shards by path and of records within a shard.
//!
//! What is deliberately not here: pixels (`image`, `transform`), and who reads which record when (`shard`, `loader`).

use crate::SampleError;
use crate::sample::{Label, Task};

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
