//! Reduce: the root gets the combination of all contributions.
//!
//! By messages it is a broadcast backwards: the same trees and the same segments (see `broadcast`), but each member
//! folds what its children send into its own contribution and passes the partial result on to its parent. So it has as
//! many steps and as many bytes, and what is left in the work buffers of the others is spoilt.
//!
//! Through windows everybody but the root publishes tile by tile, and the root folds whole tiles, in rank order: bytes
//! copied into the windows: all, by everybody else; bytes read: all of everybody, by the root. Nothing but the root's
//! buffer changes.

use crate::algorithm::Tuning;
use crate::broadcast::flow;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Schedule, Span, Step};
use crate::team::{Team, segments};
use crate::topology::Topology;

/// Steps of rank `me` in a reduction of `elems` elements to `root`, in place in the work buffer.
pub fn reduce(elems: u64, root: Rank, topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    if topology.size() == 1 || elems == 0 {
        return Schedule::default();
    }
    let span = Span::between(0, elems);
    let (parent, children) = flow(&Team::by_host_from(topology, root, me), span, tuning);
    let mut steps = Vec::new();
    for segment in segments(span, tuning.segment_elems) {
        // The nearest first: in a binomial tree it has the least to wait for.
        for &child in children.iter().rev() {
            steps.push(Step::Recv { from: child, span: segment, arrival: Arrival::Fold });
        }
        if let Some(parent) = parent {
            steps.push(Step::Send { to: parent, from: Buffer::Work, span: segment });
        }
    }
    Schedule::new(steps)
}

/// As [`reduce`], through the windows of the one host on which all `n` ranks run.
pub fn reduce_window(elems: u64, root: Rank, n: usize, me: Rank, tuning: &Tuning) -> Schedule {
    if n == 1 || elems == 0 {
        return Schedule::default();
    }
    let mut steps = Vec::new();
    for (tile, span) in (0..).zip(segments(Span::between(0, elems), tuning.tile_elems)) {
        if me == root {
            steps.push(Step::FoldWhole { tile, span });
        } else {
            steps.push(Step::Publish { tile, span, except: Span { start: span.start, len: 0 } });
            steps.push(Step::Release { tile });
        }
    }
    Schedule { steps, slots: tuning.slots.max(1) }
}
