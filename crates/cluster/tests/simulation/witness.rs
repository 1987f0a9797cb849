//! Watches a simulated job and panics as soon as an invariant breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farandole_cluster::membership::Generation;
use farandole_plan::membership::GenerationHistory;

use super::node::{Doing, Learned, Node, member};

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// Every generation that some process has entered.
    pub(crate) history: GenerationHistory,
    /// A hash of everything that happened, in order.
    pub(crate) log: u64,
    /// By the first sample of a step: the generation that dealt it last, and the members that have learned it.
    dealt: BTreeMap<u64, (u64, BTreeSet<usize>)>,
    /// The generation that has committed last.
    newest_at_work: u64,
    pub(crate) steps: u64,
    pub(crate) evictions: usize,
}

impl Witness {
    /// Adds to the log.
    pub(crate) fn note(&mut self, one: u64, other: u64) {
        for number in [one, other] {
            self.log = (self.log ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// A process is in a generation, though it may not get to work in it. A number has one list.
    pub(crate) fn entered(&mut self, node: usize, generation: &Arc<Generation>) {
        self.note(node as u64, generation.number);
        if let Err(two) = self.history.enter(generation) {
            panic!("{two}");
        }
    }

    /// A process begins to work in a generation. One generation at most has all its members at work.
    pub(crate) fn installed(&mut self, generation: &Generation, nodes: &[Node]) {
        let works = |list: &Generation| {
            list.ids().all(|id| {
                let node = &nodes[id.0 as usize];
                node.alive && node.doing == Doing::Training && node.number() == list.number
            })
        };
        let at_work: Vec<u64> =
            self.history.generations().values().filter(|list| works(list)).map(|list| list.number).collect();
        assert!(at_work.len() <= 1, "generations {at_work:?} are at work at once");
        self.note(generation.number, 7);
    }

    /// The members of a generation begin it with the most advanced state among them, and all such states are equal.
    pub(crate) fn state_of(generation: &Generation) -> Learned {
        let states = || generation.members.iter().map(|member| Learned::decode(&member.payload));
        let newest = states().max().unwrap_or_default();
        let differs = states().any(|state| state.position == newest.position && state != newest);
        assert!(!differs, "members of generation {} learned the same samples in two histories", generation.number);
        newest
    }

    /// A member has made a step. Each sample is learned once in the history of every process that continues.
    pub(crate) fn learned(&mut self, node: usize, before: Learned, generation: &Generation, nodes: &[Node]) {
        self.steps += 1;
        self.note(before.position, generation.number);
        assert!(
            generation.number >= self.newest_at_work,
            "generation {} makes a step after generation {}",
            generation.number,
            self.newest_at_work
        );
        self.newest_at_work = generation.number;
        let (last, learners) = self.dealt.entry(before.position).or_default();
        if *last < generation.number {
            let twice = learners.iter().find(|learner| {
                nodes[**learner].is_up()
                    && generation.contains(member(**learner))
                    && nodes[**learner].doing == Doing::Training
            });
            assert!(twice.is_none(), "process {twice:?} gets sample {} a second time", before.position);
            learners.clear();
            *last = generation.number;
        }
        learners.insert(node);
    }

    pub(crate) fn evicted(&mut self, node: usize) {
        self.evictions += 1;
        self.note(node as u64, 2);
    }
}
