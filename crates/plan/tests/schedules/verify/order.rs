//! In which order the ranks of a symbolic run take their steps.
//!
//! Messages alone give the same result in every order: a rank waits for a message of one named sender, messages of a
//! pair do not overtake each other, and nothing that one rank does takes a possibility away from another. Windows are
//! different: a slot that is reused too early is only noticed when its reader is late. Hence orders that let one rank
//! run far ahead or fall far behind, and random ones.

use std::collections::BTreeSet;

/// Who goes next among the ranks that can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One step each, in turn.
    RoundRobin,
    /// The highest rank that can.
    Reverse,
    /// This rank whenever it can.
    Eager(usize),
    /// This rank only when nobody else can.
    Lazy(usize),
    /// Anyone, from this seed.
    Random(u64),
}

impl Order {
    /// The orders that a run of `n` ranks explores.
    pub(crate) fn explored(n: usize) -> Vec<Order> {
        let mut orders = vec![Order::RoundRobin, Order::Reverse];
        let mut chosen = vec![0, n / 2, n - 1];
        chosen.dedup();
        orders.extend(chosen.iter().map(|&rank| Order::Eager(rank)));
        orders.extend(chosen.iter().map(|&rank| Order::Lazy(rank)));
        orders.extend((1..=4).map(Order::Random));
        orders
    }
}

/// The ranks that may be able to go on, and the choice among them.
pub(super) struct Turns {
    ready: BTreeSet<usize>,
    order: Order,
    n: usize,
    last: usize,
    random: u64,
}

impl Turns {
    pub(super) fn new(order: Order, n: usize) -> Turns {
        let random = if let Order::Random(seed) = order { seed } else { 0 };
        Turns { ready: (0..n).collect(), order, n, last: n - 1, random }
    }

    /// The rank that goes next; `None` when all wait.
    pub(super) fn next(&mut self) -> Option<usize> {
        let chosen = match self.order {
            Order::RoundRobin => self.from(self.last + 1),
            Order::Reverse => self.ready.last().copied(),
            Order::Eager(rank) if self.ready.contains(&rank) => Some(rank),
            Order::Eager(_) => self.from(self.last + 1),
            Order::Lazy(rank) => match self.from(self.last + 1) {
                Some(first) if first == rank => self.from(rank + 1),
                other => other,
            },
            Order::Random(_) => {
                let draw = self.draw();
                self.from(draw)
            }
        };
        self.last = chosen.unwrap_or(self.last);
        chosen
    }

    /// The rank cannot go on for now.
    pub(super) fn rest(&mut self, rank: usize) {
        self.ready.remove(&rank);
    }

    /// The rank may be able to go on again.
    pub(super) fn wake(&mut self, rank: usize) {
        self.ready.insert(rank);
    }

    fn from(&self, rank: usize) -> Option<usize> {
        self.ready.range(rank..).next().or(self.ready.first()).copied()
    }

    /// The mixing function of the SplitMix generator: a counter, scrambled.
    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % self.n as u64) as usize
    }
}
