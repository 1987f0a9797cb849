//! Blocks from other ranks of the job: whom to ask, and whether that is worth while.
//!
//! Every block has one rank that fetches it for all, found by rendezvous hashing: each rank gets a score by a hash of
//! itself and of the block, and the highest one fetches. All ranks come to the same without a word, blocks are spread
//! evenly, and when a rank is gone only its blocks have another one. So a job reads each block once from storage, as
//! long as the caches of all ranks together have room for what is in use.
//!
//! A rank is asked if it answers, and if that is faster than storage: the time that a block takes on its way from
//! another rank, without the time that this one needs to read it, is compared with what storage takes here. Ranks of
//! a host that share a cache on disk do not ask each other; they find blocks there.
//!
//! **Invariant:** nothing here fails a read. A rank that does not answer is left alone for a while, and the block comes
//! from the next one, or from storage.
//!
//! What is deliberately not here: sockets. [`BlockPeers`] is what those who have some implement (`ranks`).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use super::pace::Pace;
pub use super::question::Question;
use super::{Key, Shared, ranks};

/// A block, as many hold it at a time.
pub type Block = Arc<Vec<u8>>;

/// For how long a rank that did not answer is left alone: it may only have no cache yet. Each time doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// How often that time is doubled at most: to a minute. A rank that is stopped costs seconds each time it is asked.
const MOST_DOUBLINGS: u32 = 6;

/// Where storage is faster, one in so many blocks comes from another rank all the same: storage may become slower.
const TRIAL_EVERY: u64 = 32;

/// The ranks of the job, for whoever can talk to them.
pub trait BlockPeers: Send + Sync + fmt::Debug {
    /// This rank.
    fn own_rank(&self) -> usize;

    /// The identity of every rank's host, in rank order.
    fn hosts(&self) -> &[String];

    /// Has others' questions answered from now on, by [`PeerCaches::answer`]. Called when this process has a cache,
    /// maybe more than once.
    fn serve(&self, caches: Weak<PeerCaches>);

    /// Asks a rank for a block of so many bytes, and gets it with the time that it was on its way, once the rank had
    /// it; `None` if the rank does not have it.
    fn ask(
        &self,
        rank: usize,
        question: &[u8],
        bytes: usize,
        patience: Duration,
    ) -> io::Result<Option<(Vec<u8>, Duration)>>;
}

/// The caches of a process that share their blocks with other ranks, and the job whose ranks these are.
#[derive(Debug, Default)]
pub struct PeerCaches {
    /// Read for every block that is fetched, set when the process becomes a rank.
    job: RwLock<Option<Arc<Job>>>,
    /// Threads that answer look for the right one.
    caches: Mutex<Vec<Weak<Shared>>>,
}

impl PeerCaches {
    /// Those of this process. They follow its job: whoever makes the process a rank need not know them.
    pub fn of_this_process() -> &'static Arc<PeerCaches> {
        static OWN: OnceLock<Arc<PeerCaches>> = OnceLock::new();
        OWN.get_or_init(|| {
            let own = Arc::default();
            ranks::follow_job(&own);
            own
        })
    }

    /// From now on the process is a rank of this job, and of no other.
    pub fn join(self: &Arc<Self>, peers: Arc<dyn BlockPeers>) {
        let job = Arc::new(Job::new(peers));
        *self.job.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&job));
        if self.caches().iter().any(|cache| cache.strong_count() > 0) {
            job.peers.serve(Arc::downgrade(self));
        }
    }

    /// The process is no rank of a job any more.
    pub fn leave(&self) {
        *self.job.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The block that another rank asks for; none if it is not to be had here.
    pub fn answer(&self, question: &[u8]) -> Option<Block> {
        let question = Question::decode(question)?;
        let caches: Vec<Arc<Shared>> = self.caches().iter().filter_map(Weak::upgrade).collect();
        caches.iter().find_map(|cache| cache.answer(&question))
    }

    /// Another cache that shares its blocks.
    pub(super) fn add(self: &Arc<Self>, cache: &Arc<Shared>) {
        {
            let mut caches = self.caches();
            caches.retain(|cache| cache.strong_count() > 0);
            caches.push(Arc::downgrade(cache));
        }
        if let Some(job) = self.job() {
            job.peers.serve(Arc::downgrade(self));
        }
    }

    /// The job, if this process is a rank of one.
    pub(super) fn job(&self) -> Option<Arc<Job>> {
        self.job.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn caches(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Shared>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ranks of the job, as this one knows them.
#[derive(Debug)]
pub(super) struct Job {
    peers: Arc<dyn BlockPeers>,
    /// What the score of each rank begins with.
    seeds: Vec<u64>,
    standings: Vec<Mutex<Standing>>,
    /// How fast blocks come from other ranks that have them.
    pace: Pace,
    /// Blocks for which storage was faster.
    passed_over: AtomicU64,
}

/// How a rank has answered.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    failures: u32,
    away_until: Option<Instant>,
}

impl Job {
    fn new(peers: Arc<dyn BlockPeers>) -> Job {
        let seeds = seeds(peers.hosts());
        let standings = seeds.iter().map(|_| Mutex::default()).collect();
        Job { peers, seeds, standings, pace: Pace::default(), passed_over: AtomicU64::new(0) }
    }

    /// Which rank to ask for a block; none if this one is to read it from storage. If storage's pace is given, it must
    /// be worth while.
    pub(super) fn whom_to_ask(&self, key: Key, has_disk: bool, storage: Option<f64>) -> Option<usize> {
        let now = Instant::now();
        let own = self.peers.own_rank();
        let is_there = |rank: &usize| *rank == own || self.standing(*rank).away_until.is_none_or(|until| until <= now);
        let rank = (0..self.seeds.len()).filter(is_there).max_by_key(|rank| score(self.seeds[*rank], key))?;
        let hosts = self.peers.hosts();
        if rank == own || has_disk && hosts[rank] == hosts[own] || !self.is_worth_while(storage) {
            return None;
        }
        Some(rank)
    }

    /// Whether another rank that has a block gives it faster than storage does. Unknown is worth a try.
    fn is_worth_while(&self, storage: Option<f64>) -> bool {
        match (self.pace.seconds_per_byte(), storage) {
            (Some(peers), Some(storage)) if peers > storage => {
                self.passed_over.fetch_add(1, Ordering::Relaxed) % TRIAL_EVERY == TRIAL_EVERY - 1
            }
            _ => true,
        }
    }

    pub(super) fn ask(&self, rank: usize, question: &Question, bytes: usize, patience: Duration) -> Option<Vec<u8>> {
        match self.peers.ask(rank, &question.encode(), bytes, patience) {
            Ok(answer) => {
                *self.standing(rank) = Standing::default();
                let (block, on_its_way) = answer?;
                self.pace.note(block.len(), on_its_way);
                Some(block)
            }
            Err(error) => {
                let mut standing = self.standing(rank);
                let pause = FIRST_PAUSE * (1 << standing.failures.min(MOST_DOUBLINGS));
                log::debug!("rank {rank} gives no blocks: {error}; it is left alone for {} s", pause.as_secs());
                *standing = Standing { failures: standing.failures + 1, away_until: Some(Instant::now() + pause) };
                None
            }
        }
    }

    fn standing(&self, rank: usize) -> std::sync::MutexGuard<'_, Standing> {
        self.standings[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the score of each rank begins with: a hash of its host and of how many ranks of this host come before it. So a
/// rank keeps its blocks when ranks of other hosts come and go.
fn seeds(hosts: &[String]) -> Vec<u64> {
    let mut ranks_of_host: HashMap<&String, u64> = HashMap::new();
    let seed = |host| {
        let before = ranks_of_host.entry(host).or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&before.to_le_bytes()).update(host.as_bytes());
        *before += 1;
        let hash = hasher.finalize();
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("invariant: a hash has 32 bytes"))
    };
    hosts.iter().map(seed).collect()
}

/// The finishing steps of SplitMix64: every bit of seed and key changes half of the score's.
fn score(seed: u64, Key(key): Key) -> u64 {
    let mut mixed = seed ^ key as u64 ^ (key >> 64) as u64;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that answer as they are told.
    #[derive(Debug)]
    struct Told {
        own: usize,
        hosts: Vec<String>,
        takes: Duration,
        is_lost: bool,
    }

    impl BlockPeers for Told {
        fn own_rank(&self) -> usize {
            self.own
        }

        fn hosts(&self) -> &[String] {
            &self.hosts
        }

        fn serve(&self, _caches: Weak<PeerCaches>) {}

        fn ask(&self, _: usize, _: &[u8], bytes: usize, _: Duration) -> io::Result<Option<(Vec<u8>, Duration)>> {
            if self.is_lost {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Some((vec![0; bytes], self.takes)))
        }
    }

    fn job(own: usize, hosts: &[&str]) -> Job {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Job::new(Arc::new(Told { own, hosts, takes: Duration::from_millis(2), is_lost: false }))
    }

    fn keys() -> impl Iterator<Item = Key> {
        (0..3000u64).map(|number| super::super::key(blake3::Hasher::new().update(&number.to_le_bytes())))
    }

    fn question() -> Question {
        Question { storage: [1; 32], key: 2, number: 3, path: "p".to_owned() }
    }

    #[test]
    fn all_ranks_agree_who_fetches_and_blocks_are_spread_evenly() {
        let hosts = ["a", "a", "b", "c"];
        let jobs: Vec<Job> = (0..4).map(|own| job(own, &hosts)).collect();
        let mut counts = [0; 4];
        for key in keys() {
            let whom: Vec<usize> =
                jobs.iter().enumerate().map(|(own, job)| job.whom_to_ask(key, false, None).unwrap_or(own)).collect();
            assert!(whom.iter().all(|rank| *rank == whom[0]));
            counts[whom[0]] += 1;
        }
        assert!(counts.iter().all(|count| (650..850).contains(count)), "{counts:?}");
    }

    #[test]
    fn ranks_that_stay_keep_their_blocks() {
        let (before, after) = (job(0, &["a", "b", "c"]), job(0, &["a", "c"]));
        for key in keys() {
            match (before.whom_to_ask(key, false, None), after.whom_to_ask(key, false, None)) {
                (Some(1), _) => {}
                (Some(2), now) => assert_eq!(now, Some(1)),
                (other, now) => assert_eq!(other, now),
            }
        }
    }

    #[test]
    fn ranks_that_share_a_disk_do_not_ask_each_other() {
        let job = job(0, &["a", "a", "b"]);
        assert!(keys().any(|key| job.whom_to_ask(key, false, None) == Some(1)));
        assert!(keys().all(|key| job.whom_to_ask(key, true, None) != Some(1)));
        assert!(keys().any(|key| job.whom_to_ask(key, true, None) == Some(2)));
    }

    #[test]
    fn ranks_that_are_slower_than_storage_are_asked_now_and_then() {
        let job = job(0, &["a", "b"]);
        let key = keys().find(|key| job.whom_to_ask(*key, false, None) == Some(1)).unwrap();
        assert_eq!(job.whom_to_ask(key, false, Some(1e-9)), Some(1), "nobody knows yet");
        assert!(job.ask(1, &question(), 1000, Duration::from_secs(1)).is_some());
        assert_eq!(job.whom_to_ask(key, false, Some(1.0)), Some(1));
        let asked = (0..320).filter(|_| job.whom_to_ask(key, false, Some(1e-9)).is_some()).count();
        assert_eq!(asked, 10);
    }

    #[test]
    fn a_rank_that_does_not_answer_is_left_alone_and_another_one_is_asked() {
        let hosts: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        let job = Job::new(Arc::new(Told { own: 0, hosts, takes: Duration::ZERO, is_lost: true }));
        assert_eq!(job.ask(1, &question(), 10, Duration::from_secs(1)), None);
        assert!(keys().all(|key| job.whom_to_ask(key, false, None) != Some(1)));
        assert!(keys().any(|key| job.whom_to_ask(key, false, None) == Some(2)));
        assert_eq!(job.ask(2, &question(), 10, Duration::from_secs(1)), None);
        assert!(keys().all(|key| job.whom_to_ask(key, false, None).is_none()));
        // The time is over.
        job.standing(1).away_until = Some(Instant::now());
        assert!(keys().any(|key| job.whom_to_ask(key, false, None) == Some(1)));
    }
}
