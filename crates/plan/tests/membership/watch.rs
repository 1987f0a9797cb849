//! Watches a simulated job and notes the first thing that must not happen.

use std::collections::BTreeMap;
use std::sync::Arc;

use farandole_plan::membership::{Generation, GenerationHistory, MemberId};

use super::node::{Doing, Node};

/// What was seen so far.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Every generation that some process has entered.
    pub(crate) history: GenerationHistory,
    /// A hash of everything that happened, in order.
    pub(crate) log: u64,
    pub(crate) deaths: usize,
    pub(crate) evictions: usize,
    pub(crate) surrenders: usize,
    /// The newest generation that some process had entered when a question was asked, by nonce.
    asked: BTreeMap<u64, u64>,
    /// What must not happen, and has.
    pub(crate) violation: Option<String>,
}

impl Watch {
    pub(crate) fn new(first: &Arc<Generation>) -> Watch {
        let mut history = GenerationHistory::default();
        history.enter(first).expect("the first one");
        let asked = BTreeMap::new();
        Watch { history, log: 0, deaths: 0, evictions: 0, surrenders: 0, violation: None, asked }
    }

    /// Adds to the log.
    pub(crate) fn note(&mut self, one: u64, other: u64) {
        for number in [one, other] {
            self.log = (self.log ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// A process is in a generation, though it may not get to work in it. A number has one list, and the order is
    /// stable.
    pub(crate) fn entered(&mut self, node: usize, generation: &Arc<Generation>) {
        self.note(node as u64, generation.number);
        if let Err(two) = self.history.enter(generation) {
            self.violation.get_or_insert(two.to_string());
        }
    }

    /// A process begins to work in a generation. One generation at most has all its members at work.
    pub(crate) fn installed(&mut self, node: usize, generation: &Arc<Generation>, nodes: &[Node]) {
        self.note(node as u64, generation.number << 32);
        let works = |number: u64, id: MemberId| {
            let node = &nodes[id.0 as usize];
            node.alive && node.doing == Doing::Training && node.machine.generation().number == number
        };
        let numbers: Vec<u64> = nodes.iter().map(|node| node.machine.generation().number).collect();
        let is_at_work = |number: &&u64| {
            self.history
                .generations()
                .get(number)
                .is_some_and(|generation| generation.ids().all(|id| works(**number, id)))
        };
        let mut at_work: Vec<u64> = numbers.iter().filter(is_at_work).copied().collect();
        at_work.dedup();
        at_work.sort_unstable();
        at_work.dedup();
        if at_work.len() > 1 {
            self.violation.get_or_insert(format!("generations {at_work:?} are at work at once"));
        }
    }

    /// A process asks whether it is still in the job. Returns the nonce.
    pub(crate) fn asks(&mut self) -> u64 {
        let nonce = self.asked.len() as u64;
        let newest = self.history.generations().keys().next_back().copied().unwrap_or_default();
        self.asked.insert(nonce, newest);
        nonce
    }

    /// A process was confirmed: when it asked, no generation after this one was without it.
    pub(crate) fn confirmed(&mut self, node: usize, nonce: u64, generation: u64) {
        self.note(node as u64, generation << 8);
        let newest = self.asked[&nonce];
        for (number, later) in self.history.generations().range(generation + 1..(newest + 1).max(generation + 1)) {
            let is_in = later.contains(MemberId(node as u64));
            assert!(
                is_in,
                "{node} is confirmed in generation {generation} after generation {number} went on without it"
            );
        }
    }

    pub(crate) fn killed(&mut self, node: usize) {
        self.deaths += 1;
        self.note(node as u64, 1);
    }

    pub(crate) fn evicted(&mut self, node: usize) {
        self.evictions += 1;
        self.note(node as u64, 2);
    }

    pub(crate) fn gave_up(&mut self, node: usize) {
        self.surrenders += 1;
        self.note(node as u64, 3);
    }
}
