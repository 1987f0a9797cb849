//! Images in Parquet files.
//!
//! Where the images of a column lie in one piece, their places are found once and kept in the index; else a record is
//! known by its row, and the page with it is unpacked.

use std::sync::OnceLock;

use super::config::RecordsConfig;
use super::index::Entry;
use super::labels::Marks;
use super::sharded::{Place, ShardReader};
use crate::format::parquet::{Label, PageCache, ParquetFile};
use crate::format::{FormatError, StoredFile};
use crate::limit::Limit;

/// Reads Parquet files.
#[derive(Debug)]
pub(crate) struct ParquetRows {
    image: Option<String>,
    label: Option<String>,
    cache: PageCache,
    /// Files that were opened to read rows, by number. One that cannot be opened is tried again.
    opened: Vec<OnceLock<ParquetFile>>,
}

impl ParquetRows {
    /// Reads so many files.
    pub(crate) fn new(config: &RecordsConfig, files: usize) -> ParquetRows {
        let opened = (0..files).map(|_| OnceLock::new()).collect();
        ParquetRows { image: config.image.clone(), label: config.label.clone(), cache: PageCache::default(), opened }
    }

    fn open(&self, shard: &StoredFile) -> Result<ParquetFile, FormatError> {
        ParquetFile::open(shard, self.image.as_deref(), self.label.as_deref())
    }
}

impl ShardReader for ParquetRows {
    fn format(&self) -> &'static str {
        "Parquet"
    }

    fn sought(&self) -> String {
        format!("Parquet {:?} {:?}", self.image, self.label)
    }

    fn scan(&self, number: usize, shard: &StoredFile) -> Result<Vec<Entry>, FormatError> {
        let file = self.open(shard)?;
        let labels = file.labels()?;
        let mut labels = labels.into_iter().flatten();
        let mut entries = Vec::new();
        let mut budget = Limit::of_process().budget();
        file.each_image(|row, place, image| {
            // A run of one value has any number of rows in a few bytes.
            budget.take(size_of::<Entry>() as u64).map_err(|error| shard.error_of_all(error.to_string()))?;
            if image.is_empty() {
                return Err(shard.error_of_all(format!("the image of row {row} has no bytes")));
            }
            let marks = labels.next().map(marks).unwrap_or_default();
            let (offset, bytes) = place.map_or((row, 0), |offset| (offset, image.len() as u64));
            entries.push(Entry { offset, bytes, key: None, marks });
            Ok(())
        })?;
        // Another thread may have opened it for a record that it knows from an index: then it is there.
        let _ = self.opened[number].set(file);
        Ok(entries)
    }

    fn read(&self, number: usize, shard: &StoredFile, place: Place, encoded: &mut Vec<u8>) -> Result<(), FormatError> {
        if place.bytes > 0 {
            encoded.resize(place.bytes as usize, 0);
            return shard.read_at(place.offset, encoded);
        }
        let file = match self.opened[number].get() {
            Some(file) => file,
            None => {
                let opened = self.open(shard)?;
                self.opened[number].get_or_init(|| opened)
            }
        };
        file.read(number, place.offset, &self.cache, encoded)
    }
}

fn marks(label: Label) -> Marks {
    match label {
        Label::Nothing => Marks::Nothing,
        Label::Ints(values) => Marks::Ints(values),
        Label::Floats(values) => Marks::Floats(values),
        Label::Texts(texts) => Marks::Names(texts),
    }
}
