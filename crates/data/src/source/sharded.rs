//! Records of shards, whatever their format.

use super::Records;
use super::config::RecordsConfig;
use super::index::Entry;
use super::labels::{Known, Marks, resolve};
use super::scan::scan;
use crate::format::{FormatError, StoredFile};
use crate::sample::{Label, Task};
use crate::source::split::{NOTHING, hash};
use crate::storage::{Object, Storage};
use crate::{DataError, SampleError};
use std::sync::Arc;

/// Where a record lies in its shard, as its format means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What a format does with a shard. Shards are told apart by their numbers.
pub(crate) trait ShardReader: Send + Sync + std::fmt::Debug {
    /// The name of the format.
    fn format(&self) -> &'static str;

    /// What is looked for in a shard, in words: an index is good for those who look for the same.
    fn sought(&self) -> String;

    /// Whether it takes long enough to look through a shard that an index pays.
    fn is_indexed(&self) -> bool {
        true
    }

    /// Finds all records of a shard.
    fn scan(&self, number: usize, shard: &StoredFile) -> Result<Vec<Entry>, FormatError>;

    /// Replaces what is in the buffer by the encoded image of a record.
    fn read(&self, number: usize, shard: &StoredFile, place: Place, encoded: &mut Vec<u8>) -> Result<(), FormatError>;
}

/// Records of shards. See the module's text.
#[derive(Debug)]
pub(crate) struct ShardedRecords {
    reader: Box<dyn ShardReader>,
    shards: Vec<StoredFile>,
    /// The number of the first record of each shard, and of one behind the last.
    starts: Vec<usize>,
    places: Vec<Place>,
    /// One for each record, or none at all.
    keys: Vec<Box<str>>,
    known: Known,
    fingerprint: u64,
}

impl ShardedRecords {
    /// Looks through all shards.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        files: &[Object],
        reader: Box<dyn ShardReader>,
        config: &RecordsConfig,
    ) -> Result<ShardedRecords, DataError> {
        let known = |object: &Object| StoredFile::known(Arc::clone(storage), &object.path, object.bytes);
        let shards: Vec<StoredFile> = files.iter().map(known).collect();
        let found = scan(&shards, reader.as_ref(), config).map_err(|error| DataError(error.to_string()))?;
        let count = found.iter().map(Vec::len).sum();
        let mut starts = vec![0];
        let (mut places, mut keys, mut marks) = (Vec::with_capacity(count), Vec::new(), Vec::with_capacity(count));
        for entries in found {
            for entry in entries {
                places.push(Place { offset: entry.offset, bytes: entry.bytes });
                keys.extend(entry.key.map(String::into_boxed_str));
                marks.push(entry.marks);
            }
            starts.push(places.len());
        }
        if places.is_empty() {
            let what = shards.first().map_or("no file", StoredFile::shown);
            return Err(DataError(format!("{what}: there is no record in {} {} files", files.len(), reader.format())));
        }
        let nothing = Known::classes(Vec::new(), Vec::new());
        let mut records = ShardedRecords { reader, shards, starts, places, keys, known: nothing, fingerprint: 0 };
        records.known = resolve(&marks, config, &|index| records.name(index))?;
        records.fingerprint = records.fingerprint_of(&marks);
        Ok(records)
    }

    /// The shard of a record, by its number.
    fn shard_of(&self, index: usize) -> usize {
        self.starts.partition_point(|start| *start <= index) - 1
    }

    fn fingerprint_of(&self, marks: &[Marks]) -> u64 {
        let mut all = NOTHING;
        for (shard, pair) in self.shards.iter().zip(self.starts.windows(2)) {
            all = hash(all, shard.path().rsplit('/').next().unwrap_or_default().as_bytes());
            for (index, marks) in (pair[0]..).zip(&marks[pair[0]..pair[1]]) {
                let Place { offset, bytes } = self.places[index];
                all = hash(hash(all, &offset.to_le_bytes()), &bytes.to_le_bytes());
                all = hash(all, self.keys.get(index).map_or(&[], |key| key.as_bytes()));
                all = match marks {
                    Marks::Nothing => hash(all, b"-"),
                    Marks::Ints(values) => values.iter().fold(all, |all, value| hash(all, &value.to_le_bytes())),
                    Marks::Floats(values) => values.iter().fold(all, |all, value| hash(all, &value.to_le_bytes())),
                    Marks::Names(names) => names.iter().fold(all, |all, name| hash(hash(all, name.as_bytes()), b"\0")),
                };
            }
        }
        all
    }
}

impl Records for ShardedRecords {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn read(&self, index: usize, encoded: &mut Vec<u8>) -> Result<Label, SampleError> {
        let Some(place) = self.places.get(index) else {
            let cause = format!("there are {} records, and they begin with 0", self.len());
            return Err(SampleError { sample: format!("record {index}"), cause });
        };
        let number = self.shard_of(index);
        let read = self.reader.read(number, &self.shards[number], *place, encoded);
        read.map_err(|error| SampleError { sample: self.name(index), cause: error.to_string() })?;
        Ok(self.known.label(index))
    }

    fn label(&self, index: usize) -> Option<Label> {
        (index < self.len()).then(|| self.known.label(index))
    }

    fn task(&self) -> Task {
        self.known.task
    }

    fn name(&self, index: usize) -> String {
        let Some(place) = self.places.get(index) else { return format!("record {index}") };
        let number = self.shard_of(index);
        let (shard, within) = (self.shards[number].shown(), index - self.starts[number]);
        match self.keys.get(index) {
            Some(key) => format!("{shard}, {key} at byte {}", place.offset),
            None if place.bytes == 0 => format!("{shard}, record {within}"),
            None => format!("{shard}, record {within} at byte {}", place.offset),
        }
    }

    fn class_names(&self) -> &[String] {
        &self.known.names
    }

    fn describe(&self) -> String {
        let (format, records, files) = (self.reader.format(), self.len(), self.shards.len());
        let plural = if files == 1 { "" } else { "s" };
        format!("{format}: {records} records in {files} file{plural}")
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
