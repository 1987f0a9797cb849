//! One object of a storage, read by ranges or from its beginning to its end.

use std::sync::Arc;

use super::FormatError;
use crate::storage::Storage;

/// An object of a storage, and how long it is.
#[derive(Clone, Debug)]
pub struct StoredFile {
    storage: Arc<dyn Storage>,
    path: String,
    /// The path, as people would write it.
    shown: String,
    bytes: u64,
}

impl StoredFile {
    /// Asks the storage how long an object is.
    pub fn open(storage: Arc<dyn Storage>, path: &str) -> Result<StoredFile, FormatError> {
        let bytes = storage.size(path)?;
        Ok(StoredFile::known(storage, path, bytes))
    }

    /// An object whose length is known.
    pub fn known(storage: Arc<dyn Storage>, path: &str, bytes: u64) -> StoredFile {
        let shown = storage.local_path(path).map_or_else(|| path.to_owned(), |path| path.display().to_string());
        StoredFile { storage, path: path.to_owned(), shown, bytes }
    }

    /// Its path within the storage.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its path, as people would write it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it lies.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Fills the buffer with the bytes from `offset` on.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
        let wanted = buffer.len() as u64;
        if offset.checked_add(wanted).is_none_or(|end| end > self.bytes) {
            return Err(self.ends(offset, wanted));
        }
        Ok(self.storage.read_at(&self.path, offset, buffer)?)
    }

    /// The first bytes, fewer where there are fewer.
    pub fn head(&self, bytes: usize) -> Result<Vec<u8>, FormatError> {
        let mut head = vec![0; bytes.min(usize::try_from(self.bytes).unwrap_or(bytes))];
        self.read_at(0, &mut head)?;
        Ok(head)
    }

    /// An error about a place in this file.
    pub fn error(&self, offset: u64, cause: impl Into<String>) -> FormatError {
        FormatError { path: self.shown.clone(), offset: Some(offset), cause: cause.into() }
    }

    /// An error about this file as a whole.
    pub fn error_of_all(&self, cause: impl Into<String>) -> FormatError {
        FormatError { path: self.shown.clone(), offset: None, cause: cause.into() }
    }

    fn ends(&self, offset: u64, wanted: u64) -> FormatError {
        let left = self.bytes.saturating_sub(offset);
        self.error(offset, format!("the file ends too early: {wanted} bytes should follow, and {left} do"))
    }
}

/// Bytes of a page of memory, or a part of one.
const PAGE_BYTES: usize = 4 << 10;

/// Reads a file from its beginning to its end, in large pieces.
#[derive(Debug)]
pub struct SequentialReader<'a> {
    file: &'a StoredFile,
    buffer: Vec<u8>,
    /// What of the buffer was read and not yet taken.
    begin: usize,
    end: usize,
    /// Where in the file `begin` is.
    offset: u64,
    piece_bytes: usize,
}

impl<'a> SequentialReader<'a> {
    /// Begins at the file's first byte, with reads of so many bytes.
    pub fn new(file: &'a StoredFile, piece_bytes: usize) -> SequentialReader<'a> {
        SequentialReader { file, buffer: Vec::new(), begin: 0, end: 0, offset: 0, piece_bytes }
    }

    /// The file that is read.
    pub fn file(&self) -> &'a StoredFile {
        self.file
    }

    /// Where the next byte lies.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are left.
    pub fn left(&self) -> u64 {
        self.file.bytes - self.offset
    }

    /// The next bytes. The buffer grows to hold them all, up to the size of the file: who takes an arbitrary number
    /// compares it with a limit first.
    pub fn take(&mut self, count: usize) -> Result<&[u8], FormatError> {
        if self.end - self.begin < count {
            self.fill(count)?;
        }
        let begin = self.begin;
        self.begin += count;
        self.offset += count as u64;
        Ok(&self.buffer[begin..self.begin])
    }

    /// Steps over the next bytes; those that are not in the buffer are not read.
    pub fn skip(&mut self, count: u64) -> Result<(), FormatError> {
        if count > self.left() {
            return Err(self.file.ends(self.offset, count));
        }
        let buffered = (self.end - self.begin) as u64;
        if count >= buffered {
            (self.begin, self.end) = (0, 0);
        } else {
            self.begin += count as usize;
        }
        self.offset += count;
        Ok(())
    }

    fn fill(&mut self, count: usize) -> Result<(), FormatError> {
        if count as u64 > self.left() {
            return Err(self.file.ends(self.offset, count as u64));
        }
        let kept = self.end - self.begin;
        // What is left of the last piece goes in front of the next one, which begins at a whole page of the buffer, as
        // it does in the file: the kernel copies whole pages to whole pages faster.
        let front = kept.next_multiple_of(PAGE_BYTES);
        // At most what the file has left, which was compared with `count` above.
        let most = usize::try_from(self.left()).unwrap_or(usize::MAX) - kept;
        let wanted = (count - kept).next_multiple_of(PAGE_BYTES).max(self.piece_bytes).min(most);
        if self.buffer.len() < front + wanted {
            self.buffer.resize(front + wanted, 0);
        }
        self.buffer.copy_within(self.begin..self.end, front - kept);
        (self.begin, self.end) = (front - kept, front);
        self.file.read_at(self.offset + kept as u64, &mut self.buffer[front..front + wanted])?;
        self.end = front + wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::storage::LocalFiles;

    fn file(folder: &farandole_testing::Folder, contents: &[u8]) -> StoredFile {
        std::fs::write(folder.join("a"), contents).unwrap();
        StoredFile::open(Arc::new(LocalFiles::new(&**folder)), "a").unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_taken_and_skipped_is_the_file(
            contents in proptest::collection::vec(any::<u8>(), 0..400),
            steps in proptest::collection::vec((any::<bool>(), 0usize..60), 0..40),
            piece in 1usize..50,
        ) {
            let folder = farandole_testing::Folder::new();
            let file = file(&folder, &contents);
            let mut reader = SequentialReader::new(&file, piece);
            let mut at = 0;
            for (take, count) in steps {
                let fits = at + count <= contents.len();
                if take {
                    match reader.take(count) {
                        Ok(bytes) => prop_assert_eq!(bytes, &contents[at..at + count]),
                        Err(error) => {
                            prop_assert!(!fits);
                            prop_assert_eq!(error.offset, Some(at as u64));
                        }
                    }
                } else {
                    prop_assert_eq!(reader.skip(count as u64).is_ok(), fits);
                }
                at += if fits { count } else { 0 };
                prop_assert_eq!(reader.offset(), at as u64);
            }
        }
    }

    #[test]
    fn reading_behind_the_end_names_file_and_offset() {
        let folder = farandole_testing::Folder::new();
        let file = file(&folder, b"abc");
        let error = file.read_at(2, &mut [0; 2]).unwrap_err().to_string();
        assert!(error.ends_with("/a, at byte 2: the file ends too early: 2 bytes should follow, and 1 do"), "{error}");
        assert!(file.read_at(u64::MAX, &mut [0; 2]).is_err());
        assert_eq!(file.head(10).unwrap(), b"abc");
    }
}
