//! The double binary tree: two trees, each for half of the elements, pipelined by segments.
//!
//! In a tree, each member gets the contributions of its *children*, folds them into its own and sends the result to its
//! *parent*; the root then sends the result down. A single tree wastes half of the links, because leaves receive
//! nothing on the way up and send nothing on the way down. So there are two trees, each with half of the span, arranged
//! so that a member is inner in at most one of them.
//!
//! Both are the same *in-order* tree over *places* 1 to `n`: the root of a run of places is the place in it that is
//! divisible by the highest power of two; the places before it and after it form the subtrees. Odd places are always
//! leaves. In the first tree member `m` has place `m + 1`; in the second it has the next place around the circle, so
//! that even becomes odd.
//!
//! Segment `k` goes up, and segment `k - lag` comes down, where `lag` is the height of the tree: by then its result has
//! reached the root, and both directions of the links are busy. Two members may be neighbours in both trees; what they
//! send each other stays in order because all members go by the same turns: up in the first tree, up in the second,
//! down in the first, down in the second. For this reason the root, too, waits for its turn.
//!
//! Steps: about `4 log2 n + 2 segments`. Bytes sent by each member: at most twice the span. Every element is folded
//! along one tree, so all ranks end with the same bits.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Span, Step};
use crate::team::{Team, segments};

/// A member's neighbours in one tree.
struct Neighbours {
    parent: Option<Rank>,
    children: Vec<Rank>,
}

/// The place in `first..=last` that is divisible by the highest power of two.
fn root_of(first: usize, last: usize) -> usize {
    let mut root = last;
    // Clearing low bits keeps the highest multiple of ever higher powers of two; stop before it leaves the run.
    while root & (root - 1) >= first {
        root &= root - 1;
    }
    root
}

/// Parent and children of a place in the in-order tree over `1..=n`.
fn place_neighbours(place: usize, n: usize) -> (Option<usize>, Vec<usize>) {
    let (mut first, mut last, mut parent) = (1, n, None);
    loop {
        let root = root_of(first, last);
        if root == place {
            let mut children = Vec::new();
            if first < root {
                children.push(root_of(first, root - 1));
            }
            if root < last {
                children.push(root_of(root + 1, last));
            }
            return (parent, children);
        }
        parent = Some(root);
        if place < root {
            last = root - 1;
        } else {
            first = root + 1;
        }
    }
}

/// Neighbours in the tree in which member `m` has place `(m + shift) % n + 1`.
fn neighbours(team: &Team, shift: usize) -> Neighbours {
    let n = team.size();
    let member_at = |place: usize| team.rank((place - 1 + n - shift) % n);
    let (parent, children) = place_neighbours((team.me + shift) % n + 1, n);
    Neighbours { parent: parent.map(member_at), children: children.into_iter().map(member_at).collect() }
}

/// Allreduce of `span` among the team.
pub(crate) fn allreduce(team: &Team, span: Span, tuning: &Tuning) -> Vec<Step> {
    if team.size() == 1 {
        return Vec::new();
    }
    let trees = [0, 1].map(|shift| {
        let half: Vec<Span> = segments(span.piece(shift, 2), tuning.segment_elems).collect();
        (neighbours(team, shift), half)
    });
    let count = trees.iter().map(|(_, half)| half.len()).max().unwrap_or(0);
    let lag = team.size().ilog2() as usize;
    let mut steps = Vec::new();
    for turn in 0..count + lag {
        for (neighbours, half) in &trees {
            if let Some(&segment) = half.get(turn) {
                send_up(&mut steps, neighbours, segment);
            }
        }
        for (neighbours, half) in &trees {
            if let Some(&segment) = turn.checked_sub(lag).and_then(|index| half.get(index)) {
                send_down(&mut steps, neighbours, segment);
            }
        }
    }
    steps
}

fn send_up(steps: &mut Vec<Step>, neighbours: &Neighbours, segment: Span) {
    for &child in &neighbours.children {
        steps.push(Step::Recv { from: child, span: segment, arrival: Arrival::Fold });
    }
    if let Some(parent) = neighbours.parent {
        steps.push(Step::Send { to: parent, from: Buffer::Work, span: segment });
    }
}

fn send_down(steps: &mut Vec<Step>, neighbours: &Neighbours, segment: Span) {
    if let Some(parent) = neighbours.parent {
        steps.push(Step::Recv { from: parent, span: segment, arrival: Arrival::Place });
    }
    for &child in &neighbours.children {
        steps.push(Step::Send { to: child, from: Buffer::Work, span: segment });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_over_seven_places_is_perfect() {
        assert_eq!(place_neighbours(4, 7), (None, vec![2, 6]));
        assert_eq!(place_neighbours(6, 7), (Some(4), vec![5, 7]));
        assert_eq!(place_neighbours(3, 7), (Some(2), vec![]));
    }

    #[test]
    fn every_member_is_inner_in_at_most_one_tree() {
        for n in 2..200 {
            for me in 0..n {
                let team = Team::new((0..n).map(Rank::from).collect(), Rank::from(me));
                let inner = [0, 1].iter().filter(|&&shift| !neighbours(&team, shift).children.is_empty()).count();
                assert!(inner <= 1, "member {me} of {n} is inner in both trees");
            }
        }
    }
}
