//! One publication of a file: the steps, in order, and what each failure leaves.
//!
//! 1. Under the lock: refuse if the present file is newer; remove abandoned files; create a file of a unique name.
//! 2. Check the seal of the present file. Write the new file, sync it, read it back and check its seal.
//! 3. Under the lock: refuse if the present file is newer; keep the present file, if it is intact, as the previous one;
//!    ask the fence; rename the new file to its name; sync the folder.
//!
//! Writing and syncing take long and hold no lock. A writer that is stopped there, or anywhere before the second lock,
//! finds the file of its successor when it continues, and is refused. A writer that is stopped under the lock keeps its
//! successor waiting, so the order of the two renames is the order of their tokens.
//!
//! **Invariant:** from the first publication on, the file's name has a file that was read back and found intact, at
//! every moment and after a crash at any moment.
//!
//! The steps are one future without an executor: it is pending while a poll of the [`Disk`] or of the fence is, and
//! the caller polls it again. It uses no waker.

use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::task::Poll;

use super::disk::Disk;
use super::error::PublishError;
use super::seal::{RunningCheck, SEAL_BYTES, SealCheck, SealedFile, Token, token_of};

/// Bytes that are read at once: few calls, and little memory beside the content.
const READ_BYTES: usize = 1 << 20;

/// The end of the names of unfinished files.
const UNFINISHED: &str = ".unfinished";

/// What is published, where, and by which writer.
#[derive(Debug)]
pub struct Publication {
    /// The file.
    pub path: PathBuf,
    /// Its new content.
    pub sealed: SealedFile,
    /// What no other process calls itself, in letters that a file name may have.
    pub writer: String,
    /// The token of a file that this writer knows to be intact; it is not checked again.
    pub intact: Option<Token>,
}

/// What is known of the file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Present {
    Absent,
    Intact(Token),
    Unsealed,
    Damaged,
}

/// Names beside a file.
#[derive(Debug)]
struct Names<'a> {
    path: &'a Path,
    folder: &'a Path,
    lock: PathBuf,
    previous: PathBuf,
}

impl Names<'_> {
    fn of(path: &Path) -> Names<'_> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let lock = path.with_file_name(format!(".{}.lock", text(path.file_name())));
        Names { path, folder, lock, previous: previous(path) }
    }

    fn unfinished(&self, writer: &str, number: u64) -> PathBuf {
        self.path.with_file_name(format!("{}.{writer}.{number}{UNFINISHED}", text(self.path.file_name())))
    }

    fn is_unfinished(&self, name: &OsStr) -> bool {
        let (name, own) = (name.to_string_lossy(), format!("{}.", text(self.path.file_name())));
        name.starts_with(&own) && name.ends_with(UNFINISHED) && name.len() > own.len() + UNFINISHED.len()
    }
}

/// Where the previous content of a file is kept: `checkpoint.previous.safetensors` of `checkpoint.safetensors`.
pub fn previous(path: &Path) -> PathBuf {
    let stem = text(path.file_stem());
    path.with_file_name(match path.extension() {
        Some(extension) => format!("{stem}.previous.{}", extension.to_string_lossy()),
        None => format!("{stem}.previous"),
    })
}

fn text(name: Option<&OsStr>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Publishes. `fence` says whether this writer still may; it is asked last before the rename.
///
/// # Errors
/// With the cause; [`PublishError`] says for each which file is there now.
pub async fn publish<D: Disk>(
    disk: &mut D,
    publication: &Publication,
    fence: impl FnMut() -> Poll<Result<(), String>>,
) -> Result<(), PublishError> {
    let names = Names::of(&publication.path);
    let mut steps = Steps { disk, names: &names, publication };
    let (mut file, unfinished) = steps.begin().await?;
    let written = steps.write(&mut file, &unfinished).await;
    let renamed = match written {
        Ok(present) => steps.install(&unfinished, present, fence).await,
        Err(error) => Err(error),
    };
    match renamed {
        Ok(lock) => {
            let synced = poll_fn(|_| steps.disk.poll_sync_folder(names.folder)).await;
            drop(lock);
            synced.map_err(|source| PublishError::Unsynced { path: publication.path.clone(), source })
        }
        Err(error) => {
            // If it cannot be removed either, the next writer does it.
            let _ = poll_fn(|_| steps.disk.poll_remove(&unfinished)).await;
            Err(error)
        }
    }
}

struct Steps<'a, D> {
    disk: &'a mut D,
    names: &'a Names<'a>,
    publication: &'a Publication,
}

impl<D: Disk> Steps<'_, D> {
    fn unchanged(&self, source: io::Error) -> PublishError {
        PublishError::Unchanged { path: self.publication.path.clone(), source }
    }

    async fn lock(&mut self) -> Result<D::Lock, PublishError> {
        let lock = poll_fn(|_| self.disk.poll_lock(&self.names.lock)).await;
        lock.map_err(|source| self.unchanged(source))
    }

    /// Creates the unfinished file. The lock keeps other writers from removing it before its own lock is taken.
    async fn begin(&mut self) -> Result<(D::File, PathBuf), PublishError> {
        let _lock = self.lock().await?;
        self.refuse_newer().await?;
        self.remove_abandoned().await;
        let mut number = 0;
        loop {
            let unfinished = self.names.unfinished(&self.publication.writer, number);
            match poll_fn(|_| self.disk.poll_create_new(&unfinished)).await {
                Ok(file) => return Ok((file, unfinished)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(self.unchanged(error)),
            }
        }
    }

    /// The token of the file that is there, which must be older than the one that is published.
    async fn refuse_newer(&mut self) -> Result<Option<Token>, PublishError> {
        let (path, own) = (self.names.path, self.publication.sealed.token());
        let mut start = vec![0; SEAL_BYTES];
        match self.read(path, 0, &mut start).await {
            Ok(count) => match token_of(&start[..count]) {
                Some(present) if present >= own => Err(PublishError::newer(path, present, own)),
                token => Ok(token),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unchanged(error)),
        }
    }

    /// Takes away the files of writers that were killed. One that cannot be removed costs space and nothing else.
    async fn remove_abandoned(&mut self) {
        let listed = poll_fn(|_| self.disk.poll_list(self.names.folder)).await.unwrap_or_default();
        for name in listed.iter().filter(|name| self.names.is_unfinished(name)) {
            let path = self.names.path.with_file_name(name);
            let _ = poll_fn(|_| self.disk.poll_remove_abandoned(&path)).await;
        }
    }

    /// Writes the new content and reads it back. The operating system answers from its cache where it can, so this
    /// finds what went wrong on the way to the file, and not a fault of the medium.
    async fn write(&mut self, file: &mut D::File, unfinished: &Path) -> Result<Present, PublishError> {
        let present = self.present().await;
        let written = self.write_all(file, present).await;
        written.map_err(|source| self.unchanged(source))?;
        let (found, expected) = (self.check(unfinished).await, SealCheck::Intact(self.publication.sealed.token()));
        match found {
            Ok(found) if found == expected => Ok(present),
            Ok(found) => {
                let why = format!("it differs when it is read back ({found:?}); check the disk");
                Err(self.unchanged(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
            Err(error) => Err(self.unchanged(error)),
        }
    }

    async fn write_all(&mut self, file: &mut D::File, present: Present) -> io::Result<()> {
        let sealed = &self.publication.sealed;
        // A disk with room for two files and not for three: the oldest one goes if the present one is intact.
        let mut may_free = matches!(present, Present::Intact(_));
        let mut at = 0;
        while at < sealed.len() {
            match poll_fn(|_| self.disk.poll_write(file, sealed.from(at))).await {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) && std::mem::take(&mut may_free) => {
                    let freed = poll_fn(|_| self.disk.poll_remove(&self.names.previous)).await;
                    freed.map_err(|_| error)?;
                }
                Err(error) => return Err(error),
            }
        }
        poll_fn(|_| self.disk.poll_sync(file)).await
    }

    /// What there is, read to its end unless it is known.
    async fn present(&mut self) -> Present {
        let path = self.names.path;
        let mut start = vec![0; SEAL_BYTES];
        let token = self.read(path, 0, &mut start).await.map(|count| token_of(&start[..count]));
        match token {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Present::Absent,
            Err(_) => Present::Damaged,
            Ok(None) => Present::Unsealed,
            Ok(Some(token)) if Some(token) == self.publication.intact => Present::Intact(token),
            Ok(Some(_)) => match self.check(path).await {
                Ok(SealCheck::Intact(token)) => Present::Intact(token),
                _ => Present::Damaged,
            },
        }
    }

    /// Puts the new file in its place, and returns the lock under which that was done.
    async fn install(
        &mut self,
        unfinished: &Path,
        present: Present,
        mut fence: impl FnMut() -> Poll<Result<(), String>>,
    ) -> Result<D::Lock, PublishError> {
        let lock = self.lock().await?;
        let token = self.refuse_newer().await?;
        self.keep_previous(present, token).await;
        let (from, to) = (unfinished, self.names.path);
        poll_fn(|_| fence()).await.map_err(|why| PublishError::Fenced { path: to.to_path_buf(), why })?;
        let renamed = poll_fn(|_| self.disk.poll_rename(from, to)).await;
        renamed.map_err(|source| self.unchanged(source))?;
        Ok(lock)
    }

    /// Keeps the present file under the name of the previous one. `token`: of the file that is there under the lock.
    async fn keep_previous(&mut self, mut present: Present, token: Option<Token>) {
        let (path, previous) = (self.names.path, &self.names.previous);
        let is_known = match present {
            Present::Absent | Present::Unsealed => token.is_none(),
            Present::Intact(checked) => token == Some(checked),
            Present::Damaged => true,
        };
        if !is_known {
            // Another writer has published meanwhile.
            present = self.present().await;
        }
        match present {
            Present::Intact(_) => {
                let _ = poll_fn(|_| self.disk.poll_remove(previous)).await;
            }
            // It takes no other file's place: it was not checked.
            Present::Unsealed => {}
            Present::Absent | Present::Damaged => return,
        }
        match poll_fn(|_| self.disk.poll_link(path, previous)).await {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                log::warn!("{}: the previous checkpoint is not kept: {error}", previous.display());
            }
            _ => {}
        }
    }

    async fn check(&mut self, path: &Path) -> io::Result<SealCheck> {
        let (mut check, mut buffer, mut offset) = (RunningCheck::default(), vec![0; READ_BYTES], 0);
        loop {
            match self.read(path, offset, &mut buffer).await? {
                0 => return Ok(check.finish()),
                count => {
                    check.take(&buffer[..count]);
                    offset += count as u64;
                }
            }
        }
    }

    /// Fills the buffer, unless the file ends before.
    async fn read(&mut self, path: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let into = &mut buffer[filled..];
            match poll_fn(|_| self.disk.poll_read(path, offset + filled as u64, into)).await {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
