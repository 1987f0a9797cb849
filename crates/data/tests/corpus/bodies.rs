//! What must hold for any bytes that are taken for a file of some format: the fuzzer's targets, and what a test runs
//! over seeds and mutations of them.
//!
//! A body says how many records could be read: of a seed that is whole, some can. It ends, takes no more memory than a
//! limit allows, and every record that comes out is as the reader says it is. Checksums that would keep damage from
//! decoders are made right where a format has them.

#![allow(dead_code, reason = "each fuzz target calls one of them")]

use std::sync::Arc;

use farandole_data::decode;
use farandole_data::format::example::Example;
use farandole_data::format::{StoredFile, tiff};
use farandole_data::sample::{Label, Task};
use farandole_data::source::{self, IndexPlace, RecordsConfig};
use farandole_data::storage::{Object, Storage, StorageError, StorageErrorKind};

/// Records of a file that are read, at most: an array of empty rows has any number of them.
const RECORDS: usize = 32;

/// Files in memory.
#[derive(Debug)]
struct Files(Vec<(&'static str, Vec<u8>)>);

impl Files {
    fn find(&self, path: &str) -> Result<&[u8], StorageError> {
        let found = self.0.iter().find(|(name, _)| *name == path).map(|(_, bytes)| bytes.as_slice());
        found.ok_or_else(|| {
            let cause = "there is no such file here".to_owned();
            StorageError { path: path.to_owned(), offset: None, kind: StorageErrorKind::NotFound, cause }
        })
    }
}

impl Storage for Files {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        let found = self.0.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, bytes)| Object { path: (*name).to_owned(), bytes: bytes.len() as u64 }).collect())
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        self.find(path).map(|bytes| bytes.len() as u64)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = self.find(path)?.get(begin..).and_then(|rest| rest.get(..buffer.len()));
        let Some(there) = there else {
            let cause = "the file ends before these bytes".to_owned();
            return Err(StorageError {
                path: path.to_owned(),
                offset: Some(offset),
                kind: StorageErrorKind::NotFound,
                cause,
            });
        };
        buffer.copy_from_slice(there);
        Ok(())
    }

    fn describe(&self) -> String {
        "files in memory".to_owned()
    }
}

/// Opens a file by its name and reads its records; what is no image is not decoded. How many could be read.
fn read_all(name: &'static str, bytes: Vec<u8>) -> usize {
    read_files(vec![(name, bytes)], name)
}

/// The same for what is at a path among these files.
fn read_files(files: Vec<(&'static str, Vec<u8>)>, path: &str) -> usize {
    let storage: Arc<dyn Storage> = Arc::new(Files(files));
    // In one thread: nothing is gained by more, and the fuzzer counts them.
    let config = RecordsConfig { index: IndexPlace::Nowhere, threads: 1, ..RecordsConfig::default() };
    let Ok(records) = source::open(storage, path, &config) else { return 0 };
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

/// Bytes taken for the table of labels in a folder of images.
pub(crate) fn table(bytes: &[u8]) -> usize {
    let image = b"P5\n1 1\n255\n\x07".to_vec();
    let mut files = vec![("labels.csv", bytes.to_vec())];
    files.extend(["a.png", "b.jpg", "deep/c.pgm"].map(|name| (name, image.clone())));
    read_files(files, "")
}

pub(crate) fn jpeg(bytes: &[u8]) -> usize {
    let mut decoded = 0;
    for bands in [1, 3] {
        if let Ok(image) = decode::decode(bytes, bands) {
            assert_eq!(image.bytes.len(), image.height * image.width * bands);
            assert_eq!(decode::size(bytes), Ok((image.height, image.width)));
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
    let storage: Arc<dyn Storage> = Arc::new(Files(vec![("a.tar", Vec::new())]));
    let shard = StoredFile::known(storage, "a.tar", 4096);
    source::check_any_index(bytes, &shard)
}
