//! Blocks on the host's disk, for all its ranks: [`DiskBlocks`].
//!
//! In a private folder of the user: `ab/cdef…` are blocks, named by their key; `tmp/` has those that are being written,
//! each locked by its writer; `locks/` has the files that leases lock; `usage` has the bytes of all blocks.
//!
//! **Other users** may be able to write to the folder around it. A [`PrivateFolder`] refuses their links and folders,
//! and keeps descriptors, so a path that is replaced later has no effect. Only regular files whose names have the form
//! of this cache's names are removed.
//!
//! **Scenarios.** *A process is killed while it writes:* the file is in `tmp`, and nobody looks for it there; who opens
//! the cache later finds it old and unlocked, and removes it. *Killed between renaming and counting:* `usage` is too
//! small until somebody opens the cache or makes room, and counts anew. *Killed while it holds a lease:* the kernel
//! releases the lock. *Two write the same block:* the second one replaces the first, with the same bytes. *A block is
//! removed while somebody reads it:* the reader's file stays until it is closed.
//!
//! **Invariant:** nothing here fails a read. A disk that is full or may not be written is not written any more, and one
//! line says so.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use farandole_trace::PrivateFolder;

use super::super::counters::{Count, StorageCounters};
use super::Key;
use super::block::{self, Read};

/// The time of the last use of a block is written at most this often: cheap, and exact enough for a cache that is used
/// for hours.
const TOUCH_AFTER: Duration = Duration::from_secs(60);

/// A file in `tmp` that is not locked is left behind, if it is older than the moment between its making and locking.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(60);

/// How many files leases are spread over. Two blocks with the same one wait for each other without need: with a hundred
/// fetches at once, one in forty does.
const LOCKS: u128 = 4096;

/// How often a lease that another process has is asked for.
const LEASE_INTERVAL: Duration = Duration::from_millis(5);

/// `usage` is locked for a read and a write of eight bytes. Whoever has it longer was stopped.
const USAGE_PATIENCE: Duration = Duration::from_secs(2);

/// When the limit is reached, this share of it is kept, so that room is not made for every block.
const KEPT_PERCENT: u64 = 90;

/// See the module's text.
#[derive(Debug)]
pub(super) struct DiskBlocks {
    /// For messages.
    path: PathBuf,
    own: PrivateFolder,
    temporary: PrivateFolder,
    locks: PrivateFolder,
    limit_bytes: u64,
    counters: Arc<StorageCounters>,
    /// Set by the first thread whose write fails; all others then leave writing.
    is_read_only: AtomicBool,
    number: AtomicU64,
}

/// What a lease is for. Ranks that ask another rank for a block never wait for one that reads it from storage, because
/// that one may be answering them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseKind {
    /// To read the block from storage.
    Read,
    /// To ask another rank for it.
    Ask,
}

/// How a lease was asked for.
#[derive(Debug)]
pub(super) enum Leased {
    /// Nobody else fetches the block until this is dropped, or the process ends.
    Mine(#[expect(dead_code, reason = "closing the file releases the lock")] File),
    /// Somebody else has fetched it.
    Arrived,
    /// Somebody else had the lease all the time, or there are no leases here.
    Without,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Hit,
    Miss,
}

impl DiskBlocks {
    /// Opens the cache in a folder, or makes one. None, with a warning, where that cannot be.
    pub(super) fn open(folder: &Path, limit_bytes: u64, counters: Arc<StorageCounters>) -> Option<DiskBlocks> {
        // The form of the blocks is part of the name: other versions leave each other alone.
        let path = folder.join("farandole-blocks-1");
        match DiskBlocks::prepare(&path, limit_bytes, counters) {
            Ok(disk) => {
                disk.remove_what_was_left_behind();
                disk.count_anew();
                Some(disk)
            }
            Err(error) => {
                log::warn!("{}: {error}; remote objects are not cached on disk", path.display());
                None
            }
        }
    }

    /// Creates what is missing, readable by this user alone.
    fn prepare(path: &Path, limit_bytes: u64, counters: Arc<StorageCounters>) -> io::Result<DiskBlocks> {
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let own = PrivateFolder::create(path)?;
        let within = |name: &str| {
            own.create_folder(name).map_err(|error| io::Error::new(error.kind(), format!("folder {name}: {error}")))
        };
        let (temporary, locks) = (within("tmp")?, within("locks")?);
        // A first write fails here and not at the first block, so that the warning comes at the start.
        let probe = format!("{}-probe", std::process::id());
        temporary.open_or_create_file(&probe)?;
        temporary.remove_file(&probe)?;
        let (is_read_only, number) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(DiskBlocks { path: path.to_owned(), own, temporary, locks, limit_bytes, counters, is_read_only, number })
    }

    /// Reads a range of a block, if it is there. A broken one is removed.
    pub(super) fn read(&self, key: Key, block_bytes: usize, range: Range<usize>, buffer: &mut [u8]) -> Found {
        let (folder, name) = names(key);
        let Ok(folder) = self.own.open_folder(&folder) else { return Found::Miss };
        let Ok(file) = folder.open_file(&name) else { return Found::Miss };
        match block::read(&file, key, block_bytes, range, buffer) {
            Ok(Read::Done) => {
                touch(&file);
                Found::Hit
            }
            Ok(Read::Broken) | Err(_) => {
                self.counters.count(Count::BrokenBlock);
                // If it cannot be removed, the next reader finds it broken again.
                let _ = folder.remove_file(&name);
                Found::Miss
            }
        }
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        let (folder, name) = names(key);
        self.own.open_folder(&folder).is_ok_and(|folder| folder.has_file(&name))
    }

    /// Waits until nobody else fetches this block, or it is there, or time is over.
    pub(super) fn lease(&self, key: Key, kind: LeaseKind, patience: Duration) -> Leased {
        let number = key.0 % LOCKS;
        let name = match kind {
            LeaseKind::Read => format!("{number:03x}"),
            LeaseKind::Ask => format!("ask-{number:03x}"),
        };
        let Ok(file) = self.locks.open_or_create_file(&name) else { return Leased::Without };
        let began = Instant::now();
        let mut has_waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Leased::Mine(file),
                Err(fs::TryLockError::WouldBlock) if began.elapsed() < patience => {
                    if !has_waited {
                        self.counters.count(Count::Wait);
                        has_waited = true;
                    }
                    std::thread::sleep(LEASE_INTERVAL);
                    if self.contains(key) {
                        return Leased::Arrived;
                    }
                }
                Err(_) => return Leased::Without,
            }
        }
    }

    /// Writes a block, and makes room where that needs it.
    pub(super) fn write(&self, key: Key, block: &[u8]) {
        let bytes = block::file_bytes(block.len());
        if self.is_read_only.load(Ordering::Relaxed) || bytes > self.limit_bytes {
            return;
        }
        match self.write_temporary(key, block) {
            Ok(temporary) => {
                if self.publish(&temporary, key).is_err() {
                    // Something else has its name, or its folder is gone: the block is not kept.
                    let _ = self.temporary.remove_file(&temporary);
                    return;
                }
                self.account(bytes);
            }
            Err(error) => {
                if !self.is_read_only.swap(true, Ordering::Relaxed) {
                    log::warn!("{}: {error}; no more remote objects are cached on disk", self.path.display());
                }
            }
        }
    }

    fn write_temporary(&self, key: Key, block: &[u8]) -> io::Result<String> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        // The address tells two caches of one process apart.
        let name = format!("{}-{:x}-{number}", std::process::id(), std::ptr::from_ref(self).addr());
        let written = self.temporary.create_file(&name).and_then(|mut file| {
            // A file system that knows no locks has leftovers removed by their age alone.
            let _ = file.try_lock();
            block::write(&mut file, key, block)
        });
        if let Err(error) = written {
            let _ = self.temporary.remove_file(&name);
            return Err(error);
        }
        Ok(name)
    }

    fn publish(&self, temporary: &str, key: Key) -> io::Result<()> {
        let (folder, name) = names(key);
        self.temporary.move_file(temporary, &self.own.create_folder(&folder)?, &name)
    }

    /// Adds a block to `usage`, and makes room when the limit is passed.
    fn account(&self, bytes: u64) {
        let Some(usage) = self.lock_usage() else { return };
        let before = read_number(&usage).unwrap_or_else(|| self.blocks().iter().map(|block| block.bytes).sum());
        let mut now = before.saturating_add(bytes);
        if now > self.limit_bytes {
            now = self.make_room();
        }
        // What is not counted now is counted when the cache is next opened.
        let _ = usage.write_all_at(&now.to_le_bytes(), 0);
    }

    /// Sets `usage` to what is there.
    fn count_anew(&self) {
        let Some(usage) = self.lock_usage() else { return };
        let mut bytes = self.blocks().iter().map(|block| block.bytes).sum();
        if bytes > self.limit_bytes {
            bytes = self.make_room();
        }
        let _ = usage.write_all_at(&bytes.to_le_bytes(), 0);
    }

    /// `usage`, locked until it is closed.
    fn lock_usage(&self) -> Option<File> {
        let file = self.own.open_or_create_file("usage").ok()?;
        let began = Instant::now();
        while file.try_lock().is_err() {
            if began.elapsed() > USAGE_PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(file)
    }

    /// Removes the blocks that were not used for longest. Returns the bytes of those that stay.
    fn make_room(&self) -> u64 {
        let mut blocks = self.blocks();
        blocks.sort_by_key(|block| block.used);
        let mut bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
        let goal = self.limit_bytes / 100 * KEPT_PERCENT;
        for block in blocks {
            if bytes <= goal {
                break;
            }
            if self.own.open_folder(&block.folder).is_ok_and(|folder| folder.remove_file(&block.name).is_ok()) {
                self.counters.count(Count::EvictedBlock);
                bytes -= block.bytes;
            }
        }
        bytes
    }

    /// All blocks. Files and folders with other names are ignored.
    fn blocks(&self) -> Vec<BlockFile> {
        let mut found = Vec::new();
        for folder in self.own.names().unwrap_or_default().into_iter().filter(|name| name.len() == 2 && is_hex(name)) {
            let Ok(opened) = self.own.open_folder(&folder) else { continue };
            for name in opened.names().unwrap_or_default().into_iter().filter(|name| name.len() == 30 && is_hex(name)) {
                if let Ok(about) = opened.open_file(&name).and_then(|file| file.metadata()) {
                    let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push(BlockFile { folder: folder.clone(), name, bytes: about.len(), used });
                }
            }
        }
        found
    }

    fn remove_what_was_left_behind(&self) {
        for name in self.temporary.names().unwrap_or_default().into_iter().filter(|name| is_temporary(name)) {
            let Ok(file) = self.temporary.open_file(&name) else { continue };
            if age(&file).is_some_and(|age| age > LEFT_BEHIND_AFTER) && file.try_lock().is_ok() {
                let _ = self.temporary.remove_file(&name);
            }
        }
    }
}

struct BlockFile {
    folder: String,
    name: String,
    bytes: u64,
    used: SystemTime,
}

/// The folder and the name of a block.
fn names(key: Key) -> (String, String) {
    let mut folder = format!("{:032x}", key.0);
    let name = folder.split_off(2);
    (folder, name)
}

fn is_hex(name: &str) -> bool {
    name.bytes().all(|letter| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter))
}

/// Whether a file in `tmp` has a name that [`DiskBlocks::write_temporary`] or [`DiskBlocks::prepare`] gives.
fn is_temporary(name: &str) -> bool {
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    match name.split('-').collect::<Vec<&str>>()[..] {
        [process, "probe"] => is_number(process),
        [process, address, number] => is_number(process) && is_hex(address) && is_number(number),
        _ => false,
    }
}

/// Notes that a block was used.
fn touch(file: &File) {
    if age(file).is_some_and(|age| age > TOUCH_AFTER) {
        // Without it, the block is removed earlier than it need be.
        let _ = file.set_modified(SystemTime::now());
    }
}

fn age(file: &File) -> Option<Duration> {
    file.metadata().ok()?.modified().ok()?.elapsed().ok()
}

/// The number in a file of eight bytes; none if it is anything else.
fn read_number(file: &File) -> Option<u64> {
    let mut number = [0; 8];
    let has_eight = file.metadata().is_ok_and(|about| about.len() == 8);
    (has_eight && file.read_exact_at(&mut number, 0).is_ok()).then(|| u64::from_le_bytes(number))
}
