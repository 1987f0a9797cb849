//! What must hold for any bytes that are taken for a file of some format: the fuzzer's targets, and what a test runs
//! over seeds and mutations of them.
//!
//! A body says how many records could be read: of a seed that is whole, some can. It ends, takes no more memory than a
//! limit allows, and every record that comes out is as the reader says it is. Checksums that would keep damage from
//! decoders are made right where a format has them.

#![allow(dead_code, reason = "each fuzz target calls one of them")]

use std::sync::Arc;

use farandole_data::format::example::Example;
use farandole_data::format::{StoredFile, tiff};
use farandole_data::image;
use farandole_data::records::{self, IndexPlace, RecordsConfig};
use farandole_data::sample::{Label, Task};
use farandole_data::storage::{Object, Storage, StorageError, StorageErrorKind};

/// Records of a file that are read, at most: an array of empty rows has any number of them.
const RECORDS: usize = 32;

/// One file in memory.
#[derive(Debug)]
struct OneFile {
    name: &'static str,
    bytes: Vec<u8>,
}

impl OneFile {
    fn missing(&self, path: &str) -> StorageError {
        let cause = "there is one file here, and that is another one".to_owned();
        StorageError { path: path.to_owned(), offset: None, kind: StorageErrorKind::NotFound, cause }
    }
}

impl Storage for OneFile {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        let object = Object { path: self.name.to_owned(), bytes: self.bytes.len() as u64 };
        Ok(if self.name.starts_with(prefix) { vec![object] } else { Vec::new() })
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        if path == self.name { Ok(self.bytes.len() as u64) } else { Err(self.missing(path)) }
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let begin = usize::try_from(offset).ok().filter(|_| path == self.name).ok_or_else(|| self.missing(path))?;
        let there = self.bytes.get(begin..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(there.ok_or_else(|| self.missing(path))?);
        Ok(())
    }

    fn describe(&self) -> String {
        self.name.to_owned()
    }
}

/// Opens a file by its name and reads its records; what is no image is not decoded. How many could be read.
fn read_all(name: &'static str, bytes: Vec<u8>) -> usize {
    let storage: Arc<dyn Storage> = Arc::new(OneFile { name, bytes });
    // In one thread: nothing is gained by more, and the fuzzer counts them.
    let config = RecordsConfig { index: IndexPlace::Nowhere, threads: 1, ..RecordsConfig::default() };
    let Ok(records) = records::open(storage, name, &config) else { return 0 };
    let (mut encoded, mut read) = (Vec::new(), 0);
    for index in 0..records.len().min(RECORDS) {
        let Ok(label) = records.read(index, &mut encoded) else { continue };
        assert_eq!(records.label(index).as_ref(), Some(&label));
        match (records.task(), &label) {
            (Task::SingleLabel { classes }, Label::Class(class)) => assert!((*class as usize) < classes),
            (Task::MultiLabel { labels }, Label::Labels(all)) => assert_eq!(all.len(), labels),
            (Task::Regression, Label::Value(value)) => assert!(value.is_finite()),
            (task, label) => panic!("{label:?} is no label of {task:?}"),
        }
        let _ = records.name(index);
        read += 1;
    }
    read
}

pub(crate) fn jpeg(bytes: &[u8]) -> usize {
    let mut decoded = 0;
    for bands in [1, 3] {
        if let Ok(image) = image::decode(bytes, bands) {
            assert_eq!(image.bytes.len(), image.height * image.width * bands);
            assert_eq!(image::size(bytes), Ok((image.height, image.width)));
            decoded += 1;
        }
    }
    decoded
}

pub(crate) fn tfrecord(bytes: &[u8]) -> usize {
    let whole = read_all("a.tfrecord", bytes.to_vec());
    // The same bytes as an example, in a frame whose checksums are right.
    let masked = |data: &[u8]| crc_fast::crc32_iscsi(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    let framed = read_all("a.tfrecord", [length.as_slice(), &masked(&length), bytes, &masked(bytes)].concat());
    if let Ok(example) = Example::decode(bytes) {
        let again = example.encode();
        assert_eq!(Example::decode(&again).map(|example| example.encode()), Ok(again), "an example has one encoding");
    }
    whole + framed
}

pub(crate) fn tar(bytes: &[u8]) -> usize {
    let whole = read_all("a.tar", bytes.to_vec());
    let mut checked = bytes.to_vec();
    for header in checked.as_chunks_mut::<512>().0 {
        // Only what looks like a header: contents would become one by accident.
        if header[257..262] == *b"ustar" {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
    }
    whole + read_all("a.tar", checked)
}

pub(crate) fn npy(bytes: &[u8]) -> usize {
    read_all("images.npy", bytes.to_vec()) + read_all("a.npz", bytes.to_vec())
}

pub(crate) fn parquet(bytes: &[u8]) -> usize {
    read_all("a.parquet", bytes.to_vec())
}

pub(crate) fn tiff_band(bytes: &[u8]) -> usize {
    let Ok(band) = tiff::decode_band(bytes) else { return 0 };
    assert_eq!(band.values.len(), band.height * band.width);
    1
}

/// Bytes taken for the index of a shard: one beside it that is damaged, or of another shard, changes nothing.
pub(crate) fn index(bytes: &[u8]) -> usize {
    let storage: Arc<dyn Storage> = Arc::new(OneFile { name: "a.tar", bytes: Vec::new() });
    let shard = StoredFile::known(storage, "a.tar", 4096);
    records::check_any_index(bytes, &shard)
}
