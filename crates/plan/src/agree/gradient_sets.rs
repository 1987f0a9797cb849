//! Which gradients the optimizers of each rank reduce, and which of them another rank lacks; on the coordinator.
//!
//! A parameter that is frozen, or was not given to the optimizer, on one rank only has no gradient there, and the other
//! ranks would wait for it for ever. A rank therefore *declares* the names of an optimizer's gradients, once for each
//! optimizer and again when its set of parameters changes, after it has made all requests of a step. The `n`-th
//! declarations of two ranks are about the same optimizer if they have a name in common; a name of one that is not in
//! the other is *lacking* on the rank of the other.
//!
//! Certain, because a rank that has declared makes no request for another gradient of that optimizer before it declares
//! again: declarations of different numbers are not compared, so a rank that is about to unfreeze a parameter as the
//! others have done lacks nothing. A declaration takes the place of earlier ones that it has a name in common with.
//!
//! Costs nothing in the steady state: there are no declarations then.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::table::ByName;
use crate::fuse::hash_bytes;
use crate::request::Rank;

/// Optimizers of a rank whose gradients are remembered. Programs have one or two; those that make new ones again and
/// again, for other parameters, must not fill the memory.
const REMEMBERED: usize = 8;

/// See the module's text.
#[derive(Debug)]
pub(super) struct GradientSets {
    ranks: Vec<Declarations>,
    /// For each name, ranks that lack it, each with a rank that has it.
    lacking: ByName<BTreeSet<(Rank, Rank)>>,
}

/// Those of one rank.
#[derive(Debug, Default)]
struct Declarations {
    /// How many it has made.
    count: u64,
    /// The last ones, without names in common.
    kept: VecDeque<Declaration>,
}

#[derive(Debug)]
struct Declaration {
    /// How many the rank had made with this one.
    number: u64,
    /// A hash of the names in any order.
    hash: u64,
    /// Sorted.
    names: Vec<Arc<str>>,
}

impl Declaration {
    fn has(&self, name: &Arc<str>) -> bool {
        self.names.binary_search(name).is_ok()
    }

    fn overlaps(&self, other: &Declaration) -> bool {
        self.names.iter().any(|name| other.has(name))
    }
}

impl Declarations {
    fn has(&self, name: &Arc<str>) -> bool {
        self.kept.iter().any(|declaration| declaration.has(name))
    }

    fn add(&mut self, mut names: Vec<Arc<str>>) {
        names.sort_unstable();
        let hash = names.iter().fold(0, |sum: u64, name| sum.wrapping_add(hash_bytes(name.as_bytes())));
        self.count += 1;
        let new = Declaration { number: self.count, hash, names };
        self.kept.retain(|kept| !kept.overlaps(&new));
        if self.kept.len() == REMEMBERED {
            self.kept.pop_front();
        }
        self.kept.push_back(new);
    }

    /// Gradients of this rank that the other one lacks.
    fn beyond<'a>(&'a self, other: &'a Declarations) -> impl Iterator<Item = &'a Arc<str>> {
        let is_other = |mine: &Declaration, theirs: &Declaration| {
            mine.number == theirs.number && mine.hash != theirs.hash && mine.overlaps(theirs)
        };
        let differing = self.kept.iter().filter(move |mine| other.kept.iter().any(|theirs| is_other(mine, theirs)));
        differing.flat_map(|mine| &mine.names).filter(|name| !other.has(name))
    }
}

impl GradientSets {
    pub(super) fn new(size: usize) -> GradientSets {
        GradientSets { ranks: (0..size).map(|_| Declarations::default()).collect(), lacking: ByName::default() }
    }

    /// A rank declares the gradients of an optimizer.
    pub(super) fn declare(&mut self, from: Rank, names: Vec<Arc<str>>) {
        self.ranks[from.index()].add(names);
        self.lacking.retain(|_, pairs| {
            pairs.retain(|(lacks, has)| *lacks != from && *has != from);
            !pairs.is_empty()
        });
        let own = &self.ranks[from.index()];
        for (rank, other) in self.ranks.iter().enumerate().filter(|(rank, _)| *rank != from.index()) {
            let rank = Rank::from(rank);
            for name in own.beyond(other) {
                self.lacking.entry(Arc::clone(name)).or_default().insert((rank, from));
            }
            for name in other.beyond(own) {
                self.lacking.entry(Arc::clone(name)).or_default().insert((from, rank));
            }
        }
    }

    /// Whether no rank is known to lack anything.
    pub(super) fn are_equal(&self) -> bool {
        self.lacking.is_empty()
    }

    /// The ranks that are known to lack this gradient.
    pub(super) fn lacking(&self, name: &str) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = self.lacking.get(name).into_iter().flatten().map(|(lacks, _)| *lacks).collect();
        ranks.dedup();
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declare(sets: &mut GradientSets, rank: u32, names: &str) {
        sets.declare(Rank(rank), names.split(' ').map(Arc::from).collect());
    }

    #[test]
    fn a_gradient_that_one_rank_has_and_another_lacks_is_known_when_both_have_declared() {
        let mut sets = GradientSets::new(3);
        declare(&mut sets, 0, "a b c");
        assert!(sets.are_equal());
        declare(&mut sets, 1, "c a");
        assert_eq!((sets.lacking("b"), sets.lacking("a")), (vec![Rank(1)], vec![]));
        declare(&mut sets, 2, "a c");
        assert_eq!(sets.lacking("b"), [Rank(1), Rank(2)]);
    }

    /// Ranks that unfreeze a parameter come to that step at different times.
    #[test]
    fn a_rank_that_has_not_declared_anew_lacks_nothing() {
        let mut sets = GradientSets::new(2);
        declare(&mut sets, 0, "a b");
        declare(&mut sets, 1, "a b");
        declare(&mut sets, 0, "a b c");
        assert!(sets.are_equal(), "rank 1 may be about to unfreeze it, too");
        declare(&mut sets, 1, "a b c");
        assert!(sets.are_equal());
        declare(&mut sets, 1, "a b c d");
        declare(&mut sets, 0, "a b c e");
        assert_eq!((sets.lacking("d"), sets.lacking("e")), (vec![Rank(0)], vec![Rank(1)]));
        declare(&mut sets, 0, "a b c d");
        assert_eq!((sets.lacking("d"), sets.lacking("e")), (vec![], vec![]));
    }

    /// A rank that lacks a gradient may declare its second optimizer before the others declare their first.
    #[test]
    fn the_first_optimizer_is_compared_when_a_rank_has_a_second_one() {
        let mut sets = GradientSets::new(2);
        declare(&mut sets, 1, "generator.a");
        declare(&mut sets, 1, "discriminator.a");
        declare(&mut sets, 0, "generator.a generator.b");
        assert_eq!(sets.lacking("generator.b"), [Rank(1)]);
        declare(&mut sets, 0, "discriminator.a");
        assert_eq!(sets.lacking("generator.b"), [Rank(1)]);
    }

    #[test]
    fn optimizers_that_ranks_use_in_another_order_are_not_taken_for_each_other() {
        let mut sets = GradientSets::new(2);
        declare(&mut sets, 0, "generator.a generator.b");
        declare(&mut sets, 1, "discriminator.a");
        assert!(sets.are_equal());
    }
}
