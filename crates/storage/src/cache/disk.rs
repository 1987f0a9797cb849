//! Blocks on the host's disk, for all its ranks: [`DiskBlocks`].
//!
//! In a folder of the user's own: `ab/cdef…` are blocks, named by their key; `tmp/` has those that are being written,
//! each locked by its writer; `locks/` has the files that leases lock; `usage` has the bytes of all blocks.
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
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

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
    folder: PathBuf,
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
        let own = folder.join("farandole-blocks-1");
        match prepare(&own) {
            Ok(()) => {
                let is_read_only = AtomicBool::new(false);
                let disk = DiskBlocks { folder: own, limit_bytes, counters, is_read_only, number: AtomicU64::new(0) };
                disk.remove_what_was_left_behind();
                disk.count_anew();
                Some(disk)
            }
            Err(error) => {
                log::warn!("remote objects are not kept on disk: {}: {error}", own.display());
                None
            }
        }
    }

    /// Reads a range of a block, if it is there. A broken one is removed.
    pub(super) fn read(&self, key: Key, block_bytes: usize, range: Range<usize>, buffer: &mut [u8]) -> Found {
        let path = self.path(key);
        let Ok(file) = File::open(&path) else { return Found::Miss };
        match block::read(&file, key, block_bytes, range, buffer) {
            Ok(Read::Done) => {
                touch(&file);
                Found::Hit
            }
            Ok(Read::Broken) | Err(_) => {
                self.counters.count(Count::BrokenBlock);
                // If it cannot be removed, the next reader finds it broken again.
                let _ = fs::remove_file(&path);
                Found::Miss
            }
        }
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.path(key).is_file()
    }

    /// Waits until nobody else fetches this block, or it is there, or time is over.
    pub(super) fn lease(&self, key: Key, kind: LeaseKind, patience: Duration) -> Leased {
        let number = key.0 % LOCKS;
        let name = match kind {
            LeaseKind::Read => format!("{number:03x}"),
            LeaseKind::Ask => format!("ask-{number:03x}"),
        };
        let path = self.folder.join("locks").join(name);
        let Ok(file) = File::options().create(true).truncate(false).write(true).open(path) else {
            return Leased::Without;
        };
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
                    let _ = fs::remove_file(&temporary);
                    return;
                }
                self.account(bytes);
            }
            Err(error) => {
                if !self.is_read_only.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "no more remote objects are kept on disk, reading goes on without: {}: {error}",
                        self.folder.display()
                    );
                }
            }
        }
    }

    fn write_temporary(&self, key: Key, block: &[u8]) -> io::Result<PathBuf> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        // The address tells two caches of one process apart.
        let name = format!("{}-{:x}-{number}", std::process::id(), std::ptr::from_ref(self).addr());
        let path = self.folder.join("tmp").join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            // A file system that knows no locks has leftovers removed by their age alone.
            let _ = file.try_lock();
            block::write(&mut file, key, block)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(path)
    }

    fn publish(&self, temporary: &Path, key: Key) -> io::Result<()> {
        let path = self.path(key);
        match fs::rename(temporary, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().expect("invariant: blocks lie in folders");
                match fs::create_dir(parent) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
                fs::rename(temporary, &path)
            }
            renamed => renamed,
        }
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
        let path = self.folder.join("usage");
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path).ok()?;
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
            if fs::remove_file(&block.path).is_ok() {
                self.counters.count(Count::EvictedBlock);
                bytes -= block.bytes;
            }
        }
        bytes
    }

    /// All blocks. Files and folders with other names are somebody else's.
    fn blocks(&self) -> Vec<BlockFile> {
        let is_hex = |name: &str, letters: usize| {
            name.len() == letters
                && name.bytes().all(|letter| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter))
        };
        let mut found = Vec::new();
        for (folder, _) in entries(&self.folder).into_iter().filter(|(_, name)| is_hex(name, 2)) {
            for (path, _) in entries(&folder).into_iter().filter(|(_, name)| is_hex(name, 30)) {
                if let Some(about) = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file) {
                    let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push(BlockFile { path, bytes: about.len(), used });
                }
            }
        }
        found
    }

    fn remove_what_was_left_behind(&self) {
        for (path, _) in entries(&self.folder.join("tmp")) {
            let Ok(file) = File::open(&path) else { continue };
            if age(&file).is_some_and(|age| age > LEFT_BEHIND_AFTER) && file.try_lock().is_ok() {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        let name = format!("{:032x}", key.0);
        self.folder.join(&name[..2]).join(&name[2..])
    }
}

struct BlockFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Makes the folders, readable by this user alone. Refuses those of other users, who could put anything there.
fn prepare(folder: &Path) -> io::Result<()> {
    for folder in [folder.to_path_buf(), folder.join("tmp"), folder.join("locks")] {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        if fs::metadata(&folder)?.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
    }
    // Whether it can be written is asked now, so that the warning comes at the start.
    let probe = folder.join("tmp").join(format!("{}-probe", std::process::id()));
    File::create(&probe)?;
    fs::remove_file(&probe)
}

/// The entries of a folder with names that are text; none where it cannot be read.
fn entries(folder: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?))).collect()
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
