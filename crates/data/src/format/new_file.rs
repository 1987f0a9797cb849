//! A file that has its name only when it is complete.
//!
//! Bytes go to a file with a name of its own in the same folder. When all are written and on the disk (`fsync`), the
//! file is renamed, and the folder synced: whoever sees the final name sees the whole file, also after a power cut. A
//! file that was given up is removed. A process that is killed leaves the other name behind, which begins with a dot
//! and is passed over by all readers.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::DataError;

/// Bytes that are gathered for one write.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is being written. See the module's text.
#[derive(Debug)]
pub struct NewFile {
    /// Nothing when it is finished.
    out: Option<io::BufWriter<File>>,
    path: PathBuf,
    temporary: PathBuf,
    bytes: u64,
}

impl NewFile {
    /// Begins a file. Folders that lead to it are made. A file that has the name already stays until the new one is
    /// complete.
    pub fn create(path: &Path) -> Result<NewFile, DataError> {
        let folder = folder_of(path);
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let temporary = temporary_name(path);
        let file = File::create_new(&temporary).map_err(|error| failed(path, &error))?;
        let out = Some(io::BufWriter::with_capacity(BUFFER_BYTES, file));
        Ok(NewFile { out, path: path.to_owned(), temporary, bytes: 0 })
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let out = self.out.as_mut().expect("invariant: a finished file is gone");
        out.write_all(bytes).map_err(|error| failed(&self.path, &error))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Waits until everything is on the disk, and gives the file its name.
    pub fn finish(mut self) -> Result<(), DataError> {
        let out = self.out.take().expect("invariant: a file is finished once");
        let done = out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| {
            file.sync_all()?;
            std::fs::rename(&self.temporary, &self.path)?;
            File::open(folder_of(&self.path))?.sync_all()
        });
        self.judged(done)
    }

    /// Gives the file its name. Whoever writes many files syncs them together.
    pub(crate) fn finish_unsynced(mut self) -> Result<(), DataError> {
        let out = self.out.take().expect("invariant: a file is finished once");
        let flushed = out.into_inner().map_err(io::IntoInnerError::into_error);
        let done = flushed.and_then(|_| std::fs::rename(&self.temporary, &self.path));
        self.judged(done)
    }

    fn judged(&self, done: io::Result<()>) -> Result<(), DataError> {
        done.map_err(|error| {
            let _ = std::fs::remove_file(&self.temporary);
            failed(&self.path, &error)
        })
    }
}

impl io::Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        NewFile::write(self, bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // What is in the buffer is not wanted any more.
            drop(out.into_parts());
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden name that no other process and no other thread of this one has.
fn temporary_name(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder_of(path).join(format!(".{name}.{}-{number}.part", std::process::id()))
}

fn failed(path: &Path, error: &io::Error) -> DataError {
    let show = path.display();
    let what = match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full: make room, or write to another one".to_owned(),
        io::ErrorKind::QuotaExceeded => "the quota is used up: make room, or write to another disk".to_owned(),
        _ => error.to_string(),
    };
    DataError(format!("{show} cannot be written: {what}"))
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;

    use super::*;

    fn names(folder: &Folder) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_has_its_name_when_it_is_complete_and_not_before() {
        let folder = Folder::new();
        let path = folder.join("deep/a.tar");
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"all of it").unwrap();
        assert!(!path.exists());
        assert_eq!(file.bytes(), 9);
        file.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        assert_eq!(std::fs::read_dir(folder.join("deep")).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_given_up_leaves_nothing_and_keeps_the_old_one() {
        let folder = Folder::new();
        std::fs::write(folder.join("a"), "old").unwrap();
        let mut file = NewFile::create(&folder.join("a")).unwrap();
        file.write(&vec![1; 3 << 20]).unwrap();
        drop(file);
        assert_eq!(names(&folder), ["a"]);
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"old");
    }

    #[test]
    fn a_disk_that_is_full_is_said_and_leaves_no_half_file() {
        let folder = Folder::new();
        let mut file = NewFile::create(&folder.join("a")).unwrap();
        // The kernel's device that is always full stands for the disk.
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        file.out = Some(io::BufWriter::with_capacity(16, full));
        let error = file.write(&[0; 100]).unwrap_err().to_string();
        assert!(error.contains("the disk is full") && error.contains("/a "), "{error}");
        drop(file);
        assert_eq!(names(&folder).len(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = Folder::new();
        std::fs::write(folder.join("file"), "").unwrap();
        let error = NewFile::create(&folder.join("file/a")).unwrap_err().to_string();
        assert!(error.contains("cannot be written"), "{error}");
    }
}
