//! Broadcast: every rank gets the root's elements.
//!
//! The ranks are ordered with the root first, then the rest of its host, then host after host; below, *place* means a
//! rank's position in this order. Three ways by messages:
//! - *Spreading* (binomial tree), for small sizes: at distance `d = 2^k`, from the largest down, every place that has
//!   the elements and is a multiple of `2 d` sends them to the place `d` after it. `ceil(log2 n)` steps; the root sends
//!   them that often.
//! - *Chain*, for sizes of at least `n` segments: each place passes every segment on to the next place as soon as it
//!   arrives. `n - 1 + segments` steps; every rank sends the elements once at most, the least possible.
//! - *Tree*, in between: the segments flow down a binary tree in place order. About `2 log2 n + 2 segments` steps;
//!   every rank sends the elements twice at most.
//!
//! Through windows, the root publishes tile by tile and everybody takes: bytes copied into the window: all, by the
//! root; bytes read: all, by everybody else.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Schedule, Span, Step};
use crate::team::{Team, segments};
use crate::topology::Topology;

/// Steps of rank `me` in a broadcast of `elems` elements from `root`, in place in the work buffer.
pub fn broadcast(elems: u64, root: Rank, topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    if topology.size() == 1 || elems == 0 {
        return Schedule::default();
    }
    let span = Span::between(0, elems);
    let (parent, children) = flow(&Team::by_host_from(topology, root, me), span, tuning);
    Schedule::new(flow_down(parent, &children, span, tuning))
}

/// The parent and the children of a member of a team that has the root in front, in the tree for this size.
pub(crate) fn flow(team: &Team, span: Span, tuning: &Tuning) -> (Option<Rank>, Vec<Rank>) {
    if span.len <= tuning.small_elems || team.size() == 2 {
        spreading(team)
    } else if segments(span, tuning.segment_elems).len() >= team.size() {
        chain(team)
    } else {
        binary(team)
    }
}

/// As [`broadcast`], through the windows of the one host on which all `n` ranks run.
pub fn broadcast_window(elems: u64, root: Rank, n: usize, me: Rank, tuning: &Tuning) -> Schedule {
    if n == 1 || elems == 0 {
        return Schedule::default();
    }
    let mut steps = Vec::new();
    // Small enough for the others to take a tile while the root publishes the next, large enough for a hand-over not to
    // matter.
    let tile_elems = (elems / 4).max(tuning.tile_elems / 32).min(tuning.tile_elems / 4).max(1);
    let tiles = segments(Span::between(0, elems), tile_elems);
    let last = u32::try_from(tiles.len() - 1).expect("a buffer has fewer than 2^32 tiles");
    for (tile, span) in (0..=last).zip(tiles) {
        if me == root {
            steps.push(Step::Publish { tile, span, except: Span { start: span.start, len: 0 } });
        } else {
            steps.push(Step::Take { tile, from: root, span, at: 0 });
        }
        steps.push(Step::Release { tile });
    }
    Schedule { steps, slots: tuning.slots.max(1) }
}

fn spreading(team: &Team) -> (Option<Rank>, Vec<Rank>) {
    let place = team.me;
    // The root behaves as if its lowest bit were beyond the last place.
    let reach = if place == 0 { team.size().next_power_of_two() } else { 1 << place.trailing_zeros() };
    let parent = (place > 0).then(|| team.rank(place - reach));
    let mut children = Vec::new();
    let mut distance = reach / 2;
    while distance > 0 {
        if place + distance < team.size() {
            children.push(team.rank(place + distance));
        }
        distance /= 2;
    }
    (parent, children)
}

fn chain(team: &Team) -> (Option<Rank>, Vec<Rank>) {
    let place = team.me;
    let parent = (place > 0).then(|| team.rank(place - 1));
    let children = (place + 1 < team.size()).then(|| team.rank(place + 1));
    (parent, children.into_iter().collect())
}

/// A binary tree whose subtrees are runs of places: the first place of a run is its root and hands one half of the rest
/// to each of two children.
fn binary(team: &Team) -> (Option<Rank>, Vec<Rank>) {
    let (mut first, mut end, mut parent) = (0, team.size(), None);
    loop {
        let middle = first + 1 + (end - first - 1).div_ceil(2);
        if first == team.me {
            let children = [(first + 1, middle), (middle, end)].into_iter().filter(|(start, end)| start < end);
            return (parent, children.map(|(start, _)| team.rank(start)).collect());
        }
        parent = Some(team.rank(first));
        (first, end) = if team.me < middle { (first + 1, middle) } else { (middle, end) };
    }
}

fn flow_down(parent: Option<Rank>, children: &[Rank], span: Span, tuning: &Tuning) -> Vec<Step> {
    let mut steps = Vec::new();
    for segment in segments(span, tuning.segment_elems) {
        if let Some(parent) = parent {
            steps.push(Step::Recv { from: parent, span: segment, arrival: Arrival::Place });
        }
        for &child in children {
            steps.push(Step::Send { to: child, from: Buffer::Work, span: segment });
        }
    }
    steps
}
