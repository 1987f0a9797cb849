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

/// What fits none: nothing is left from before, an operation takes long enough for an interruption to matter little, and every
/// trial is dear.
const BEYOND: Rhythm = Rhythm { turn: 2, ignored: 0, first_turns: 4 };

/// From then on, one turn in so many tries the other way: one that is five times slower then costs a tenth.
const TRIAL_PERIOD: u64 = 40;

const WAYS: [Stores; 2] = [Stores::Streaming, Stores::Cached];

/// What has been learned, by size.
#[derive(Clone, Debug)]
pub(crate) struct Outlets([Outlet; CLASS_LIMITS_BYTES.len() + 1]);

impl Default for Outlets {
    fn default() -> Outlets {
        Outlets([IN_CACHE, IN_CACHE, BEYOND].map(Outlet::new))
    }
}

impl Outlets {
    /// What has been learned for operations of this size, if there is a choice.
    pub(crate) fn for_bytes(&mut self, bytes: usize) -> Option<&mut Outlet> {
        let class = CLASS_LIMITS_BYTES.iter().filter(|limit| bytes > **limit).count();
        (bytes >= LEAST_BYTES).then(|| &mut self.0[class])
    }
}

/// Both ways, timed.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    rhythm: Rhythm,
    operations: u64,
    /// The fastest operation of the turn so far, in nanoseconds for each byte.
    fastest: Option<f64>,
    /// What the last turn of each way has shown.
    cost: [Option<f64>; 2],
    best: usize,
}

impl Outlet {
    fn new(rhythm: Rhythm) -> Outlet {
        Outlet { rhythm, operations: 0, fastest: None, cost: [None; 2], best: 0 }
    }

    /// The way for the next operation.
    pub(crate) fn choose(&self) -> Stores {
        WAYS[self.way()]
    }

    /// Learns what the operation took for which [`Outlet::choose`] has been asked.
    pub(crate) fn learn(&mut self, bytes: usize, took: Duration) {
        let (way, within) = (self.way(), self.operations % self.rhythm.turn);
        if within >= self.rhythm.ignored {
            let cost = took.as_nanos() as f64 / bytes as f64;
            self.fastest = Some(self.fastest.map_or(cost, |fastest| fastest.min(cost)));
        }
        self.operations += 1;
        if within == self.rhythm.turn - 1 {
            self.cost[way] = self.fastest.take();
            if let [Some(around), Some(through)] = self.cost {
                self.best = usize::from(through < around);
            }
        }
    }

    fn way(&self) -> usize {
        let turn = self.operations / self.rhythm.turn;
        if turn < self.rhythm.first_turns {
            (turn % 2) as usize
        } else if (turn - self.rhythm.first_turns) % TRIAL_PERIOD == TRIAL_PERIOD - 1 {
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
        let mut outlet = Outlet::new(IN_CACHE);
        let through = run(&mut outlet, 1000, 100, 50);
        assert!(through > 950 && through < 1000, "{through} of 1000");
        let mut outlet = Outlet::new(IN_CACHE);
        let through = run(&mut outlet, 1000, 100, 500);
        assert!(through > 0 && through < 50, "{through} of 1000");
    }

    #[test]
    fn large_operations_are_tried_a_few_times_only() {
        let mut outlet = Outlet::new(BEYOND);
        assert_eq!(run(&mut outlet, 8, 100, 500), 4);
        assert_eq!(run(&mut outlet, 60, 100, 500), 0);
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let mut outlet = Outlet::new(IN_CACHE);
        run(&mut outlet, 300, 100, 50);
        run(&mut outlet, 300, 100, 500);
        assert!(run(&mut outlet, 160, 100, 500) < 10);
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
