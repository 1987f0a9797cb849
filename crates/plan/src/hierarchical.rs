//! Hierarchical allreduce: inside the hosts first, then across, then inside again.
//!
//! The span is cut into *shards*, as many as the smallest host has ranks. On every host, the *holder* of shard `s` is
//! the rank with local rank `s`. Three phases:
//! 1. On each host, every rank gives shard `s` to its holder, which folds them.
//! 2. For each shard, its holders on all hosts make an allreduce among themselves: by `doubling` if the shard is small,
//!    by `ring` otherwise.
//! 3. On each host, every holder gives its shard to all others.
//!
//! All shards cross the network at once, each over connections of its own. With uneven hosts, the ranks that hold no
//! shard hand in locally and get the result locally. The alternative, as many shards as the largest host has ranks,
//! would make ranks of smaller hosts carry several shards, and the host with the fewest links would have more messages,
//! not fewer bytes: each host must send and receive `2 (h - 1) / h` of the span in any case, where `h` is the number of
//! hosts.
//!
//! Bytes sent by each rank, with `l` ranks on its host, all holders: `(l - 1) / l` of the span inside the host in phase
//! 1, `2 (h - 1) / (h l)` across (ring), `(l - 1) / l` inside in phase 3. Steps: `2 (l - 1) + 2 (h - 1)`, of which the
//! local ones are independent messages.
//!
//! Phases 1 and 3 exist by messages and through windows. Every element is folded by one rank in each phase and in a
//! fixed order, so all ranks end with the same bits.

use crate::algorithm::Tuning;
use crate::doubling;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Schedule, Span, Step};
use crate::slices::{self, Sliced};
use crate::team::{Team, segments};
use crate::topology::Topology;
use crate::window::Rounds;

/// Who does what on the host of one rank.
struct Place<'a> {
    locals: &'a [Rank],
    /// This rank's position among them.
    me: usize,
    shards: Vec<Span>,
}

impl<'a> Place<'a> {
    fn new(span: Span, topology: &'a Topology, me: Rank) -> Place<'a> {
        let count = (0..topology.hosts()).map(|host| topology.ranks_on(host).len()).min().expect("a group has a host");
        let shards = (0..count).map(|shard| span.piece(shard, count)).collect();
        Place { locals: topology.ranks_on(topology.host_of(me)), me: topology.local_rank(me), shards }
    }

    fn own_shard(&self) -> Option<Span> {
        self.shards.get(self.me).copied()
    }

    /// The shards of the others, in the order in which this rank serves them: the next holder first, so that not
    /// all ranks turn to the same one.
    fn other_shards(&self) -> impl Iterator<Item = (Rank, Span)> + '_ {
        let count = self.shards.len();
        let others = (1..=count).map(move |offset| (self.me + offset) % count).filter(|&shard| shard != self.me);
        others.map(|shard| (self.locals[shard], self.shards[shard]))
    }

    /// The other ranks of the host, those before this one first, backwards around the circle.
    fn other_locals(&self) -> impl Iterator<Item = Rank> + '_ {
        let count = self.locals.len();
        (1..count).map(move |offset| self.locals[(self.me + count - offset) % count])
    }
}

/// Steps of rank `me`, by messages alone.
pub(crate) fn allreduce(span: Span, topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    let place = Place::new(span, topology, me);
    let mut steps = Vec::new();
    for (holder, shard) in place.other_shards() {
        doubling::send_all(&mut steps, holder, shard, tuning);
    }
    if let Some(shard) = place.own_shard() {
        for segment in segments(shard, tuning.segment_elems) {
            for from in place.other_locals() {
                steps.push(Step::Recv { from, span: segment, arrival: Arrival::Fold });
            }
        }
        steps.extend(across(shard, topology, me, tuning));
        for segment in segments(shard, tuning.segment_elems) {
            for to in place.other_locals() {
                steps.push(Step::Send { to, from: Buffer::Work, span: segment });
            }
        }
    }
    for (holder, shard) in place.other_shards() {
        doubling::recv_all(&mut steps, holder, shard, Arrival::Place, tuning);
    }
    Schedule::new(steps)
}

/// Steps of rank `me`, with the phases inside the host through windows.
pub(crate) fn allreduce_window(span: Span, topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    let place = Place::new(span, topology, me);
    let piece_elems = (tuning.tile_elems / place.shards.len() as u64).max(1);
    let rounds = Rounds::new(&place.shards, piece_elems, tuning);
    let mut steps = Vec::new();
    if place.locals.len() > 1 {
        rounds.reduce_scatter(place.me, 0, &mut steps);
    }
    if let Some(shard) = place.own_shard() {
        steps.extend(across(shard, topology, me, tuning));
    }
    if place.locals.len() == 1 {
        return Schedule::new(steps);
    }
    rounds.allgather(place.locals, place.me, rounds.count, &mut steps);
    steps.push(Step::Drain { tile: 2 * rounds.count - 1 });
    rounds.schedule(steps)
}

/// Phase 2 alone, of a shard of so many elements that lies at the front of the work buffer of rank `me`, in slices: for
/// ranks whose hosts fold elsewhere.
pub(crate) fn allreduce_across(elems: u64, slice_elems: u64, topology: &Topology, me: Rank, tuning: &Tuning) -> Sliced {
    slices::allreduce(&holders(topology, me), Span { start: 0, len: elems }, slice_elems, tuning)
}

/// Phase 2: allreduce of one shard among its holders on all hosts.
fn across(shard: Span, topology: &Topology, me: Rank, tuning: &Tuning) -> Vec<Step> {
    slices::allreduce(&holders(topology, me), shard, 0, tuning).schedule.steps
}

/// The holders of this rank's shard, one on each host.
fn holders(topology: &Topology, me: Rank) -> Team {
    Team::new(topology.cross_ranks(topology.local_rank(me)), me)
}
