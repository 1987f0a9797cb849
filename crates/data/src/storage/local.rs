//! Files of this machine, and whatever else is mounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::{Object, Storage, StorageError, StorageErrorKind};

/// The files below a folder.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    root: PathBuf,
}

impl LocalFiles {
    /// The files below this folder.
    pub fn new(root: impl Into<PathBuf>) -> LocalFiles {
        LocalFiles { root: root.into() }
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

    /// All files below a folder, by names that are relative to the root. Hidden ones are passed over.
    fn walk(&self, folder: &Path, found: &mut Vec<Object>) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            let about = std::fs::metadata(&path)?;
            if about.is_dir() {
                self.walk(&path, found)?;
            } else if about.is_file() {
                let relative = path.strip_prefix(&self.root).unwrap_or(&path);
                found.push(Object { path: relative.to_string_lossy().into_owned(), bytes: about.len() });
            }
        }
        Ok(())
    }
}

impl Storage for LocalFiles {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        let mut found = Vec::new();
        self.walk(&self.root, &mut found).map_err(|error| self.error("", None, &error))?;
        found.retain(|object| object.path.starts_with(prefix));
        found.sort_by(|one, other| one.path.as_bytes().cmp(other.path.as_bytes()));
        Ok(found)
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        let about = std::fs::metadata(self.root.join(path)).map_err(|error| self.error(path, None, &error))?;
        Ok(about.len())
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let file = File::open(self.root.join(path)).map_err(|error| self.error(path, None, &error))?;
        file.read_exact_at(buffer, offset).map_err(|error| self.error(path, Some(offset), &error))
    }

    fn describe(&self) -> String {
        format!("files below {}", self.root.display())
    }
}
