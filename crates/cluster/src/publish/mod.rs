//! Files that at most one rank of one generation may replace: checkpoints.
//!
//! A rank of an elastic job can be stopped or cut off at any moment, and the job continues with another rank in its
//! place. When the first one continues, both hold themselves for the writer of the checkpoint. So a file is not
//! replaced by whichever process comes last, but by the one with the newest [`Token`]: (run, generation, step).
//!
//! - [`SealedFile`] puts the token and a checksum into the file (`seal`).
//! - [`publish`] writes the file beside the present one, verifies it, and renames it under a lock, after it has
//!   compared the tokens and asked a fence whether this rank is still in the job (`publication`).
//! - [`Publisher`] does it on the file systems of this host, and [`check`] verifies a file that was read.
//!
//! **Invariant:** a writer never replaces a file whose token is not older than its own, however long it was stopped
//! before. This needs locks that the system does not revoke while their holder is stopped. NFS revokes the locks of a
//! host that it has not heard of for its lease time (90 s on Linux); a writer that is cut off under the lock and
//! renames after that can still replace a newer file.
//!
//! Not here: who is in the job (`membership`), and what a checkpoint contains.

mod disk;
mod error;
mod publication;
mod seal;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use disk::{Disk, LocalDisk, LockedFile};
pub use error::PublishError;
pub use publication::{Publication, previous, publish};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use seal::check_any_content;
pub use seal::{NotSealable, RunningCheck, SEAL_BYTES, SealCheck, SealedFile, Token, token_of};

/// How often a writer looks whether another one has released the lock. Short against writing a checkpoint, and long
/// against opening a file on a file server.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Publishes files of one process on the file systems of this host.
#[derive(Debug)]
pub struct Publisher {
    writer: String,
    /// What was published last; it is intact and need not be read again.
    last: Option<(PathBuf, Token)>,
}

impl Publisher {
    /// A publisher of the process with this number in this job. Both only become parts of names.
    pub fn new(job: &str, member: u64) -> Publisher {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        Publisher { writer: format!("{}-{member}", job.chars().map(plain).collect::<String>()), last: None }
    }

    /// Replaces the file at `path` by `content`, a safetensors file with metadata, unless a newer one is there.
    /// `fence` is asked last before that. Returns the length of the file.
    ///
    /// # Errors
    /// With the cause, and which of the two files is there now.
    pub fn publish(
        &mut self,
        path: &Path,
        content: Vec<u8>,
        token: Token,
        mut fence: impl FnMut() -> Result<(), String>,
    ) -> Result<usize, PublishError> {
        let intact = self.last.as_ref().filter(|(last, _)| last == path).map(|(_, token)| *token);
        let (path, writer) = (path.to_path_buf(), self.writer.clone());
        let publication = Publication { path, sealed: SealedFile::new(content, token)?, writer, intact };
        let mut disk = LocalDisk::default();
        let mut steps = pin!(publish(&mut disk, &publication, || Poll::Ready(fence())));
        loop {
            match steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => {
                    outcome?;
                    self.last = Some((publication.path.clone(), token));
                    return Ok(publication.sealed.len());
                }
                Poll::Pending => std::thread::sleep(LOCK_INTERVAL),
            }
        }
    }
}

/// The run of a job that is going to write the file at `path`: one more than that of the file that is there.
///
/// # Errors
/// If there is a file and it cannot be read.
pub fn next_run(path: &Path) -> io::Result<u64> {
    let mut start = Vec::new();
    match File::open(path).and_then(|file| file.take(SEAL_BYTES as u64).read_to_end(&mut start)) {
        Ok(_) => Ok(token_of(&start).map_or(1, |token| token.run.saturating_add(1))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1),
        Err(error) => Err(error),
    }
}

/// Checks the seal of a file that was read, and returns its token; `None`: it has no seal.
///
/// # Errors
/// If the content is not what was sealed, in words that follow the name of the file.
pub fn check(content: &[u8]) -> Result<Option<Token>, String> {
    match SealCheck::of(content) {
        SealCheck::Intact(token) => Ok(Some(token)),
        SealCheck::Unsealed => Ok(None),
        SealCheck::Differs { expected, found } => {
            Err(format!("checksum differs (expected {expected:08x}, found {found:08x})"))
        }
    }
}

/// The previous file, if it is intact: for errors about the file at `path`.
pub fn intact_previous(path: &Path) -> Option<(PathBuf, Token)> {
    let previous = previous(path);
    match SealCheck::of(&fs::read(&previous).ok()?) {
        SealCheck::Intact(token) => Some((previous, token)),
        _ => None,
    }
}
