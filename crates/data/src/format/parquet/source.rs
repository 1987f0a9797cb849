//! Hands the bytes of a file to the `parquet` crate.
//!
//! Pages are read into buffers that are used again, because fresh memory of a megabyte costs as much as reading into
//! it. Where the last ones lie in the file and in memory is noted, so that the place of a value that is a part of one
//! can be told.

use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::format::StoredFile;

/// Bytes that are read where it is not known how many are wanted: headers of pages have some dozens.
const HEADER_BYTES: usize = 512;

/// Buffers that wait to be used again, at most.
const SPARE: usize = 16;

/// Reads whose place is remembered: more than a batch of rows has pages, whatever other threads read meanwhile.
const REMEMBERED: usize = 64;

/// The bytes of a file. Copies share their buffers.
#[derive(Clone, Debug)]
pub(super) struct Source {
    file: StoredFile,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Any thread that reads takes a buffer here, and whichever lets go of its last part returns it.
    spare: Mutex<Vec<Vec<u8>>>,
    /// The last reads, the latest at the end: where in memory, how many bytes, where in the file.
    recent: Mutex<Vec<(usize, usize, u64)>>,
}

impl Source {
    pub(super) fn new(file: &StoredFile) -> Source {
        Source { file: file.clone(), shared: Arc::default() }
    }

    /// Where in the file a value lies that is a part of a page as it was read. The caller holds the value, so its page
    /// is still in memory; an older read at the same address was of a page that is gone, so the latest one counts.
    pub(super) fn place_of(&self, value: &[u8]) -> Option<u64> {
        let (begin, end) = (value.as_ptr().addr(), value.as_ptr().addr() + value.len());
        let recent = self.shared.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let found = recent.iter().rev().find(|(address, bytes, _)| *address <= begin && end <= address + bytes);
        found.map(|(address, _, offset)| offset + (begin - address) as u64)
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.file.bytes()
    }
}

impl ChunkReader for Source {
    type T = BufReader<FromOffset>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let reader = FromOffset { file: self.file.clone(), offset: start };
        Ok(BufReader::with_capacity(HEADER_BYTES, reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // Before anything is allocated: a damaged file may claim any length.
        if start.checked_add(length as u64).is_none_or(|end| end > self.file.bytes()) {
            return Err(ParquetError::EOF(format!("{length} bytes should follow byte {start}")));
        }
        let spare = self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_default();
        buffer.resize(length, 0);
        self.file.read_at(start, &mut buffer).map_err(|error| ParquetError::External(Box::new(error)))?;
        let mut recent = self.shared.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == REMEMBERED {
            recent.remove(0);
        }
        recent.push((buffer.as_ptr().addr(), length, start));
        drop(recent);
        Ok(Bytes::from_owner(Lent { buffer, shared: Arc::clone(&self.shared) }))
    }
}

/// A buffer that goes back when the last part of it is gone.
struct Lent {
    buffer: Vec<u8>,
    shared: Arc<Shared>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut spare = self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

/// Reads from an offset. The end of the file is an error and not an empty read: the `parquet` crate skips the elements
/// of a list in a header without checking how many bytes it got, two billion times if the list claims that number.
pub(super) struct FromOffset {
    file: StoredFile,
    offset: u64,
}

impl Read for FromOffset {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.file.bytes().saturating_sub(self.offset);
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 && !buffer.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.file.read_at(self.offset, &mut buffer[..count]).map_err(std::io::Error::other)?;
        self.offset += count as u64;
        Ok(count)
    }
}
