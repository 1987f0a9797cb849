//! Around the cache or through it: which way bytes for other ranks leave, found out by trying.
//!
//! What a rank publishes can go out around its cache or stay in it until a peer asks (`shm::copy_out` says what that costs). For
//! tensors beyond [`LEAST_BYTES`] neither is always better: through the cache, early parts of a tile have moved
//! to a shared last-level cache by the time a peer reads them, at no cost to memory; but if the cores do not share one, that is the
//! slow way by far. A virtual machine's cores may even move from one case to the other while a job runs.
//!
//! So an [`Outlet`] times operations. At the start it tries both ways in turn, later the other way once in a while, and it keeps
//! to the faster one. The choice changes no result and no hand-over, so ranks need not agree on it; but they try at the
//! same operations, because they count alike, so that a trial shows what it would be like if all did so.

use std::time::Duration;

use farandole_tensor::Stores;

/// Smaller contributions always go around the cache.
pub(crate) const LEAST_BYTES: usize = 512 << 10;

/// Sizes that behave alike share what has been learned: those that fit a core's own cache several times over, a shared one, none.
const CLASS_LIMITS_BYTES: [usize; 2] = [4 << 20, 32 << 20];

/// Operations for one trial: the first still meets lines where the other way has left them, the second is timed.
const TRIAL_OPERATIONS: u64 = 2;
/// Trials of each way at the start.
const FIRST_TRIALS: u64 = 2;
/// Operations from the beginning of one trial to the next: a way that is five times slower then costs a twelfth.
const TRIAL_PERIOD: u64 = 96;

const WAYS: [Stores; 2] = [Stores::Streaming, Stores::Cached];

/// What has been learned, by size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlets([Outlet; CLASS_LIMITS_BYTES.len() + 1]);

impl Outlets {
    /// What has been learned for operations of this size, if there is a choice.
    pub(crate) fn for_bytes(&mut self, bytes: usize) -> Option<&mut Outlet> {
        let class = CLASS_LIMITS_BYTES.iter().filter(|limit| bytes > **limit).count();
        (bytes >= LEAST_BYTES).then(|| &mut self.0[class])
    }
}

/// Both ways, timed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlet {
    operations: u64,
    /// The last time of each way, in nanoseconds for each byte; nothing before the first trial.
    cost: [Option<f64>; 2],
    best: usize,
}

impl Outlet {
    /// The way for the next operation.
    pub(crate) fn choose(&self) -> Stores {
        WAYS[self.way()]
    }

    /// Learns what the operation took for which [`Outlet::choose`] has been asked.
    pub(crate) fn learn(&mut self, bytes: usize, took: Duration) {
        let (way, settled) = (self.way(), self.operations % TRIAL_OPERATIONS == TRIAL_OPERATIONS - 1);
        if settled {
            let cost = took.as_nanos() as f64 / bytes as f64;
            // One interrupted operation must not decide: a new time counts half, unless it is better.
            self.cost[way] = Some(self.cost[way].map_or(cost, |old| cost.min((old + cost) / 2.0)));
            if let [Some(around), Some(through)] = self.cost {
                self.best = usize::from(through < around);
            }
        }
        self.operations += 1;
    }

    fn way(&self) -> usize {
        let first = 2 * FIRST_TRIALS * TRIAL_OPERATIONS;
        if self.operations < first {
            (self.operations / TRIAL_OPERATIONS % 2) as usize
        } else if (self.operations - first) % TRIAL_PERIOD >= TRIAL_PERIOD - TRIAL_OPERATIONS {
            1 - self.best
        } else {
            self.best
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(outlet: &mut Outlet, operations: usize, around_us: u64, through_us: u64) -> usize {
        let mut through = 0;
        for _ in 0..operations {
            let way = outlet.choose();
            through += usize::from(way == Stores::Cached);
            let took = if way == Stores::Streaming { around_us } else { through_us };
            outlet.learn(1 << 20, Duration::from_micros(took));
        }
        through
    }

    #[test]
    fn the_faster_way_is_kept_to_and_the_other_tried_now_and_then() {
        let mut outlet = Outlet::default();
        let through = run(&mut outlet, 1000, 100, 50);
        assert!(through > 950 && through < 1000, "{through} of 1000");
        let mut outlet = Outlet::default();
        let through = run(&mut outlet, 1000, 100, 500);
        assert!(through > 0 && through < 50, "{through} of 1000");
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let mut outlet = Outlet::default();
        run(&mut outlet, 300, 100, 50);
        run(&mut outlet, 300, 100, 500);
        assert!(run(&mut outlet, 96, 100, 500) < 10);
    }

    #[test]
    fn small_operations_have_no_choice() {
        let mut outlets = Outlets::default();
        assert!(outlets.for_bytes(LEAST_BYTES - 1).is_none());
        for bytes in [LEAST_BYTES, 16 << 20, 1 << 30] {
            assert!(outlets.for_bytes(bytes).is_some());
        }
    }
}
