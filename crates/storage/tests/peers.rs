//! Blocks that ranks get from each other: each is read once from storage for the whole job, whatever happens to a rank
//! the bytes are right, and no two ranks wait for each other.
//!
//! The ranks are caches in this process, and what joins them calls functions. That sockets do the same is tested where
//! they are (`farandole-cluster`), and all of it together by processes (`farandole`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use farandole_storage::cache::peers::{BlockPeers, PeerCaches};
use farandole_storage::cache::{AskPeers, ReadAhead};
use farandole_storage::{Storage, StorageOptions, open};
use farandole_testing::Folder;
use harness::{Fault, Server};

const BLOCK: usize = 64 << 10;

/// The ranks of a job, each with its caches.
struct Ranks {
    caches: Arc<Vec<Arc<PeerCaches>>>,
    is_lost: Arc<Vec<AtomicBool>>,
}

#[derive(Debug)]
struct Linked {
    own: usize,
    hosts: Vec<String>,
    caches: Weak<Vec<Arc<PeerCaches>>>,
    is_lost: Arc<Vec<AtomicBool>>,
}

impl BlockPeers for Linked {
    fn own_rank(&self) -> usize {
        self.own
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn serve(&self, _caches: Weak<PeerCaches>) {}

    fn ask(&self, rank: usize, question: &[u8], _: usize, _: Duration) -> io::Result<Option<(Vec<u8>, Duration)>> {
        if self.is_lost[rank].load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let caches = self.caches.upgrade().unwrap();
        let block = caches[rank].answer(question);
        Ok(block.map(|block| (block.to_vec(), Duration::from_nanos(1))))
    }
}

impl Ranks {
    /// Ranks on these hosts.
    fn on(hosts: &[&str]) -> Ranks {
        let ranks = Ranks::apart(hosts.len());
        (0..hosts.len()).for_each(|own| ranks.join(own, hosts));
        ranks
    }

    /// Ranks that have not joined.
    fn apart(ranks: usize) -> Ranks {
        let caches = Arc::new((0..ranks).map(|_| Arc::default()).collect());
        Ranks { caches, is_lost: Arc::new((0..ranks).map(|_| AtomicBool::new(false)).collect()) }
    }

    fn join(&self, own: usize, hosts: &[&str]) {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        let (caches, is_lost) = (Arc::downgrade(&self.caches), Arc::clone(&self.is_lost));
        self.caches[own].join(Arc::new(Linked { own, hosts, caches, is_lost }));
    }

    /// The storage of a rank.
    fn open(&self, rank: usize, url: &str, options: &StorageOptions) -> Arc<dyn Storage> {
        let mut options = options.clone();
        options.cache.peers = Some(Arc::clone(&self.caches[rank]));
        open(url, &options).unwrap().0
    }

    fn lose(&self, rank: usize) {
        self.is_lost[rank].store(true, Ordering::Relaxed);
    }
}

fn with_blocks(blocks: usize) -> (Server, Vec<u8>, String) {
    harness::with_blocks(blocks, BLOCK)
}

/// Small blocks in memory, fetched when they are asked for.
fn in_memory() -> StorageOptions {
    let mut options = harness::quick();
    options.cache.memory_bytes = 64 << 20;
    options.cache.block_bytes = BLOCK;
    options.cache.read_ahead = ReadAhead::Off;
    options.cache.ask_peers = AskPeers::Always;
    options
}

fn read_all(storage: &dyn Storage, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    // In two reads, the second of which begins within a block.
    let (first, second) = buffer.split_at_mut(bytes / 3);
    storage.read_at("object", 0, first).unwrap();
    storage.read_at("object", (bytes / 3) as u64, second).unwrap();
    buffer
}

#[test]
fn a_block_is_read_once_for_all_ranks_of_a_job() {
    let (server, object, url) = with_blocks(40);
    let ranks = Ranks::on(&["a", "a", "b", "c"]);
    let storages: Vec<_> = (0..4).map(|rank| ranks.open(rank, &url, &in_memory())).collect();
    std::thread::scope(|scope| {
        for storage in &storages {
            scope.spawn(|| assert_eq!(read_all(&**storage, object.len()), object));
        }
    });
    assert_eq!(server.ranges().len(), 41);
    let counts: Vec<_> = storages.iter().map(|storage| storage.counts()).collect();
    assert_eq!(counts.iter().map(|counts| counts.misses).sum::<u64>(), 41);
    assert_eq!(counts.iter().map(|counts| counts.from_peers).sum::<u64>(), 3 * 41);
    assert_eq!(counts.iter().map(|counts| counts.for_peers).sum::<u64>(), 3 * 41);
}

#[test]
fn ranks_that_share_a_disk_read_and_ask_once_for_it() {
    let (server, object, url) = with_blocks(30);
    let ranks = Ranks::on(&["a", "a", "b", "b"]);
    let folders = [Folder::new(), Folder::new()];
    let storages: Vec<_> = (0..4)
        .map(|rank| {
            let mut options = in_memory();
            options.cache.folder = Some(folders[rank / 2].to_path_buf());
            ranks.open(rank, &url, &options)
        })
        .collect();
    std::thread::scope(|scope| {
        for storage in &storages {
            scope.spawn(|| assert_eq!(read_all(&**storage, object.len()), object));
        }
    });
    assert_eq!(server.ranges().len(), 31);
    let from_peers: u64 = storages.iter().map(|storage| storage.counts().from_peers).sum();
    assert_eq!(from_peers, 31, "each block goes once to the other host");
}

#[test]
fn without_the_others_the_bytes_come_from_storage() {
    let (server, object, url) = with_blocks(20);
    let ranks = Ranks::on(&["a", "b", "c"]);
    // Rank 1 has no cache of this storage, rank 2 does not answer.
    ranks.lose(2);
    let storage = ranks.open(0, &url, &in_memory());
    assert_eq!(read_all(&*storage, object.len()), object);
    assert_eq!((server.ranges().len(), storage.counts().from_peers), (21, 0));
    // Rank 1 comes later, and asks rank 0 for its blocks.
    let later = ranks.open(1, &url, &in_memory());
    assert_eq!(read_all(&*later, object.len()), object);
    assert!(later.counts().from_peers > 0);
    // A rank that is lost is not asked; the others go on with what they have.
    ranks.lose(0);
    let again = ranks.open(1, &url, &in_memory());
    assert_eq!(read_all(&*again, object.len()), object);
    assert_eq!(again.counts().from_peers, 0);
}

#[test]
fn ranks_that_have_seen_another_content_do_not_help() {
    let (server, object, url) = with_blocks(20);
    let ranks = Ranks::on(&["a", "b"]);
    let old = ranks.open(0, &url, &in_memory());
    assert_eq!(read_all(&*old, object.len()), object);
    let other = vec![9; object.len()];
    server.put("object", &other);
    let new = ranks.open(1, &url, &in_memory());
    assert_eq!(read_all(&*new, object.len()), other);
    assert_eq!(new.counts().from_peers, 0);
    assert_eq!(read_all(&*old, object.len()), object, "it has all blocks of what it saw first");
}

#[test]
fn two_ranks_that_take_each_other_for_the_one_that_fetches_do_not_wait_for_each_other() {
    let (server, object, url) = with_blocks(20);
    let ranks = Ranks::apart(2);
    // To rank 0 the other one is on x and to rank 1 it is on y, so that they disagree about every other block.
    ranks.join(0, &["a", "x"]);
    ranks.join(1, &["y", "b"]);
    // A wait for each other would last for the cache's patience.
    let mut options = in_memory();
    options.cache.patience = farandole_testing::NEVER;
    let storages: Vec<_> = (0..2).map(|rank| ranks.open(rank, &url, &options)).collect();
    std::thread::scope(|scope| {
        for storage in &storages {
            scope.spawn(|| assert_eq!(read_all(&**storage, object.len()), object));
        }
    });
    assert!(server.ranges().len() <= 2 * 21);
}

#[test]
fn an_error_of_the_storage_is_told_by_whoever_reads() {
    let (server, object, url) = with_blocks(6);
    let ranks = Ranks::on(&["a", "b"]);
    let storages: Vec<_> = (0..2).map(|rank| ranks.open(rank, &url, &in_memory())).collect();
    storages.iter().for_each(|storage| assert_eq!(storage.size("object").unwrap(), object.len() as u64));
    server.fail((0..40).map(|_| Fault::Status(403, "AccessDenied")));
    for storage in &storages {
        let mut buffer = vec![0; object.len()];
        let error = storage.read_at("object", 0, &mut buffer).unwrap_err();
        assert!(error.to_string().contains("/object"), "{error}");
    }
    // Every read uses up one or two of the answers; then all is well again.
    let is_well = |_: &u32| storages[0].read_at("object", 0, &mut [0; 10]).is_ok();
    assert!((0..40).find(is_well).is_some());
    assert_eq!(read_all(&*storages[0], object.len()), object);
}

#[test]
fn a_process_that_leaves_its_job_asks_nobody() {
    let (server, object, url) = with_blocks(10);
    let ranks = Ranks::on(&["a", "b"]);
    let other = ranks.open(1, &url, &in_memory());
    assert_eq!(read_all(&*other, object.len()), object);
    ranks.caches[0].leave();
    let storage = ranks.open(0, &url, &in_memory());
    let before = server.ranges().len();
    assert_eq!(read_all(&*storage, object.len()), object);
    assert_eq!((server.ranges().len() - before, storage.counts().from_peers), (11, 0));
}
