//! TFRecord files: records one after another, each with its length and two checksums.
//!
//! ```text
//! length: u64   checksum of the length: u32   data: length bytes   checksum of the data: u32   (little endian)
//! ```
//!
//! Checksums are CRC32C, rotated and shifted by a constant ("masked"), so that the checksum of data that holds
//! checksums is no special case. There is no table of contents: [`places`] finds where every record lies, by reading
//! lengths alone or everything.
//!
//! **Invariant:** no data leaves this module whose checksum was not compared.
//!
//! What is deliberately not here: compressed files (gzip as a whole): their records have no place. They are refused
//! with a word.

use std::ops::Range;

use super::{FormatError, NewFile, PIECE_BYTES, SequentialReader, StoredFile};
use crate::DataError;
use crate::limit::Limit;

/// The length and its checksum, before the data.
const HEADER_BYTES: usize = 12;

/// The checksum behind the data.
const FOOTER_BYTES: usize = 4;

/// Bytes of a read where lengths alone are wanted: a page.
const HEADER_PIECE_BYTES: usize = 4 << 10;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Where its length stands.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// What is compared while places are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Lengths alone are read and compared: fast on a disk.
    Lengths,
    /// Everything is read and compared.
    Everything,
}

/// Reads the records of a file one after another.
#[derive(Debug)]
pub struct TfRecordReader<'a> {
    reader: SequentialReader<'a>,
}

impl<'a> TfRecordReader<'a> {
    /// Begins with the first record.
    pub fn new(file: &'a StoredFile) -> TfRecordReader<'a> {
        TfRecordReader { reader: SequentialReader::new(file, PIECE_BYTES) }
    }

    /// The next record, if there is one.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items cannot be lent")]
    pub fn next(&mut self) -> Result<Option<(RecordPlace, &[u8])>, FormatError> {
        let Some(place) = next_place(&mut self.reader)? else { return Ok(None) };
        let file = self.reader.file();
        let frame = self.reader.take(place.bytes as usize + FOOTER_BYTES)?;
        let (data, checksum) = frame.split_at(place.bytes as usize);
        check_data(file, place, data, checksum)?;
        Ok(Some((place, data)))
    }
}

/// Where all records of a file lie.
pub fn places(file: &StoredFile, check: Check) -> Result<Vec<RecordPlace>, FormatError> {
    let mut places = Vec::new();
    match check {
        Check::Everything => {
            let mut reader = TfRecordReader::new(file);
            while let Some((place, _)) = reader.next()? {
                places.push(place);
            }
        }
        Check::Lengths => {
            let mut reader = SequentialReader::new(file, HEADER_PIECE_BYTES);
            while let Some(place) = next_place(&mut reader)? {
                reader.skip(place.bytes + FOOTER_BYTES as u64)?;
                places.push(place);
            }
        }
    }
    Ok(places)
}

/// Replaces what is in the buffer by a record and what belongs to it, and returns where in the buffer the data is.
pub fn read(file: &StoredFile, place: RecordPlace, buffer: &mut Vec<u8>) -> Result<Range<usize>, FormatError> {
    let RecordPlace { offset, bytes } = place;
    check_length(file, place)?;
    let data = HEADER_BYTES..HEADER_BYTES + bytes as usize;
    buffer.resize(data.end + FOOTER_BYTES, 0);
    file.read_at(offset, buffer)?;
    let header = buffer[..HEADER_BYTES].try_into().expect("invariant: the header is at the front");
    if parse_header(file, offset, header)? != bytes {
        return Err(file.error(offset, "another record lies here: the index is out of date"));
    }
    check_data(file, place, &buffer[data.clone()], &buffer[data.end..])?;
    Ok(data)
}

/// Whether a file begins with a record whose length has the right checksum.
pub fn is_tfrecord(head: &[u8]) -> bool {
    head.first_chunk::<HEADER_BYTES>().is_some_and(|header| masked(&header[..8]).to_le_bytes() == header[8..])
}

/// Writes records into a new file.
#[derive(Debug)]
pub struct TfRecordWriter {
    out: NewFile,
}

impl TfRecordWriter {
    /// Writes into this file.
    pub fn new(out: NewFile) -> TfRecordWriter {
        TfRecordWriter { out }
    }

    /// Adds a record.
    pub fn write(&mut self, data: &[u8]) -> Result<(), DataError> {
        let length = (data.len() as u64).to_le_bytes();
        self.out.write(&length)?;
        self.out.write(&masked(&length).to_le_bytes())?;
        self.out.write(data)?;
        self.out.write(&masked(data).to_le_bytes())
    }

    /// Ends the file and gives it its name.
    pub fn finish(self) -> Result<(), DataError> {
        self.out.finish()
    }
}

/// Reads a length; nothing where the file ends before one.
fn next_place(reader: &mut SequentialReader<'_>) -> Result<Option<RecordPlace>, FormatError> {
    if reader.left() == 0 {
        return Ok(None);
    }
    let (file, offset) = (reader.file(), reader.offset());
    let header = reader.take(HEADER_BYTES)?.try_into().expect("invariant: as many bytes were taken");
    let place = RecordPlace { offset, bytes: parse_header(file, offset, header)? };
    check_length(file, place)?;
    Ok(Some(place))
}

fn parse_header(file: &StoredFile, offset: u64, header: &[u8; HEADER_BYTES]) -> Result<u64, FormatError> {
    if is_tfrecord(header) {
        let (length, _) = header.split_at(8);
        return Ok(u64::from_le_bytes(length.try_into().expect("invariant: eight bytes were split off")));
    }
    let cause = match header {
        [0x1f, 0x8b, ..] if offset == 0 => "the file is compressed (gzip): unpack it, or write it uncompressed",
        _ => "the checksum of the length is wrong: the file is damaged, or no TFRecord file",
    };
    Err(file.error(offset, cause))
}

/// A record must lie within its file, and a sensible one is not larger than the limit.
fn check_length(file: &StoredFile, RecordPlace { offset, bytes }: RecordPlace) -> Result<(), FormatError> {
    let left = file.bytes().saturating_sub(offset).saturating_sub((HEADER_BYTES + FOOTER_BYTES) as u64);
    if bytes > left {
        return Err(file.error(
            offset,
            format!("the file ends within a record: it should have {bytes} bytes, and {left} are left"),
        ));
    }
    Limit::of_process().check(bytes).map_err(|error| file.error(offset, format!("a record: {error}")))
}

fn check_data(file: &StoredFile, place: RecordPlace, data: &[u8], checksum: &[u8]) -> Result<(), FormatError> {
    if masked(data).to_le_bytes() == checksum {
        return Ok(());
    }
    Err(file.error(place.offset, format!("the checksum of a record of {} bytes is wrong: it is damaged", place.bytes)))
}

/// The masked CRC32C: rotated, so that checksums of data with checksums differ from plain ones, and moved on.
fn masked(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farandole_testing::Folder;
    use proptest::prelude::*;

    use super::*;
    use crate::storage::LocalFiles;

    fn written(records: &[Vec<u8>]) -> (Folder, Vec<u8>) {
        let folder = Folder::new();
        let path = folder.join("a.tfrecord");
        let mut writer = TfRecordWriter::new(NewFile::create(&path).unwrap());
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap();
        let bytes = std::fs::read(path).unwrap();
        (folder, bytes)
    }

    fn file(folder: &Folder, bytes: &[u8]) -> StoredFile {
        std::fs::write(folder.join("b.tfrecord"), bytes).unwrap();
        StoredFile::open(Arc::new(LocalFiles::new(&**folder)), "b.tfrecord").unwrap()
    }

    fn all(file: &StoredFile) -> Result<Vec<Vec<u8>>, FormatError> {
        let mut reader = TfRecordReader::new(file);
        let mut found = Vec::new();
        while let Some((_, data)) = reader.next()? {
            found.push(data.to_vec());
        }
        Ok(found)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn records_come_back_in_order_and_by_place(
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..12)
        ) {
            let (folder, bytes) = written(&records);
            prop_assert_eq!(is_tfrecord(&bytes), !records.is_empty());
            let file = file(&folder, &bytes);
            prop_assert_eq!(&all(&file).unwrap(), &records);
            let places = places(&file, Check::Everything).unwrap();
            prop_assert_eq!(&places, &super::places(&file, Check::Lengths).unwrap());
            let mut buffer = Vec::new();
            for (place, record) in places.into_iter().zip(&records).rev() {
                let data = read(&file, place, &mut buffer).unwrap();
                prop_assert_eq!(&buffer[data], record.as_slice());
            }
        }

        #[test]
        fn garbage_is_an_error_and_no_more(bytes in proptest::collection::vec(any::<u8>(), 1..80), offset in 0u64..90) {
            let folder = Folder::new();
            let file = file(&folder, &bytes);
            prop_assert_eq!(all(&file).unwrap_err().offset, Some(0));
            for (offset, bytes) in [(offset, offset), (u64::MAX, u64::MAX)] {
                let found = read(&file, RecordPlace { offset, bytes }, &mut Vec::new());
                prop_assert!(found.is_err());
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed(at in 0usize..1_000, bit in 0u8..8) {
            let (folder, mut bytes) = written(&[vec![7; 40], vec![8; 30]]);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let error = all(&file(&folder, &bytes)).unwrap_err();
            let record = if at < 56 { 0 } else { 56 };
            prop_assert_eq!(error.offset, Some(record), "{}", error);
        }
    }

    #[test]
    fn a_file_that_ends_too_early_is_an_error_but_between_records() {
        let (folder, bytes) = written(&[vec![1; 20], vec![2; 5]]);
        for end in 0..bytes.len() {
            let file = file(&folder, &bytes[..end]);
            match end {
                0 => assert_eq!(all(&file).unwrap().len(), 0),
                36 => assert_eq!(all(&file).unwrap().len(), 1),
                _ => {
                    let error = all(&file).unwrap_err();
                    assert!(error.cause.contains("ends"), "{end}: {error}");
                    assert_eq!(places(&file, Check::Lengths).unwrap_err().cause, error.cause);
                }
            }
        }
    }

    #[test]
    fn the_checksum_is_the_one_of_the_format() {
        // The frame of an empty record, as TensorFlow writes it.
        let (_folder, bytes) = written(&[Vec::new()]);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2]);
    }

    #[test]
    fn a_compressed_file_is_named() {
        let folder = Folder::new();
        let file = file(&folder, &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert!(all(&file).unwrap_err().cause.contains("gzip"));
    }

    #[test]
    fn a_place_of_another_record_is_refused() {
        let (folder, bytes) = written(&[vec![1; 20], vec![2; 20]]);
        let file = file(&folder, &bytes);
        let wrong = RecordPlace { offset: 36, bytes: 10 };
        assert!(read(&file, wrong, &mut Vec::new()).unwrap_err().cause.contains("out of date"));
    }
}
