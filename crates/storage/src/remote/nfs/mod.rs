//! Files of an NFS server that nobody has mounted: [`Nfs`], a client of NFSv3 without the kernel.
//!
//! It is for processes that may not mount: in containers, most of all. Paths, counters, attempts and their pauses are
//! those of object stores; the protocols are written here, because they are small, and because what matters is what
//! happens when connections break.
//!
//! | module | what it does |
//! |---|---|
//! | `place` | from a URL to a server, and as whom it is asked |
//! | `xdr`, `rpc`, `protocol` | what goes over the wire |
//! | `connection` | many calls on a connection, silence, broken ones |
//! | `server` | ports, exports, from paths to files |
//! | `transfer` | a part of a range with attempts, one content only |
//! | `folders` | all files below a folder |
//! | `failure` | what went wrong, as a type and in words |
//!
//! **Invariant:** every call ends within the deadline of the options. All reads of a file through one storage are of
//! one content, the one that it first saw: number, length and time of the last change are compared with each answer.
//!
//! What is deliberately not here: writing, locks, NFSv4 and Kerberos.

mod connection;
mod failure;
mod folders;
mod place;
mod protocol;
mod rpc;
mod server;
#[cfg(test)]
mod tests;
mod transfer;
mod xdr;

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use self::failure::Failure;
use self::protocol::FileKind;
use self::server::{Server, normal};
use self::transfer::{Transfer, insist};
use super::driver::Driver;
use super::parts::read_in_parts;
use super::patience::Patience;
use super::{GRACE, key};
use crate::counters::{StorageCounters, StorageCounts};
use crate::{Object, ObjectVersion, Storage, StorageError, StorageOptions};

pub(super) use self::place::NfsPlace;
#[cfg(any(test, fuzzing))]
pub use self::protocol::check_any_answer;

/// See the module's text.
pub(super) struct Nfs {
    place: NfsPlace,
    server: Arc<Server>,
    options: StorageOptions,
    counters: Arc<StorageCounters>,
    /// The contents of files that were looked at, by a hash of the path. Readers add and look up.
    versions: Mutex<HashMap<u128, ObjectVersion>>,
    driver: Driver,
}

impl Nfs {
    /// The server of a place. Nothing is asked of it yet.
    pub(super) fn new(
        place: NfsPlace,
        options: &StorageOptions,
        counters: Arc<StorageCounters>,
    ) -> Result<Nfs, String> {
        Ok(Nfs {
            server: Arc::new(Server::new(place.clone(), options, Arc::clone(&counters))),
            place,
            options: options.clone(),
            counters,
            versions: Mutex::default(),
            driver: Driver::start()?,
        })
    }

    fn error(&self, path: &str, offset: Option<u64>, failure: &Failure) -> StorageError {
        let (kind, cause) = failure.explain();
        StorageError { path: format!("{}/{path}", self.place.base), offset, kind, cause }
    }

    /// Has the driver's thread do something, and waits for it as long as the deadline allows.
    fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = channel();
        let until = tokio::time::Instant::now() + self.options.deadline;
        self.driver.spawn(async move {
            let result = tokio::time::timeout_at(until, task).await.unwrap_or(Err(Failure::TimedOut));
            // Nobody listens any more if the deadline has passed.
            let _ = sender.send(result);
        });
        receiver.recv_timeout(self.options.deadline + GRACE).unwrap_or(Err(Failure::TimedOut))
    }

    /// Asks the server for the content of a file, and keeps it.
    fn look(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        let (server, patience, asked) = (Arc::clone(&self.server), Patience::new(&self.options), path.to_owned());
        let counters = Arc::clone(&self.counters);
        let located = self.run(async move { insist(&server, patience, &counters, || server.locate(&asked)).await });
        let version = located.and_then(|located| match located.attributes.kind {
            FileKind::File => Ok(located.attributes.version()),
            found => Err(Failure::NotA { wanted: FileKind::File, found }),
        });
        let version = version.map_err(|failure| self.error(path, None, &failure))?;
        Ok(self.remember(path, version))
    }

    fn known(&self, path: &str) -> Option<ObjectVersion> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).get(&key(path)).copied()
    }

    /// Keeps a content unless one is known, and returns the one that counts.
    fn remember(&self, path: &str, version: ObjectVersion) -> ObjectVersion {
        *self.versions.lock().unwrap_or_else(PoisonError::into_inner).entry(key(path)).or_insert(version)
    }

    fn known_or_look(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        self.known(path).map_or_else(|| self.look(path), Ok)
    }
}

impl Storage for Nfs {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        let (server, patience, asked) = (Arc::clone(&self.server), Patience::new(&self.options), prefix.to_owned());
        let counters = Arc::clone(&self.counters);
        let found = self.run(async move { folders::list(&server, patience, &counters, &asked).await });
        let found = found.map_err(|failure| self.error(prefix, None, &failure))?;
        let objects = found.into_iter().map(|(path, version)| {
            let version = self.remember(&path, version);
            Object { path, bytes: version.bytes }
        });
        Ok(objects.collect())
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        Ok(self.known_or_look(&normal(path))?.bytes)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let path = &normal(path);
        let failed = |failure: &Failure| self.error(path, Some(offset), failure);
        let end = offset.checked_add(buffer.len() as u64).ok_or_else(|| failed(&Failure::Ends(u64::MAX)))?;
        let expected = self.known_or_look(path)?;
        if expected.bytes < end {
            return Err(failed(&Failure::Ends(expected.bytes)));
        }
        let (server, patience) = (Arc::clone(&self.server), Patience::new(&self.options));
        let transfer = Transfer::new(server, path, offset..end, expected, patience, Arc::clone(&self.counters));
        let lanes = self.options.parts_at_once;
        read_in_parts(&self.driver, transfer, lanes, buffer, |_| Ok(()), Failure::TimedOut)
            .map_err(|failure| failed(&failure))
    }

    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        self.known_or_look(&normal(path))
    }

    fn counts(&self) -> StorageCounts {
        self.counters.look()
    }

    fn describe(&self) -> String {
        format!("files of {}", self.place.base)
    }
}

impl std::fmt::Debug for Nfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nfs({})", self.place.base)
    }
}
