//! Looks through shards, several at a time.
//!
//! A shard with a good index is not looked through. Threads take the next shard when they are done with one; the first
//! error, by the order of shards, is the one that is told, whichever thread was faster.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::config::{RecordsConfig, ScanProgress};
use super::index::{self, About, Entry};
use super::sharded::ShardReader;
use crate::format::{FormatError, StoredFile};

/// Threads at most: a disk or a store has no use for more requests at a time from one process.
const MAX_THREADS: usize = 16;

/// What looking through one shard has come to.
type Scanned = Result<Vec<Entry>, FormatError>;

/// The entries of all shards, in their order.
pub(crate) fn scan(
    shards: &[StoredFile],
    reader: &dyn ShardReader,
    config: &RecordsConfig,
) -> Result<Vec<Vec<Entry>>, FormatError> {
    let wanted = match config.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    let found: Vec<Mutex<Option<Scanned>>> = shards.iter().map(|_| Mutex::default()).collect();
    // Threads count the shards that they take; nothing else is ordered by it.
    let next = AtomicUsize::new(0);
    // Whoever is done with a shard counts it and tells under this lock, so that progress only grows.
    let progress = Mutex::new(ScanProgress { done: 0, shards: shards.len(), records: 0 });
    // Says that a shard is damaged: those after it do not matter, those before it are being looked through.
    let failed = AtomicBool::new(false);
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = shards.get(number) else { break };
            let entries = scan_one(number, shard, reader, config);
            match &entries {
                Err(_) => failed.store(true, Ordering::Relaxed),
                Ok(entries) => {
                    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                    progress.done += 1;
                    progress.records += entries.len();
                    if let Some(tell) = &config.progress {
                        tell(*progress);
                    }
                }
            }
            *found[number].lock().expect("invariant: nobody panics with this lock") = Some(entries);
        }
    };
    std::thread::scope(|scope| {
        // This thread works, too.
        for _ in 1..wanted.min(MAX_THREADS).min(shards.len()) {
            scope.spawn(work);
        }
        work();
    });
    let found = found.into_iter().filter_map(|found| found.into_inner().expect("invariant: all threads have ended"));
    found.collect()
}

fn scan_one(
    number: usize,
    shard: &StoredFile,
    reader: &dyn ShardReader,
    config: &RecordsConfig,
) -> Result<Vec<Entry>, FormatError> {
    let place = index::path(shard, &config.index).filter(|_| reader.is_indexed());
    let about = About::of(shard, &reader.sought());
    if let Some((path, about)) = place.as_ref().zip(about.as_ref())
        && let Some(entries) = index::load(path, about)
    {
        return Ok(entries);
    }
    let entries = reader.scan(number, shard)?;
    // A shard that was changed while it was looked through has no index; the next one to open it makes one.
    if let Some((path, about)) = place.zip(about)
        && About::of(shard, &reader.sought()).as_ref() == Some(&about)
    {
        index::keep(&path, &about, &entries);
    }
    Ok(entries)
}
