//! What publishing asks of a file system ([`Disk`]), and the one of this host ([`LocalDisk`]).
//!
//! Every call is a poll: one that returns `Pending` is repeated with the same arguments until it is ready. A simulated
//! disk makes calls slow, stops them and fails them this way. Calls of [`LocalDisk`] block; only a lock that another
//! process holds is pending.
//!
//! **Locks** are advisory and of whole files: `flock`, which file systems on this host honour between processes, and
//! NFS from version 4 on between hosts. The system releases the locks of a process that exits. A lock outlives a
//! rename of its file, so the lock that orders writers is on a file of its own that is never renamed or removed.
//!
//! On a file system without locks writers are not excluded from each other; [`LocalDisk`] warns of it once.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Once;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// A lock is held for a few operations on metadata and one round of messages, which ends at the heartbeat timeout. A
/// process that holds it for longer than this is stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// A file system, as one writer sees it.
pub trait Disk {
    /// A file that this writer has created. The writer holds the file's lock until it drops the value.
    type File;

    /// A lock that is held until it is dropped.
    type Lock;

    /// Takes the lock of a file, which it creates. Pending while another writer holds it.
    fn poll_lock(&mut self, path: &Path) -> Poll<io::Result<Self::Lock>>;

    /// Creates a file that does not exist, and takes its lock.
    fn poll_create_new(&mut self, path: &Path) -> Poll<io::Result<Self::File>>;

    /// Appends bytes; returns how many.
    fn poll_write(&mut self, file: &mut Self::File, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Waits until the file's content is on the disk.
    fn poll_sync(&mut self, file: &mut Self::File) -> Poll<io::Result<()>>;

    /// Reads bytes from an offset of a file; zero bytes at its end.
    fn poll_read(&mut self, path: &Path, offset: u64, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// The names in a folder.
    fn poll_list(&mut self, folder: &Path) -> Poll<io::Result<Vec<OsString>>>;

    /// Gives a file a second name, which does not exist.
    fn poll_link(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>>;

    /// Gives a file another name, which it takes from the file that has it.
    fn poll_rename(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>>;

    /// Removes a name.
    fn poll_remove(&mut self, path: &Path) -> Poll<io::Result<()>>;

    /// Removes a file whose lock no process holds, and no other.
    fn poll_remove_abandoned(&mut self, path: &Path) -> Poll<io::Result<()>>;

    /// Waits until the names in a folder are on the disk.
    fn poll_sync_folder(&mut self, folder: &Path) -> Poll<io::Result<()>>;
}

/// The file systems of this host.
#[derive(Debug)]
pub struct LocalDisk {
    patience: Duration,
    /// Since when a lock is pending.
    waits_since: Option<Instant>,
}

impl Default for LocalDisk {
    fn default() -> LocalDisk {
        LocalDisk { patience: LOCK_PATIENCE, waits_since: None }
    }
}

/// A file with its lock, or without one if the file system has no locks.
#[derive(Debug)]
pub struct LockedFile {
    file: File,
    is_locked: bool,
}

impl LockedFile {
    /// Takes the lock; returns `None` if another process holds it.
    fn lock(file: File) -> io::Result<Option<LockedFile>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(LockedFile { file, is_locked: true })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                static WARNED: Once = Once::new();
                WARNED.call_once(|| {
                    log::warn!(
                        "the file system of the checkpoint has no locks ({error}); two jobs that write there at once \
                         can replace each other's checkpoint: mount it with locks, or give each job its own folder"
                    );
                });
                Ok(Some(LockedFile { file, is_locked: false }))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for LockedFile {
    /// Closing would release the lock only when children that were forked meanwhile have closed their copies.
    fn drop(&mut self) {
        if self.is_locked {
            let _ = self.file.unlock();
        }
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP))
}

/// Never through a symbolic link: another user of the folder could aim it at a file of this one.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

impl Disk for LocalDisk {
    type File = LockedFile;
    type Lock = LockedFile;

    fn poll_lock(&mut self, path: &Path) -> Poll<io::Result<LockedFile>> {
        let opened = options().read(true).write(true).create(true).truncate(false).open(path);
        let opened = match opened {
            // A lock file of another user: NFS wants it writable for a lock, other file systems do not.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options().read(true).open(path),
            opened => opened,
        };
        let outcome = match opened.and_then(LockedFile::lock) {
            Ok(None) if self.waits_since.get_or_insert_with(Instant::now).elapsed() < self.patience => {
                return Poll::Pending;
            }
            Ok(None) => {
                let waited = self.patience.as_secs();
                let why = format!("another process has held the lock {} for {waited} s", path.display());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            Ok(Some(lock)) => Ok(lock),
            Err(error) => Err(error),
        };
        self.waits_since = None;
        Poll::Ready(outcome)
    }

    fn poll_create_new(&mut self, path: &Path) -> Poll<io::Result<LockedFile>> {
        let locked = options().write(true).create_new(true).open(path).and_then(LockedFile::lock);
        let taken = || io::Error::new(io::ErrorKind::AlreadyExists, "another process has locked it");
        Poll::Ready(locked.and_then(|file| file.ok_or_else(taken)))
    }

    fn poll_write(&mut self, file: &mut LockedFile, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(file.file.write(bytes))
    }

    fn poll_sync(&mut self, file: &mut LockedFile) -> Poll<io::Result<()>> {
        Poll::Ready(file.file.sync_all())
    }

    fn poll_read(&mut self, path: &Path, offset: u64, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(File::open(path).and_then(|file| file.read_at(into, offset)))
    }

    fn poll_list(&mut self, folder: &Path) -> Poll<io::Result<Vec<OsString>>> {
        let names = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        Poll::Ready(names)
    }

    fn poll_link(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        Poll::Ready(fs::hard_link(from, to))
    }

    fn poll_rename(&mut self, from: &Path, to: &Path) -> Poll<io::Result<()>> {
        Poll::Ready(fs::rename(from, to))
    }

    fn poll_remove(&mut self, path: &Path) -> Poll<io::Result<()>> {
        Poll::Ready(fs::remove_file(path))
    }

    fn poll_remove_abandoned(&mut self, path: &Path) -> Poll<io::Result<()>> {
        let lock = options().read(true).write(true).open(path).and_then(LockedFile::lock);
        Poll::Ready(match lock {
            Ok(Some(file)) if file.is_locked => fs::remove_file(path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn poll_sync_folder(&mut self, folder: &Path) -> Poll<io::Result<()>> {
        Poll::Ready(File::open(folder).and_then(|folder| folder.sync_all()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_testing::Folder;

    fn ready<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
        match poll {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("pending"),
        }
    }

    #[test]
    fn a_lock_is_pending_while_another_writer_holds_it_and_an_error_at_last() {
        let folder = Folder::new();
        let path = folder.join("lock");
        let (mut one, mut other) = (LocalDisk::default(), LocalDisk::default());
        let held = ready(one.poll_lock(&path)).unwrap();
        assert!(other.poll_lock(&path).is_pending());
        other.patience = Duration::ZERO;
        let error = ready(other.poll_lock(&path)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("/lock"), "{error}");
        drop(held);
        ready(other.poll_lock(&path)).unwrap();
    }

    #[test]
    fn a_file_is_removed_only_when_its_writer_is_gone() {
        let folder = Folder::new();
        let path = folder.join("unfinished");
        let mut disk = LocalDisk::default();
        let file = ready(disk.poll_create_new(&path)).unwrap();
        ready(disk.poll_remove_abandoned(&path)).unwrap();
        assert!(path.exists(), "its writer has it open");
        assert_eq!(ready(disk.poll_create_new(&path)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(file);
        ready(disk.poll_remove_abandoned(&path)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let folder = Folder::new();
        let (target, link) = (folder.join("target"), folder.join("link"));
        fs::write(&target, b"of the victim").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut disk = LocalDisk::default();
        assert!(ready(disk.poll_lock(&link)).is_err());
        assert!(ready(disk.poll_create_new(&link)).is_err());
        assert!(ready(disk.poll_remove_abandoned(&link)).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"of the victim");
    }
}
