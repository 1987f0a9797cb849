//! Files of this machine, and whatever else is mounted.
//!
//! Links are followed, for data is often linked into place, but never into a folder that the walk is already in. What
//! is hidden is passed over. Pipes and devices are no files: opening one would wait for somebody.
//!
//! A file that is read in parts stays open for a while, because opening it again takes as long as reading some ten
//! kilobytes. So reads that follow each other see one content, also if another file takes the name meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::regular;
use super::{Object, ObjectVersion, Storage, StorageError, StorageErrorKind};

/// Folders within folders, at most. Nobody keeps data deeper, and the stack is finite.
const DEPTH: usize = 64;

/// Files that stay open, at most: more than a loader reads from at a time where reads have locality, and few against
/// the 1024 that a process usually may have.
const OPEN: usize = 64;

/// The files below a folder.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    root: PathBuf,
    /// Files that were read in part, the latest at the end. Any thread that reads looks here; none holds the lock while
    /// it opens or reads.
    open: Arc<Mutex<Vec<OpenFile>>>,
}

/// A path within the folder, and the file that was opened by it.
type OpenFile = (String, Arc<File>);

impl LocalFiles {
    /// The files below this folder.
    pub fn new(root: impl Into<PathBuf>) -> LocalFiles {
        LocalFiles { root: root.into(), open: Arc::default() }
    }

    /// A file that stays open.
    fn kept(&self, path: &str) -> Option<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let place = open.iter().rposition(|(name, _)| name == path)?;
        let found = open.remove(place);
        let file = Arc::clone(&found.1);
        open.push(found);
        Some(file)
    }

    /// Lets a file stay open, and closes the one that was not read for longest if there are too many.
    fn keep(&self, path: &str, file: File) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have opened it at the same time.
        if open.iter().any(|(name, _)| name == path) {
            return;
        }
        if open.len() == OPEN {
            open.remove(0);
        }
        open.push((path.to_owned(), Arc::new(file)));
    }

    fn error(&self, path: &str, offset: Option<u64>, error: &io::Error) -> StorageError {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => StorageErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => StorageErrorKind::Denied,
            io::ErrorKind::UnexpectedEof => StorageErrorKind::Truncated,
            io::ErrorKind::TimedOut => StorageErrorKind::TimedOut,
            _ => StorageErrorKind::Failed,
        };
        let cause = match kind {
            StorageErrorKind::Truncated => "the file ends too early".to_owned(),
            _ => error.to_string(),
        };
        StorageError { path: self.root.join(path).display().to_string(), offset, kind, cause }
    }

    /// All files below a folder, by names that are relative to the root. `within` has the folders that lead to it.
    fn walk(&self, folder: &Path, within: &mut Vec<(u64, u64)>, found: &mut Vec<Object>) -> io::Result<()> {
        let about = std::fs::metadata(folder)?;
        let identity = (about.dev(), about.ino());
        if within.contains(&identity) || within.len() == DEPTH {
            return Ok(());
        }
        within.push(identity);
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A file that has gone meanwhile, or a link that leads nowhere.
            let Ok(about) = std::fs::metadata(&path) else { continue };
            if about.is_dir() {
                self.walk(&path, within, found)?;
            } else if about.is_file() {
                let relative = path.strip_prefix(&self.root).unwrap_or(&path);
                // A name that is not UTF-8 could not be found again by its path.
                let Some(relative) = relative.to_str() else {
                    let cause = format!("the name of {} is not written in UTF-8: rename it", path.display());
                    return Err(io::Error::other(cause));
                };
                found.push(Object { path: relative.to_owned(), bytes: about.len() });
            }
        }
        within.pop();
        Ok(())
    }
}

impl Storage for LocalFiles {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        // Folders beside the one that the prefix leads into need not be looked at.
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let start = self.root.join(folder);
        let mut found = Vec::new();
        if folder.is_empty() || start.is_dir() {
            self.walk(&start, &mut Vec::new(), &mut found).map_err(|error| self.error(folder, None, &error))?;
        }
        found.retain(|object| object.path.starts_with(prefix));
        found.sort_by(|one, other| one.path.as_bytes().cmp(other.path.as_bytes()));
        Ok(found)
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        let about = std::fs::metadata(self.root.join(path)).map_err(|error| self.error(path, None, &error))?;
        Ok(about.len())
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let fail = |error: io::Error| self.error(path, Some(offset), &error);
        if let Some(file) = self.kept(path) {
            return file.read_exact_at(buffer, offset).map_err(fail);
        }
        let (file, bytes) = regular::open(&self.root.join(path)).map_err(|error| self.error(path, None, &error))?;
        file.read_exact_at(buffer, offset).map_err(fail)?;
        // Nobody comes back for a file that was read as a whole, such as an image.
        if (buffer.len() as u64) < bytes {
            self.keep(path, file);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("files below {}", self.root.display())
    }

    fn local_path(&self, path: &str) -> Option<PathBuf> {
        Some(self.root.join(path))
    }

    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        let about = std::fs::metadata(self.root.join(path)).map_err(|error| self.error(path, None, &error))?;
        // Nanoseconds since 1970; of times beyond what 64 bits hold the lower bits tell as well.
        let tag = (about.mtime() as u64).wrapping_mul(1_000_000_000).wrapping_add(about.mtime_nsec() as u64);
        Ok(ObjectVersion { bytes: about.len(), tag })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use farandole_testing::Folder;

    use super::*;

    #[test]
    fn files_are_listed_by_prefix_and_links_in_a_circle_end() {
        let folder = Folder::new();
        for name in ["b/2", "b/1", "a", "bc", "b/.hidden"] {
            std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            std::fs::write(folder.join(name), name).unwrap();
        }
        symlink(&*folder, folder.join("b/circle")).unwrap();
        symlink("nowhere", folder.join("broken")).unwrap();
        let files = LocalFiles::new(&*folder);
        let list =
            |prefix| -> Vec<String> { files.list(prefix).unwrap().into_iter().map(|found| found.path).collect() };
        assert_eq!(list(""), ["a", "b/1", "b/2", "bc"]);
        assert_eq!(list("b"), ["b/1", "b/2", "bc"]);
        assert_eq!(list("b/2"), ["b/2"]);
        assert_eq!(list("nothing/x").len(), 0);
        assert_eq!(files.list("b/1").unwrap()[0].bytes, 3);
    }

    #[test]
    fn a_file_that_is_read_in_parts_stays_open_and_one_content() {
        let folder = Folder::new();
        let files = LocalFiles::new(&*folder);
        let read = |path: &str, offset| {
            let mut bytes = [0; 2];
            files.read_at(path, offset, &mut bytes).map(|()| bytes)
        };
        std::fs::write(folder.join("a"), "abcd").unwrap();
        assert_eq!(read("a", 0).unwrap(), *b"ab");
        std::fs::write(folder.join("new"), "wxyz").unwrap();
        std::fs::rename(folder.join("new"), folder.join("a")).unwrap();
        assert_eq!(read("a", 2).unwrap(), *b"cd");
        // One that was read as a whole is opened again, and only so many stay open.
        std::fs::write(folder.join("whole"), "12").unwrap();
        assert_eq!(read("whole", 0).unwrap(), *b"12");
        std::fs::write(folder.join("whole"), "34").unwrap();
        assert_eq!(read("whole", 0).unwrap(), *b"34");
        for number in 0..2 * OPEN {
            std::fs::write(folder.join(format!("{number}")), "more").unwrap();
            assert_eq!(read(&number.to_string(), 2).unwrap(), *b"re");
        }
        assert_eq!(files.open.lock().unwrap().len(), OPEN);
        assert_eq!(read("a", 2).unwrap(), *b"yz");
    }

    #[test]
    fn errors_name_the_file_and_the_offset() {
        let folder = Folder::new();
        std::fs::write(folder.join("a"), "abc").unwrap();
        let files = LocalFiles::new(&*folder);
        let error = files.read_at("a", 2, &mut [0; 4]).unwrap_err();
        assert_eq!((error.kind, error.offset), (StorageErrorKind::Truncated, Some(2)));
        assert!(error.to_string().ends_with("/a, at byte 2: the file ends too early"), "{error}");
        assert_eq!(files.size("b").unwrap_err().kind, StorageErrorKind::NotFound);
        assert_eq!(files.local_path("a"), Some(folder.join("a")));
        let before = files.version("a").unwrap();
        let file = std::fs::File::options().write(true).open(folder.join("a")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_ne!(files.version("a").unwrap(), before);
    }
}
