//! Ranks read one remote object through their caches: each block is read once for the job, and a rank that is killed or
//! stopped costs the others little time.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farandole::World;
use farandole_storage::cache::peers::PeerCaches;
use farandole_storage::cache::{AskPeers, CacheOptions, CachedStorage, ReadAhead};
use farandole_storage::{Object, ObjectVersion, Storage, StorageCounters, StorageError};
use farandole_testing::{lapse, wait_until};
use rustix::process::{Pid, Signal, getpid, kill_process};

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 24;
const LIMIT: Duration = Duration::from_secs(30);

/// A storage whose reads are noted in a file of all ranks.
#[derive(Debug)]
struct NotedStorage(PathBuf);

impl Storage for NotedStorage {
    fn list(&self, _: &str) -> Result<Vec<Object>, StorageError> {
        Ok(Vec::new())
    }

    fn size(&self, _: &str) -> Result<u64, StorageError> {
        Ok((BLOCK * BLOCKS) as u64)
    }

    fn version(&self, path: &str) -> Result<ObjectVersion, StorageError> {
        Ok(ObjectVersion { bytes: self.size(path)?, tag: 7 })
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let mut notes = File::options().append(true).create(true).open(self.0.join("reads")).expect("a file for notes");
        notes.write_all(format!("{path} {offset}\n").as_bytes()).expect("a note");
        // As slow as a store: ranks ask for what another one is reading.
        lapse("the store, which is slow", Duration::from_millis(20));
        buffer.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = byte_at(path, at));
        Ok(())
    }

    fn describe(&self) -> String {
        "a storage of a test".to_owned()
    }
}

fn byte_at(path: &str, at: u64) -> u8 {
    (at % 251) as u8 ^ (at / 251 % 256) as u8 ^ path.len() as u8
}

fn cache(folder: &Path) -> CachedStorage {
    let options = CacheOptions {
        block_bytes: BLOCK,
        read_ahead: ReadAhead::Off,
        peers: Some(Arc::clone(PeerCaches::of_this_process())),
        // A busy machine makes ranks slower than the storage of this test.
        ask_peers: AskPeers::Always,
        ..CacheOptions::default()
    };
    let counters = Arc::new(StorageCounters::default());
    CachedStorage::new(Arc::new(NotedStorage(folder.to_path_buf())), "a storage of a test", &options, counters)
}

fn read(storage: &CachedStorage, path: &str) {
    let mut buffer = vec![0; BLOCK * BLOCKS];
    storage.read_at(path, 0, &mut buffer).expect("bytes");
    assert!(buffer.iter().zip(0..).all(|(byte, at)| *byte == byte_at(path, at)), "other bytes");
}

/// How often the object was read from storage so far, by all ranks.
fn reads(folder: &Path, path: &str) -> usize {
    let notes = fs::read_to_string(folder.join("reads")).unwrap_or_default();
    notes.lines().filter(|line| line.starts_with(path)).count()
}

/// All ranks read the same object at the same time.
pub(crate) fn read_together(world: &mut World, folder: &Path) {
    let storage = cache(folder);
    world.barrier().expect("all have a cache");
    read(&storage, "first");
    world.barrier().expect("all have read");
    assert_eq!(reads(folder, "first"), BLOCKS, "each block once");
    let counts = storage.counts();
    assert!(counts.from_peers > 0 && counts.for_peers > 0, "{counts}");
    assert_eq!((counts.from_peers + counts.misses) as usize, BLOCKS, "{counts}");
}

/// Rank 1 is killed after all ranks have a cache. The others continue to read.
pub(crate) fn read_while_one_dies(world: &mut World, folder: &Path) {
    let storage = cache(folder);
    read(&storage, "first");
    world.barrier().expect("all have read");
    // A rank that is still in the barrier when another one is killed may get an error.
    let left = |rank: usize| folder.join(format!("left.{rank}"));
    fs::write(left(world.rank()), "").expect("a note");
    if world.rank() == 1 {
        wait_until("ranks that have left the barrier", LIMIT, || (0..world.size()).all(|rank| left(rank).exists()));
        kill_process(getpid(), Signal::KILL).expect("kill");
    }
    // Nobody is left to wait for.
    read(&storage, "another");
}

/// Rank 1 is stopped, and answers nothing. Rank 0 reads on, and then lets it go on.
pub(crate) fn read_while_one_is_stopped(world: &mut World, folder: &Path) {
    let storage = cache(folder);
    read(&storage, "first");
    world.barrier().expect("all have read");
    let note = folder.join("stopped");
    if world.rank() == 1 {
        fs::write(folder.join("new"), getpid().as_raw_nonzero().to_string()).expect("a note");
        fs::rename(folder.join("new"), &note).expect("a note");
        kill_process(getpid(), Signal::STOP).expect("stop");
    } else if world.rank() == 0 {
        wait_until("a rank that stops", LIMIT, || note.exists());
        let pid: i32 = fs::read_to_string(&note).expect("a note").parse().expect("a number");
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        wait_until("a rank that is stopped", LIMIT, || state().contains(") T "));
        // It would wait for ever if it waited for the answer of a rank that is stopped.
        read(&storage, "another");
        kill_process(Pid::from_raw(pid).expect("a process"), Signal::CONT).expect("go on");
    }
    world.barrier().expect("all go on");
    read(&storage, "last");
}
