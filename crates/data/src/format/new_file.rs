//! A file that has its name only when it is complete.
//!
//! Bytes go to a file with a name of its own in the same folder. When all are written and on the disk (`fsync`), the
//! file is renamed, and the folder synced: whoever sees the final name sees the whole file, also after a power cut. A
//! file that was given up is removed. A process that is killed leaves the other name behind, which begins with a dot
//! and is passed over by all readers.
//!
//! **Invariant:** a file that is created below a folder is created in it or in a folder of it. Its name has neither
//! `..` nor other special parts, and no symbolic link on the way is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::DataError;

/// Bytes that are gathered for one write.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is being written. See the module's text.
#[derive(Debug)]
pub struct NewFile {
    /// Nothing when it is finished.
    out: Option<io::BufWriter<File>>,
    path: PathBuf,
    /// The folder that the file is in, open: renaming and removing do not look for its path again.
    folder: File,
    /// Its names in the folder, now and when it is finished.
    temporary: OsString,
    name: OsString,
    bytes: u64,
}

impl NewFile {
    /// Begins a file. Folders that lead to it are made. A file that has the name already stays until the new one is
    /// complete.
    pub fn create(path: &Path) -> Result<NewFile, DataError> {
        let folder = folder_of(path);
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let opened = File::open(folder).map_err(|error| failed(folder, &error))?;
        let name = path.file_name().ok_or_else(|| failed(path, &io::ErrorKind::InvalidFilename.into()))?;
        NewFile::create_in(opened, name, path).map_err(|error| failed(path, &error))
    }

    /// Begins a file below a folder that is there. Folders between them are made. The name comes from data: it may
    /// neither lead elsewhere nor name a file that is there.
    pub(crate) fn create_below(root: &Path, name: &Path) -> Result<NewFile, DataError> {
        let path = root.join(name);
        let create = || {
            let mut folder = File::open(root)?;
            let mut parts = name.components().peekable();
            while let Some(Component::Normal(part)) = parts.next() {
                if parts.peek().is_some() {
                    folder = made_folder(&folder, part)?;
                    continue;
                }
                return match rustix::fs::statat(&folder, part, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(rustix::io::Errno::NOENT) => NewFile::create_in(folder, part, &path),
                    Err(error) => Err(error.into()),
                };
            }
            Err(io::Error::new(io::ErrorKind::InvalidFilename, "it leads out of the folder: rename it"))
        };
        create().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                DataError(format!("{}: two records have one name; rename one", path.display()))
            }
            _ => failed(&path, &error),
        })
    }

    fn create_in(folder: File, name: &OsStr, path: &Path) -> io::Result<NewFile> {
        let temporary = temporary_name(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&folder, &temporary, flags, Mode::from_raw_mode(0o666))?);
        let out = Some(io::BufWriter::with_capacity(BUFFER_BYTES, file));
        Ok(NewFile { out, path: path.to_owned(), folder, temporary, name: name.to_owned(), bytes: 0 })
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
            self.rename()?;
            self.folder.sync_all()
        });
        self.judged(done)
    }

    /// Gives the file its name. Whoever writes many files syncs them together.
    pub(crate) fn finish_unsynced(mut self) -> Result<(), DataError> {
        let out = self.out.take().expect("invariant: a file is finished once");
        let flushed = out.into_inner().map_err(io::IntoInnerError::into_error);
        let done = flushed.and_then(|_| self.rename());
        self.judged(done)
    }

    fn rename(&self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, &self.temporary, &self.folder, &self.name)?)
    }

    /// Removes what has not got its name. An error that led here is the one to report.
    fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.folder, &self.temporary, AtFlags::empty());
    }

    fn judged(&self, done: io::Result<()>) -> Result<(), DataError> {
        done.map_err(|error| {
            self.remove();
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
            self.remove();
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A folder in a folder, made if it is not there; an error where a symbolic link is in its place.
fn made_folder(folder: &File, name: &OsStr) -> io::Result<File> {
    match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?))
}

/// A hidden name that no other process and no other thread of this one has.
fn temporary_name(name: &OsStr) -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // As much of the name as leaves room for the rest: a file system allows 255 bytes.
    let begin: String = name.to_string_lossy().chars().take(40).collect();
    format!(".{begin}.{}-{number}.part", std::process::id()).into()
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
    fn a_name_from_data_leads_neither_out_of_the_folder_nor_through_a_link() {
        let folder = Folder::new();
        for name in ["root", "elsewhere"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let root = folder.join("root");
        std::os::unix::fs::symlink(folder.join("elsewhere"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(folder.join("elsewhere/new"), root.join("dangling")).unwrap();
        let long = "a".repeat(300);
        for name in ["", ".", "..", "../a", "a/../b", "/a", "link/a", "dangling", "nul\0", &long] {
            let error = NewFile::create_below(&root, Path::new(name)).unwrap_err().to_string();
            assert!(error.starts_with(&root.join(name).display().to_string()), "{name}: {error}");
        }
        assert!(!folder.join("a").exists() && !folder.join("b").exists());
        assert_eq!(std::fs::read_dir(folder.join("elsewhere")).unwrap().count(), 0);
        NewFile::create_below(&root, Path::new("deep/er/a")).unwrap().finish().unwrap();
        assert!(root.join("deep/er/a").is_file());
        let error = NewFile::create_below(&root, Path::new("deep/er/a")).unwrap_err().to_string();
        assert!(error.contains("two records have one name"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = Folder::new();
        std::fs::write(folder.join("file"), "").unwrap();
        let error = NewFile::create(&folder.join("file/a")).unwrap_err().to_string();
        assert!(error.contains("cannot be written"), "{error}");
    }
}
