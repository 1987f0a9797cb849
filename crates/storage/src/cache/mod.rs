//! Blocks of another storage, kept in memory and on the host's disk: [`CachedStorage`].
//!
//! Objects are cut into blocks of the same length. A block is named by a hash of where it comes from, the object's path
//! and content (its version) and its number; so a block never goes out of date, and an object that is replaced has new
//! blocks. A read takes a block from memory, else from disk, else it fetches it (`fetch`): once in a process
//! (`flights`), once on a host by a lease on disk (`disk`), and once in a job by asking the rank that fetches it for
//! all (`peers`). Others wait for it, with a deadline, and then fetch it themselves.
//!
//! **Invariant:** what is read is what the storage behind has, or an error of that storage. The cache has no errors of
//! its own: what is broken or cannot be written is fetched.
//!
//! What is deliberately not here: writing through, and removing blocks of objects that are gone; they grow old.

mod ahead;
mod block;
mod disk;
mod fetch;
mod flights;
mod memory;
mod pace;
pub mod peers;
mod question;
mod ranks;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farandole_settings as settings;

use self::ahead::{Ahead, Streams};
use self::disk::{DiskBlocks, Found};
use self::flights::Flights;
use self::memory::MemoryBlocks;
use self::pace::Pace;
use self::peers::PeerCaches;
use super::counters::{Count, StorageCounters, StorageCounts};
use super::{Object, ObjectVersion, Storage, StorageError, StorageErrorKind};

/// What is kept, and where.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The folder on the host's disk; none: nothing is kept there.
    pub folder: Option<PathBuf>,
    /// How much the blocks on disk may take.
    pub disk_bytes: u64,
    /// How much the blocks in memory may take.
    pub memory_bytes: u64,
    /// The length of a block.
    pub block_bytes: usize,
    /// How long a thread waits for another one to fetch a block, before it does so itself.
    pub patience: Duration,
    /// Whether blocks are fetched before they are asked for.
    pub read_ahead: ReadAhead,
    /// The caches that share blocks with other ranks; none: this one does not.
    pub peers: Option<Arc<PeerCaches>>,
    /// When other ranks are asked.
    pub ask_peers: AskPeers,
}

/// When other ranks are asked for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskPeers {
    /// Where that is faster than storage.
    WhereFaster,
    /// Also where it is not: requests to a store may cost money, or others wait for it.
    Always,
}

/// Whether blocks are fetched before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// The next block, while an object is read in order.
    NextBlock,
    /// Never.
    Off,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            folder: None,
            disk_bytes: settings::DATA_CACHE_BYTES.default_value(),
            memory_bytes: settings::DATA_MEMORY_BYTES.default_value(),
            // Transfers of this length use most of what a connection to a store carries, and cost a tenth of a second.
            block_bytes: 4 << 20,
            // Longer than a fetch takes that must be repeated; the other may also have died without a trace.
            patience: Duration::from_secs(30),
            read_ahead: ReadAhead::NextBlock,
            peers: None,
            ask_peers: AskPeers::WhereFaster,
        }
    }
}

impl CacheOptions {
    /// Whether nothing is kept anywhere.
    pub fn is_off(&self) -> bool {
        self.folder.is_none() && self.memory_bytes == 0
    }
}

/// The name of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key(u128);

/// A storage through a cache. See the module's text.
#[derive(Debug)]
pub struct CachedStorage {
    shared: Arc<Shared>,
    ahead: Option<Ahead<(Key, Span)>>,
}

/// What readers and the threads that read ahead have in common.
#[derive(Debug)]
struct Shared {
    inner: Arc<dyn Storage>,
    /// The hash of what the storage behind is called, the begin of every key.
    identity: blake3::Hash,
    options: CacheOptions,
    memory: MemoryBlocks,
    disk: Option<DiskBlocks>,
    /// Fetches under way, from wherever.
    flights: Flights,
    /// Those from the storage behind, for this process and for ranks that ask.
    origin_flights: Flights,
    /// How fast the storage behind is.
    pace: Pace,
    streams: Streams,
    counters: Arc<StorageCounters>,
}

/// A block: which bytes of which object.
#[derive(Clone, Debug)]
struct Span {
    path: String,
    begin: u64,
    bytes: usize,
}

impl CachedStorage {
    /// A cache of a storage that is called `identity`: caches of storages with the same one share blocks on disk.
    pub fn new(
        inner: Arc<dyn Storage>,
        identity: &str,
        options: &CacheOptions,
        counters: Arc<StorageCounters>,
    ) -> CachedStorage {
        let options = CacheOptions { block_bytes: options.block_bytes.max(1), ..options.clone() };
        let disk = options.folder.as_ref();
        let disk = disk.and_then(|folder| DiskBlocks::open(folder, options.disk_bytes, Arc::clone(&counters)));
        let shared = Arc::new(Shared {
            inner,
            identity: blake3::hash(identity.as_bytes()),
            memory: MemoryBlocks::new(options.memory_bytes),
            disk,
            flights: Flights::default(),
            origin_flights: Flights::default(),
            pace: Pace::default(),
            streams: Streams::default(),
            counters,
            options,
        });
        if let Some(peers) = shared.options.peers.as_ref().filter(|_| shared.keeps_something()) {
            peers.add(&shared);
        }
        let ahead = (shared.options.read_ahead == ReadAhead::NextBlock && shared.keeps_something()).then(|| {
            let shared = Arc::clone(&shared);
            Ahead::start(move |(key, span): (Key, Span)| {
                // Whoever needs the block asks again, and gets the error.
                let _ = shared.fetch(key, &span);
            })
        });
        CachedStorage { shared, ahead }
    }

    /// Has the blocks fetched that will be wanted: the others of this read, and the next one of a read in order.
    fn read_ahead(&self, path: &str, version: ObjectVersion, blocks: Range<u64>, goes_on: bool) {
        let Some(ahead) = &self.ahead else { return };
        let last = if goes_on { blocks.end + 1 } else { blocks.end };
        for number in blocks.start + 1..last {
            if let Some((key, span)) = self.shared.block(path, version, number)
                && !self.shared.has(key)
            {
                ahead.ask((key, span));
            }
        }
    }
}

impl Storage for CachedStorage {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        self.shared.inner.list(prefix)
    }

    fn size(&self, path: &str) -> Result<u64, StorageError> {
        self.shared.inner.size(path)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let shared = &self.shared;
        let version = shared.inner.version(path)?;
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= version.bytes);
        let end = end.ok_or_else(|| StorageError {
            path: format!("{path} of {}", shared.inner.describe()),
            offset: Some(offset),
            kind: StorageErrorKind::Truncated,
            cause: format!("the object has only {} bytes", version.bytes),
        })?;
        let block_bytes = shared.options.block_bytes as u64;
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        let goes_on = shared.streams.goes_on(shared.object(path).0, offset, end);
        self.read_ahead(path, version, blocks.clone(), goes_on);
        let mut rest = buffer;
        for number in blocks {
            let (key, span) = shared.block(path, version, number).expect("invariant: the range ends within the object");
            let first = (offset.max(span.begin) - span.begin) as usize;
            let last = ((end - span.begin) as usize).min(span.bytes);
            let (part, behind) = rest.split_at_mut(last - first);
            shared.read_block(key, &span, first..last, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        self.shared.inner.version(path)
    }

    fn counts(&self) -> StorageCounts {
        self.shared.counters.look()
    }

    fn describe(&self) -> String {
        let at = self.shared.options.folder.as_ref().filter(|_| self.shared.disk.is_some());
        let at = at.map(|folder| format!("in {} and ", folder.display())).unwrap_or_default();
        format!("{}, kept {at}in memory", self.shared.inner.describe())
    }
}

impl Shared {
    fn keeps_something(&self) -> bool {
        self.disk.is_some() || self.options.memory_bytes >= self.options.block_bytes as u64
    }

    fn object(&self, path: &str) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.identity.as_bytes()).update(path.as_bytes());
        key(&hasher)
    }

    /// The name of a block and where it is; none behind the end of the object.
    fn block(&self, path: &str, version: ObjectVersion, number: u64) -> Option<(Key, Span)> {
        let block_bytes = self.options.block_bytes as u64;
        let begin = number.checked_mul(block_bytes).filter(|begin| *begin < version.bytes)?;
        let bytes = (version.bytes - begin).min(block_bytes) as usize;
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.identity.as_bytes());
        for number in [version.bytes, version.tag, block_bytes, number] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(path.as_bytes());
        Some((key(&hasher), Span { path: path.to_owned(), begin, bytes }))
    }

    fn has(&self, key: Key) -> bool {
        self.memory.contains(key) || self.disk.as_ref().is_some_and(|disk| disk.contains(key))
    }

    fn read_block(&self, key: Key, span: &Span, range: Range<usize>, buffer: &mut [u8]) -> Result<(), StorageError> {
        if let Some(block) = self.memory.get(key) {
            self.counters.count(Count::MemoryHit);
            buffer.copy_from_slice(&block[range]);
            return Ok(());
        }
        if let Some(disk) = &self.disk
            && disk.read(key, span.bytes, range.clone(), buffer) == Found::Hit
        {
            self.counters.count(Count::DiskHit);
            return Ok(());
        }
        if !self.keeps_something() {
            return self.inner.read_at(&span.path, span.begin + range.start as u64, buffer);
        }
        buffer.copy_from_slice(&self.fetch(key, span)?[range]);
        Ok(())
    }
}

/// The first half of a hash.
fn key(hasher: &blake3::Hasher) -> Key {
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk().expect("invariant: a hash has 32 bytes");
    Key(u128::from_le_bytes(*first))
}
