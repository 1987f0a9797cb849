//! Objects of a store or a web server: [`Remote`].
//!
//! `object_store` knows the stores' protocols and signs requests; what is here makes a [`Storage`] of it. One thread of
//! its own drives all requests of a storage (`tokio`, without threads of its own). A worker that reads hands its range
//! to that thread and copies the bytes into its buffer as they arrive; so as many requests are under way as workers
//! read, times the parts that a large read is split into.
//!
//! | module | what it does |
//! |---|---|
//! | `place` | from a URL and variables to a store; credentials |
//! | `connect` | addresses, proxies, TLS |
//! | `client` | HTTP/1.1 on connections that are used again |
//! | `fetch` | a part of a range with attempts, one content only |
//! | `parts` | ranges in parts, some of them at once |
//! | `driver`, `patience` | the thread, and how attempts are repeated |
//! | `trouble`, `explain` | what went wrong, as a type and in words |
//! | `nfs` | files of an NFS server, with a protocol and errors of its own |
//!
//! **Invariant:** every call ends within the deadline of the options. All reads of an object through one storage are of
//! one content, the one that it first saw.
//!
//! What is deliberately not here: keeping bytes (`cache`).

mod client;
mod connect;
mod crypto;
mod driver;
mod explain;
mod fetch;
mod nfs;
mod parts;
mod patience;
mod place;
mod profile;
mod proxies;
mod trouble;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};

use self::client::{Client, ClientParts, Redirects};
use self::connect::Dialer;
use self::driver::Driver;
use self::fetch::{Failure, Fetch, is_same, version_of};
use self::nfs::{Nfs, NfsPlace};
use self::parts::{Parts, read_in_parts};
use self::patience::Patience;
use self::place::{Kind, Place, Secrets};
use self::trouble::Trouble;
use super::counters::{Count, StorageCounters, StorageCounts};
use super::{Object, ObjectVersion, Storage, StorageError, StorageOptions};

#[cfg(any(test, fuzzing))]
pub use self::nfs::check_any_answer;

/// Requests end at the deadline by themselves; this much later the thread that drives them counts as dead.
const GRACE: Duration = Duration::from_secs(10);

/// A storage, and what a cache in front of it needs.
pub(super) struct Opened {
    pub(super) storage: Arc<dyn Storage>,
    /// The path of the URL within it.
    pub(super) path: String,
    /// What it is called among caches: two with the same one have the same objects.
    pub(super) identity: String,
    /// What it counts into.
    pub(super) counters: Arc<StorageCounters>,
}

/// The storage of a URL's parts. Nothing is asked of it yet.
pub(super) fn open(scheme: &str, authority: &str, path: &str, options: &StorageOptions) -> Result<Opened, String> {
    // What keeps an attempt is known when it has ended: the first one must, before time is over.
    let longest = options.deadline / 2;
    let options = &StorageOptions {
        connect_timeout: options.connect_timeout.min(longest),
        silence_timeout: options.silence_timeout.min(longest),
        ..options.clone()
    };
    let counters = Arc::<StorageCounters>::default();
    if scheme == "nfs" {
        let place = NfsPlace::new(authority, path)?;
        let (path, identity) = (place.path.clone(), place.identity());
        let storage = Arc::new(Nfs::new(place, options, Arc::clone(&counters))?);
        return Ok(Opened { storage, path, identity, counters });
    }
    let place = Place::new(scheme, authority, path)?;
    let path = place.path.clone();
    let (remote, identity) = Remote::new(place, options, Arc::clone(&counters))?;
    Ok(Opened { storage: Arc::new(remote), path, identity, counters })
}

/// See the module's text.
struct Remote {
    place: Place,
    store: Arc<dyn ObjectStore>,
    secrets: Secrets,
    options: StorageOptions,
    counters: Arc<StorageCounters>,
    no_ranges: Arc<AtomicBool>,
    /// The contents of objects that were looked at, by a hash of the path: 32 bytes for each. Readers add and look up.
    versions: Mutex<HashMap<u128, ObjectVersion>>,
    driver: Driver,
}

impl Remote {
    /// The store of a place, with credentials from the variables of the options, and what it is called among caches.
    fn new(place: Place, options: &StorageOptions, counters: Arc<StorageCounters>) -> Result<(Remote, String), String> {
        let client = Client::new(ClientParts {
            dialer: Dialer::new(options.connect_timeout, options.silence_timeout, &options.variables),
            connections: options.connections,
            silence_timeout: options.silence_timeout,
            counters: Arc::clone(&counters),
            redirects: if place.kind == Kind::Web { Redirects::Follow } else { Redirects::Refuse },
        });
        let (store, identity, secrets) = place.connect(&options.variables, client)?;
        let remote = Remote {
            place,
            store,
            secrets,
            options: options.clone(),
            counters,
            no_ranges: Arc::default(),
            versions: Mutex::default(),
            driver: Driver::start()?,
        };
        Ok((remote, identity))
    }

    fn error(&self, path: &str, offset: Option<u64>, failure: &Failure) -> StorageError {
        let (kind, cause) = explain::explain(failure, &self.place);
        StorageError { path: format!("{}/{path}", self.place.base), offset, kind, cause: self.secrets.hide(&cause) }
    }

    /// Runs an attempt until it succeeds or patience ends, and waits for it.
    fn persist<T, F>(&self, attempt: impl Fn(Arc<dyn ObjectStore>) -> F + Send + 'static) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, object_store::Error>> + Send,
    {
        let (sender, receiver) = channel();
        let (patience, store, counters) =
            (Patience::new(&self.options), Arc::clone(&self.store), Arc::clone(&self.counters));
        self.driver.spawn(async move {
            let mut fruitless = 0;
            // Whoever runs out of time wants to know what kept the attempts before.
            let mut last = None;
            let result = loop {
                let failure = match patience.within(attempt(Arc::clone(&store))).await {
                    Some(Ok(value)) => break Ok(value),
                    Some(Err(error)) => Failure::Store(error),
                    None => break Err(last.unwrap_or(Failure::TimedOut)),
                };
                fruitless += 1;
                let pause = failure.may_pass().then(|| patience.pause(fruitless)).flatten();
                let Some(pause) = pause else { break Err(failure) };
                last = Some(failure);
                counters.count(Count::Retry);
                tokio::time::sleep(pause).await;
            };
            // Nobody listens any more if the deadline has passed.
            let _ = sender.send(result);
        });
        match receiver.recv_timeout(self.options.deadline + GRACE) {
            Ok(result) => result,
            Err(_) => Err(Failure::TimedOut),
        }
    }

    /// Asks the store for the content of an object.
    fn look(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        let location = location(path);
        let options = GetOptions { head: true, ..GetOptions::default() };
        let asked = location.clone();
        let found = self.persist(move |store| {
            let (asked, options) = (asked.clone(), options.clone());
            async move { store.get_opts(&asked, options).await.map(|got| got.meta) }
        });
        let found = match found {
            // An answer to HEAD has no text; one to GET says which of several causes it is.
            Err(Failure::Store(error)) if matches!(Trouble::within(&error), Some(Trouble::Refused(_))) => {
                let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
                let again = self.persist(move |store| {
                    let (asked, options) = (location.clone(), options.clone());
                    async move { store.get_opts(&asked, options).await.map(|got| got.meta) }
                });
                match again {
                    // Whoever may read but not look, or whose server knows no HEAD.
                    Ok(meta) => Ok(meta),
                    Err(Failure::Store(other)) if matches!(Trouble::within(&other), Some(Trouble::NoRanges)) => {
                        Err(Failure::Store(error))
                    }
                    Err(other) => Err(other),
                }
            }
            found => found,
        };
        let version = version_of(&found.map_err(|failure| self.error(path, None, &failure))?);
        self.remember(path, version);
        Ok(version)
    }

    fn known(&self, path: &str) -> Option<ObjectVersion> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).get(&key(path)).copied()
    }

    fn remember(&self, path: &str, version: ObjectVersion) {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).insert(key(path), version);
    }

    fn fetch(
        &self,
        path: &str,
        range: Range<u64>,
        expected: Option<ObjectVersion>,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let fetch = Fetch {
            store: Arc::clone(&self.store),
            path: location(path),
            parts: Parts::new(range, self.options.part_bytes as u64),
            expected,
            patience: Patience::new(&self.options),
            whole_bytes: self.options.whole_bytes,
            no_ranges: Arc::clone(&self.no_ranges),
            counters: Arc::clone(&self.counters),
        };
        let seen = |version| match self.known(path) {
            Some(known) if !is_same(known, version) => Err(Failure::Changed),
            Some(known) if known.tag != 0 => Ok(()),
            _ => {
                self.remember(path, version);
                Ok(())
            }
        };
        read_in_parts(&self.driver, fetch, self.options.parts_at_once, buffer, seen, Failure::TimedOut)
    }
}

impl Storage for Remote {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        // Stores list whole folders; the rest of the prefix is left to us.
        let folder = prefix.rsplit_once('/').map(|(folder, _)| location(folder));
        let found = self.persist(move |store| {
            let folder = folder.clone();
            async move {
                let mut objects: Vec<ObjectMeta> = Vec::new();
                let mut listing = store.list(folder.as_ref());
                while let Some(object) = listing.next().await {
                    objects.push(object?);
                }
                Ok(objects)
            }
        });
        let mut found = found.map_err(|failure| self.error(prefix, None, &failure))?;
        found.retain(|object| object.location.as_ref().starts_with(prefix));
        found.sort_by(|one, other| one.location.as_ref().as_bytes().cmp(other.location.as_ref().as_bytes()));
        for object in &found {
            // S3 calls contents by the same name in listings and in answers; of others that is not known.
            let tag = if self.place.kind == Kind::S3 { version_of(object).tag } else { 0 };
            if self.known(object.location.as_ref()).is_none() {
                self.remember(object.location.as_ref(), ObjectVersion { bytes: object.size, tag });
            }
        }
        let objects: Vec<Object> =
            found.iter().map(|it| Object { path: it.location.as_ref().to_owned(), bytes: it.size }).collect();
        Ok(without_folders(objects))
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        let version = self.known(path).map_or_else(|| self.look(path), Ok)?;
        Ok(version.bytes)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let failed = |failure: &Failure| self.error(path, Some(offset), failure);
        let end = offset.checked_add(buffer.len() as u64).ok_or_else(|| failed(&Failure::Ends(u64::MAX)))?;
        let mut expected = self.known(path);
        // The parts of a large read must be of one content.
        if expected.is_none_or(|version| version.tag == 0) && buffer.len() > self.options.part_bytes {
            expected = Some(self.look(path)?);
        }
        if let Some(version) = expected.filter(|version| version.bytes < end) {
            return Err(failed(&Failure::Ends(version.bytes)));
        }
        self.fetch(path, offset..end, expected, buffer).map_err(|failure| failed(&failure))
    }

    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        match self.known(path) {
            Some(version) if version.tag != 0 => Ok(version),
            known => {
                let version = self.look(path)?;
                match known.is_some_and(|known| known.bytes != version.bytes) {
                    true => Err(self.error(path, None, &Failure::Changed)),
                    false => Ok(version),
                }
            }
        }
    }

    fn counts(&self) -> StorageCounts {
        self.counters.look()
    }

    fn describe(&self) -> String {
        format!("objects of {}", self.place.base)
    }
}

impl std::fmt::Debug for Remote {
    /// The place alone: everything below it may hold credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.place.base)
    }
}

/// The path as the store has it. Most are as they are; those that `object_store` would not take are encoded.
fn location(path: &str) -> Path {
    Path::parse(path).unwrap_or_else(|_| Path::from(path))
}

fn key(path: &str) -> u128 {
    let hash = blake3::hash(path.as_bytes());
    let first = hash.as_bytes().first_chunk().expect("invariant: a hash has 32 bytes");
    u128::from_le_bytes(*first)
}

/// Leaves out the empty objects that stand for folders: those with others below them.
fn without_folders(objects: Vec<Object>) -> Vec<Object> {
    let is_folder = |object: &Object| {
        let below = format!("{}/", object.path);
        let at = objects.partition_point(|other| other.path.as_bytes() < below.as_bytes());
        object.bytes == 0 && objects.get(at).is_some_and(|other| other.path.starts_with(&below))
    };
    let folders: Vec<bool> = objects.iter().map(is_folder).collect();
    objects.into_iter().zip(folders).filter(|(_, is_folder)| !is_folder).map(|(object, _)| object).collect()
}
