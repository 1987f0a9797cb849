//! What an allreduce would take, by a simple model of the machine.
//!
//! The model knows, for the wires inside a host and for those between hosts, the *latency* of a message and the time of
//! a byte; for shared memory, the time of a *hand-over* (one rank writes a flag, another sees it) and of copying a
//! byte; and the time of *folding* a byte. The wire between hosts belongs to the host: ranks of a host that send at
//! once share it.
//!
//! [`predict_us`] is a closed form of what the schedules do, along the path of the busiest rank, so that it costs
//! nothing even for worlds of many thousands. It ignores what it cannot know: other traffic, late ranks, more ranks
//! than cores. Its use is to extrapolate measured tables and to compare algorithms, not to forecast to the microsecond.
//! [`traffic`] counts what one schedule really sends; a test holds the two together.

use crate::algorithm::Algorithm;
use crate::doubling::power_below;
use crate::request::Rank;
use crate::schedule::{Schedule, Step};
use crate::topology::Topology;

/// A way for messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// Time from posting a message until its first byte is there.
    pub latency_us: f64,
    /// Time of each byte.
    pub us_per_byte: f64,
}

/// How fast a machine is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Messages inside a host.
    pub local: LinkCost,
    /// Messages between hosts; `us_per_byte` is that of a host's connection to the network.
    pub across: LinkCost,
    /// Time of a hand-over through shared memory.
    pub hand_over_us: f64,
    /// Time of copying a byte through shared memory.
    pub copy_us_per_byte: f64,
    /// Time of folding a byte of one contribution.
    pub fold_us_per_byte: f64,
}

impl Rates {
    /// A server of today on a network of 10 Gbit/s, where nothing has been measured.
    pub const TYPICAL: Rates = Rates {
        local: LinkCost { latency_us: 3.0, us_per_byte: 1.0 / 4_000.0 },
        across: LinkCost { latency_us: 20.0, us_per_byte: 1.0 / 1_200.0 },
        hand_over_us: 0.5,
        copy_us_per_byte: 1.0 / 10_000.0,
        fold_us_per_byte: 1.0 / 8_000.0,
    };
}

impl Default for Rates {
    fn default() -> Rates {
        Rates::TYPICAL
    }
}

/// The numbers of a placement that the closed forms need.
struct Shape {
    /// Ranks.
    n: f64,
    /// Hosts.
    h: f64,
    /// Ranks of the largest host: that many share its connection.
    sharers: f64,
    /// Shards of the hierarchical algorithm: ranks of the smallest host.
    shards: f64,
    /// Rounds of halving and doubling, and how many of them, the first, stay inside hosts.
    rounds: i32,
    local_rounds: i32,
    /// Whether some ranks are beyond a power of two.
    extras: bool,
}

impl Shape {
    fn of(topology: &Topology) -> Shape {
        let n = topology.size();
        let locals = || (0..topology.hosts()).map(|host| topology.ranks_on(host).len());
        let (smallest, largest) = (locals().min().unwrap_or(1), locals().max().unwrap_or(1));
        let rounds = power_below(n).ilog2() as i32;
        let local_rounds = if topology.hosts() == 1 { rounds } else { power_below(smallest).ilog2() as i32 };
        Shape {
            n: n as f64,
            h: topology.hosts() as f64,
            sharers: largest as f64,
            shards: smallest as f64,
            rounds,
            local_rounds: local_rounds.min(rounds),
            extras: !n.is_power_of_two(),
        }
    }

    /// The wire that a pattern over all ranks has to wait for.
    fn slowest(&self, rates: &Rates) -> LinkCost {
        if self.h > 1.0 { rates.across } else { rates.local }
    }
}

/// Time in microseconds of an allreduce of `bytes` bytes.
pub fn predict_us(algorithm: Algorithm, bytes: u64, topology: &Topology, rates: &Rates) -> f64 {
    if topology.size() == 1 || bytes == 0 {
        return 0.0;
    }
    let shape = Shape::of(topology);
    let bytes = bytes as f64;
    match algorithm {
        Algorithm::Ring => ring_us(shape.n, bytes, 1.0, shape.slowest(rates), rates),
        Algorithm::Doubling => doubling_us(&shape, bytes, rates),
        Algorithm::Halving => halving_us(&shape, bytes, rates),
        Algorithm::Tree => tree_us(&shape, bytes, rates),
        Algorithm::Hierarchical | Algorithm::HierarchicalWindow => {
            inside_us(algorithm, &shape, bytes, rates) + across_us(&shape, bytes, rates)
        }
        Algorithm::WindowTiles => {
            let moved = 2.0 * bytes * (shape.n - 1.0) / shape.n;
            2.0 * rates.hand_over_us + moved * rates.copy_us_per_byte + bytes * rates.fold_us_per_byte
        }
        Algorithm::WindowWhole => {
            rates.hand_over_us + bytes * rates.copy_us_per_byte + shape.n * bytes * rates.fold_us_per_byte
        }
        Algorithm::Mapped => 2.0 * rates.hand_over_us + bytes * rates.fold_us_per_byte + bytes * rates.copy_us_per_byte,
    }
}

/// `sharers` rings at once over one wire.
fn ring_us(n: f64, bytes: f64, sharers: f64, wire: LinkCost, rates: &Rates) -> f64 {
    let half = bytes * (n - 1.0) / n;
    2.0 * (n - 1.0) * wire.latency_us + 2.0 * half * sharers * wire.us_per_byte + half * rates.fold_us_per_byte
}

/// One round in which every rank sends `bytes`.
fn round_us(shape: &Shape, round: i32, bytes: f64, rates: &Rates) -> f64 {
    if round < shape.local_rounds {
        rates.local.latency_us + bytes * rates.local.us_per_byte
    } else {
        rates.across.latency_us + bytes * shape.sharers * rates.across.us_per_byte
    }
}

/// What ranks beyond a power of two add: hand in, fold, get back.
fn extras_us(shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    if !shape.extras {
        return 0.0;
    }
    let wire = if shape.sharers > 1.0 { rates.local } else { rates.across };
    2.0 * (wire.latency_us + bytes * wire.us_per_byte) + bytes * rates.fold_us_per_byte
}

fn doubling_us(shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    let rounds: f64 =
        (0..shape.rounds).map(|round| round_us(shape, round, bytes, rates) + bytes * rates.fold_us_per_byte).sum();
    rounds + extras_us(shape, bytes, rates)
}

fn halving_us(shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    let mut half = bytes;
    let mut total = extras_us(shape, bytes, rates);
    for round in 0..shape.rounds {
        half /= 2.0;
        total += 2.0 * round_us(shape, round, half, rates) + half * rates.fold_us_per_byte;
    }
    total
}

/// Up and down the height of the trees, then as fast as the busiest member can send: twice everything.
fn tree_us(shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    let wire = shape.slowest(rates);
    let height = f64::from(shape.rounds + i32::from(shape.extras));
    2.0 * height * wire.latency_us + 2.0 * bytes * wire.us_per_byte + bytes * rates.fold_us_per_byte
}

/// The phases of the hierarchical algorithms inside the hosts.
fn inside_us(algorithm: Algorithm, shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    if shape.sharers <= 1.0 {
        return 0.0;
    }
    let shard = bytes / shape.shards;
    let fold = shard * shape.sharers * rates.fold_us_per_byte;
    if algorithm == Algorithm::HierarchicalWindow {
        return 3.0 * rates.hand_over_us + 2.0 * bytes * rates.copy_us_per_byte + fold;
    }
    let peers = shape.sharers - 1.0;
    2.0 * (rates.local.latency_us + peers * shard * rates.local.us_per_byte) + fold
}

/// The phase across hosts: a ring or an exchange for each shard, all at once, whichever is better for its size.
fn across_us(shape: &Shape, bytes: f64, rates: &Rates) -> f64 {
    if shape.h <= 1.0 {
        return 0.0;
    }
    let shard = bytes / shape.shards;
    let ring = ring_us(shape.h, shard, shape.shards, rates.across, rates);
    // In whole numbers: a logarithm may differ in its last bit from machine to machine, and a choice must not.
    let exchanges = f64::from((shape.h as u64).next_power_of_two().ilog2());
    let byte_us = shape.shards * rates.across.us_per_byte + rates.fold_us_per_byte;
    let doubling = exchanges * (rates.across.latency_us + shard * byte_us);
    ring.min(doubling)
}

/// What one rank sends in a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages to ranks of its host.
    pub local_messages: u64,
    /// Elements in them.
    pub local_elems: u64,
    /// Messages to other hosts.
    pub across_messages: u64,
    /// Elements in them.
    pub across_elems: u64,
    /// Elements copied into this rank's window.
    pub published_elems: u64,
    /// Elements copied out of others' windows.
    pub fetched_elems: u64,
}

/// Counts what rank `me` sends in a schedule.
pub fn traffic(schedule: &Schedule, topology: &Topology, me: Rank) -> Traffic {
    let mut traffic = Traffic::default();
    for step in &schedule.steps {
        match *step {
            Step::Send { to, span, .. } if topology.same_host(me, to) => {
                traffic.local_messages += 1;
                traffic.local_elems += span.len;
            }
            Step::Send { span, .. } => {
                traffic.across_messages += 1;
                traffic.across_elems += span.len;
            }
            Step::Publish { span, except, .. } => traffic.published_elems += span.len - except.len,
            Step::Stage { span, .. } => traffic.published_elems += span.len,
            Step::Fetch { chunk, .. } => traffic.fetched_elems += chunk.len,
            Step::Take { span, .. } => traffic.fetched_elems += span.len,
            _ => {}
        }
    }
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Tuning, allreduce};

    const TUNING: Tuning = Tuning { segment_elems: 1 << 20, tile_elems: 1 << 20, slots: 4, small_elems: 0 };
    const ELEMS: u64 = 1 << 20;

    fn busiest(algorithm: Algorithm, topology: &Topology) -> Traffic {
        let of = |rank| {
            let me = Rank::from(rank);
            traffic(&allreduce(algorithm, ELEMS, topology, me, &TUNING), topology, me)
        };
        (0..topology.size()).map(of).max_by_key(|traffic| traffic.local_elems + traffic.across_elems).expect("a rank")
    }

    /// Rates under which time is bytes on one kind of wire and nothing else.
    fn only_bytes() -> Rates {
        let free = LinkCost { latency_us: 0.0, us_per_byte: 0.0 };
        Rates { local: free, across: free, hand_over_us: 0.0, copy_us_per_byte: 0.0, fold_us_per_byte: 0.0 }
    }

    #[test]
    fn the_model_counts_the_bytes_that_schedules_send() {
        let topology = Topology::one_host(8);
        let mut rates = only_bytes();
        rates.local.us_per_byte = 1.0;
        for algorithm in [Algorithm::Ring, Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree] {
            let predicted = predict_us(algorithm, ELEMS, &topology, &rates);
            let sent = busiest(algorithm, &topology).local_elems as f64;
            assert!((predicted / sent - 1.0).abs() < 0.01, "{algorithm}: {predicted} predicted, {sent} sent");
        }
    }

    #[test]
    fn the_model_counts_what_crosses_between_hosts() {
        let topology = Topology::from_host_names(&["a", "a", "b", "b", "c", "c", "d", "d"]);
        let mut rates = only_bytes();
        rates.across.us_per_byte = 1.0;
        for algorithm in [Algorithm::Doubling, Algorithm::Halving, Algorithm::Hierarchical] {
            let predicted = predict_us(algorithm, ELEMS, &topology, &rates);
            // Two ranks share the wire of their host.
            let sent = 2.0 * busiest(algorithm, &topology).across_elems as f64;
            assert!((predicted / sent - 1.0).abs() < 0.01, "{algorithm}: {predicted} predicted, {sent} sent");
        }
    }

    #[test]
    fn the_model_counts_messages_in_sequence() {
        let topology = Topology::one_host(8);
        let mut rates = only_bytes();
        rates.local.latency_us = 1.0;
        assert_eq!(predict_us(Algorithm::Ring, 8, &topology, &rates), 14.0);
        assert_eq!(predict_us(Algorithm::Doubling, 8, &topology, &rates), 3.0);
        assert_eq!(predict_us(Algorithm::Halving, 8, &topology, &rates), 6.0);
    }

    #[test]
    fn windows_copy_and_fetch_all_but_one_chunk() {
        let topology = Topology::one_host(4);
        let tiles = allreduce(Algorithm::WindowTiles, ELEMS, &topology, Rank(0), &TUNING);
        let counted = traffic(&tiles, &topology, Rank(0));
        assert_eq!((counted.published_elems, counted.fetched_elems), (ELEMS * 3 / 4, ELEMS * 3 / 4));
    }

    #[test]
    fn small_tensors_prefer_few_steps_and_large_ones_few_bytes() {
        let topology = Topology::all_apart(16);
        let us = |algorithm, bytes| predict_us(algorithm, bytes, &topology, &Rates::TYPICAL);
        assert!(us(Algorithm::Doubling, 64) < us(Algorithm::Ring, 64));
        assert!(us(Algorithm::Ring, 1 << 28) < us(Algorithm::Doubling, 1 << 28));
        assert!(us(Algorithm::Halving, 1 << 28) <= us(Algorithm::Ring, 1 << 28));
    }
}
