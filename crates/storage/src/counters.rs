//! What a storage counts while it is read from.
//!
//! A storage and the cache in front of it count into the same [`StorageCounters`], so that one look shows all.
//!
//! What is deliberately not here: rates. Whoever shows them takes two looks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that many threads add to. Relaxed: they order nothing, and are read to be shown.
#[derive(Debug, Default)]
pub struct StorageCounters {
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    from_peers: AtomicU64,
    for_peers: AtomicU64,
    waits: AtomicU64,
    broken_blocks: AtomicU64,
    evicted_blocks: AtomicU64,
    requests: AtomicU64,
    retries: AtomicU64,
    bytes_fetched: AtomicU64,
}

/// One look at [`StorageCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageCounts {
    /// Reads of a block that was in memory.
    pub memory_hits: u64,
    /// Reads of a block that was on the host's disk.
    pub disk_hits: u64,
    /// Blocks that had to be fetched from the store.
    pub misses: u64,
    /// Blocks that came from other ranks of the job.
    pub from_peers: u64,
    /// Blocks that other ranks of the job were given.
    pub for_peers: u64,
    /// Times that a thread waited for another one, or for another process, to fetch a block.
    pub waits: u64,
    /// Blocks on disk that were not what was written, and were fetched again.
    pub broken_blocks: u64,
    /// Blocks that were removed from disk to make room.
    pub evicted_blocks: u64,
    /// Requests that were sent to the store.
    pub requests: u64,
    /// Requests that were sent again after an error.
    pub retries: u64,
    /// Bytes of objects that came from the store.
    pub bytes_fetched: u64,
}

/// Which counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    MemoryHit,
    DiskHit,
    Miss,
    FromPeer,
    ForPeer,
    Wait,
    BrokenBlock,
    EvictedBlock,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "only remote storage sends requests"))]
    Request,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "only remote storage sends requests"))]
    Retry,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "only remote storage fetches"))]
    BytesFetched,
}

impl StorageCounters {
    /// Adds one.
    pub(crate) fn count(&self, what: Count) {
        self.add(what, 1);
    }

    /// Adds several.
    pub(crate) fn add(&self, what: Count, number: u64) {
        let counter = match what {
            Count::MemoryHit => &self.memory_hits,
            Count::DiskHit => &self.disk_hits,
            Count::Miss => &self.misses,
            Count::FromPeer => &self.from_peers,
            Count::ForPeer => &self.for_peers,
            Count::Wait => &self.waits,
            Count::BrokenBlock => &self.broken_blocks,
            Count::EvictedBlock => &self.evicted_blocks,
            Count::Request => &self.requests,
            Count::Retry => &self.retries,
            Count::BytesFetched => &self.bytes_fetched,
        };
        counter.fetch_add(number, Ordering::Relaxed);
    }

    /// All of them now.
    pub fn look(&self) -> StorageCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StorageCounts {
            memory_hits: read(&self.memory_hits),
            disk_hits: read(&self.disk_hits),
            misses: read(&self.misses),
            from_peers: read(&self.from_peers),
            for_peers: read(&self.for_peers),
            waits: read(&self.waits),
            broken_blocks: read(&self.broken_blocks),
            evicted_blocks: read(&self.evicted_blocks),
            requests: read(&self.requests),
            retries: read(&self.retries),
            bytes_fetched: read(&self.bytes_fetched),
        }
    }
}

impl std::fmt::Display for StorageCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "blocks: {} found in memory, {} on disk, {} fetched, {} got from other ranks, {} given to them, {} waited for, \
             {} broken, {} removed; {} requests, {} of them again; {} bytes fetched",
            self.memory_hits,
            self.disk_hits,
            self.misses,
            self.from_peers,
            self.for_peers,
            self.waits,
            self.broken_blocks,
            self.evicted_blocks,
            self.requests,
            self.retries,
            self.bytes_fetched
        )
    }
}
