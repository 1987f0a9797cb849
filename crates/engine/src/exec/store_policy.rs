//! Around the cache or through it: which way bytes for other ranks leave, found out by trying.
//!
//! What a rank publishes can go out around its cache or stay in it until a peer asks (`shm::copy_out` says what that
//! costs). For tensors beyond [`LEAST_BYTES`] neither is always better: through the cache, early parts of a tile have
//! moved to a shared last-level cache by the time a peer reads them, at no cost to memory; but if the cores do not
//! share one, that is the slow way by far. A virtual machine's cores may even move from one case to the other while a
//! job runs.
//!
//! So a [`StorePolicy`] times operations. At the start and once in a while it tries both ways in turn, and it keeps to
//! the faster one in between. The choice changes no result and no hand-over, so ranks need not agree on it; but in
//! trials all take the same way at the same operations, because they count alike, and nothing is learned from the
//! others. So a trial shows what it would be like if all did so. (If each rank tried the other way than its own, one
//! that had once decided differently would never find out. On 16 cores, 64 KB took 36 us with 8 ranks then and 20 us
//! since, in separate runs.)

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How a copy goes to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches: right for everything that is read again soon, and for everything that fits.
    #[default]
    Cached,
    /// Around the caches (`shm::copy_out`), for targets far larger than them: saves reading each line before it is
    /// written. Folds always store through the caches: one that reads two contributions for each output would gain
    /// little.
    Streaming,
}

/// Smaller operations always go through the cache: looking at the clock would cost more than the better way brings.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// Sizes that behave alike share what has been learned: those of which little is in flight at a time, those that fit a
/// core's own cache, fit it not quite, fit a shared one, none.
const CLASS_LIMITS_BYTES: [usize; 4] = [128 << 10, 512 << 10, 4 << 20, 32 << 20];

/// How a class of sizes is tried out.
#[derive(Clone, Copy, Debug)]
struct Rhythm {
    /// Operations of one *turn*, in which one way is taken. The fastest counts, because interruptions only ever make
    /// one slower.
    turn: u64,
    /// Operations at the start of a turn that do not count.
    ignored: u64,
    /// Turns at the start in which the ways alternate.
    first_turns: u64,
}

/// What fits a cache: the first operation of a turn still meets lines where the other way has left them.
const IN_CACHE: Rhythm = Rhythm { turn: 4, ignored: 1, first_turns: 6 };

/// What fits none: nothing is left from before, an operation takes long enough for an interruption to matter little,
/// and every trial is dear.
const BEYOND: Rhythm = Rhythm { turn: 2, ignored: 0, first_turns: 4 };

/// From then on, two turns in so many try both ways once more: one that is five times slower then costs a tenth.
const TRIAL_PERIOD: u64 = 40;

/// Going around the cache must take this share less time to be preferred. Ranks time the same operations and find
/// nearly the same; without a margin some would decide one way and some the other where the two are alike.
const MARGIN: f64 = 0.2;

const WAYS: [Stores; 2] = [Stores::Cached, Stores::Streaming];

/// What has been learned of one collective, by size.
type BySize = [StorePolicy; CLASS_LIMITS_BYTES.len() + 1];

/// What has been learned, by collective and size. Collectives move different amounts for the same size, so times of one
/// say nothing about another.
#[derive(Clone, Debug, Default)]
pub(crate) struct StorePolicies(HashMap<u8, BySize>);

/// What an operation was given, and what is learned from it when it is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) stores: Stores,
    trial: Option<Trial>,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: u8,
    bytes: usize,
    began: Instant,
}

impl StorePolicies {
    /// An operation of this kind, as the caller numbers them, and size begins.
    pub(crate) fn begin(&mut self, kind: u8, bytes: usize) -> Choice {
        let Some(policy) = self.of(kind, bytes) else { return Choice::default() };
        Choice { stores: policy.choose(), trial: Some(Trial { kind, bytes, began: Instant::now() }) }
    }

    /// It is over.
    pub(crate) fn end(&mut self, choice: Choice) {
        if let Some(Trial { kind, bytes, began }) = choice.trial
            && let Some(policy) = self.of(kind, bytes)
        {
            policy.learn(bytes, began.elapsed());
        }
    }

    /// What has been learned for collectives of this kind, as the caller numbers them, and this size, if there is a
    /// choice.
    fn of(&mut self, kind: u8, bytes: usize) -> Option<&mut StorePolicy> {
        let class = CLASS_LIMITS_BYTES.iter().filter(|limit| bytes > **limit).count();
        let unknown = || [IN_CACHE, IN_CACHE, IN_CACHE, IN_CACHE, BEYOND].map(StorePolicy::new);
        (bytes >= LEAST_BYTES).then(|| &mut self.0.entry(kind).or_insert_with(unknown)[class])
    }
}

/// Both ways, timed.
#[derive(Clone, Debug)]
pub(crate) struct StorePolicy {
    rhythm: Rhythm,
    operations: u64,
    /// The fastest operation of the turn so far, in nanoseconds for each byte.
    fastest: Option<f64>,
    /// What the last turn of each way has shown.
    cost: [Option<f64>; 2],
    best: usize,
}

impl StorePolicy {
    fn new(rhythm: Rhythm) -> StorePolicy {
        StorePolicy { rhythm, operations: 0, fastest: None, cost: [None; 2], best: 0 }
    }

    /// The way for the next operation.
    pub(crate) fn choose(&self) -> Stores {
        WAYS[self.way()]
    }

    /// Learns what the operation took for which [`StorePolicy::choose`] has been asked.
    pub(crate) fn learn(&mut self, bytes: usize, took: Duration) {
        let (turn, within) = (self.operations / self.rhythm.turn, self.operations % self.rhythm.turn);
        self.operations += 1;
        let Some(way) = self.trial(turn) else { return };
        if within >= self.rhythm.ignored {
            let cost = took.as_nanos() as f64 / bytes as f64;
            self.fastest = Some(self.fastest.map_or(cost, |fastest| fastest.min(cost)));
        }
        if within == self.rhythm.turn - 1 {
            self.cost[way] = self.fastest.take();
            if let ([Some(through), Some(around)], 1) = (self.cost, way) {
                self.best = usize::from(around < through * (1.0 - MARGIN));
            }
        }
    }

    /// The way that all ranks try in this turn, if they do.
    fn trial(&self, turn: u64) -> Option<usize> {
        let Some(later) = turn.checked_sub(self.rhythm.first_turns) else { return Some((turn % 2) as usize) };
        (later % TRIAL_PERIOD).checked_sub(TRIAL_PERIOD - 2).map(|way| way as usize)
    }

    fn way(&self) -> usize {
        self.trial(self.operations / self.rhythm.turn).unwrap_or(self.best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(store_policy: &mut StorePolicy, operations: usize, around_us: u64, through_us: u64) -> usize {
        let mut through = 0;
        for _ in 0..operations {
            let way = store_policy.choose();
            through += usize::from(way == Stores::Cached);
            let took = if way == Stores::Streaming { around_us } else { through_us };
            store_policy.learn(1 << 20, Duration::from_micros(took));
        }
        through
    }

    #[test]
    fn the_faster_way_is_kept_to_and_the_other_tried_now_and_then() {
        let mut store_policy = StorePolicy::new(IN_CACHE);
        let through = run(&mut store_policy, 1000, 100, 50);
        assert!(through > 950 && through < 1000, "{through} of 1000");
        let mut store_policy = StorePolicy::new(IN_CACHE);
        let through = run(&mut store_policy, 1000, 100, 500);
        assert!(through > 0 && through < 50, "{through} of 1000");
        let mut store_policy = StorePolicy::new(IN_CACHE);
        let through = run(&mut store_policy, 1000, 95, 100);
        assert!(through > 950, "alike: {through} of 1000");
    }

    #[test]
    fn a_rank_that_has_decided_differently_comes_round() {
        let mut store_policies = [StorePolicy::new(IN_CACHE), StorePolicy::new(IN_CACHE), StorePolicy::new(IN_CACHE)];
        store_policies[1].best = 1;
        for operation in 0..400 {
            // Everybody waits for whoever goes around the cache.
            let around = store_policies.iter().any(|store_policy| store_policy.choose() == Stores::Streaming);
            let took = Duration::from_micros(if around { 100 } else { 50 });
            store_policies.iter_mut().for_each(|store_policy| store_policy.learn(1 << 20, took));
            assert!(
                operation < 200 || store_policies.iter().all(|store_policy| store_policy.best == 0),
                "operation {operation}"
            );
        }
    }

    #[test]
    fn large_operations_are_tried_a_few_times_only() {
        let mut store_policy = StorePolicy::new(BEYOND);
        assert_eq!(run(&mut store_policy, 8, 100, 500), 4);
        assert_eq!(run(&mut store_policy, 60, 100, 500), 0);
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let mut store_policy = StorePolicy::new(IN_CACHE);
        run(&mut store_policy, 300, 100, 50);
        run(&mut store_policy, 300, 100, 500);
        assert!(run(&mut store_policy, 160, 100, 500) < 10);
    }

    #[test]
    fn small_operations_have_no_choice() {
        let mut store_policies = StorePolicies::default();
        assert!(store_policies.of(1, LEAST_BYTES - 1).is_none());
        for bytes in [LEAST_BYTES, 16 << 20, 1 << 30] {
            assert!(store_policies.of(1, bytes).is_some());
        }
    }

    #[test]
    fn collectives_learn_apart() {
        let mut store_policies = StorePolicies::default();
        run(store_policies.of(1, 1 << 20).unwrap(), 100, 100, 50);
        let broadcast = store_policies.of(2, 1 << 20).unwrap();
        assert_eq!(broadcast.cost, [None; 2]);
    }
}
