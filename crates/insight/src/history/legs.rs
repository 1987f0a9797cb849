//! Which parts of different ranks correspond to each other.
//!
//! Ranks have nothing in common but the operations that all of them take part in. A rank's *leg* number `n` is its time
//! between its submissions to the world's operations `n - 1` and `n`. What ranks do in the same leg they do side by
//! side: a rank that takes longer in it makes the others wait, and a phase that one rank has in a leg and another has
//! not is one that only some ranks work in.

use super::{History, Phase, PhaseKind};

/// The legs of every rank, and the phases in which only some ranks work.
#[derive(Clone, Debug)]
pub struct Legs {
    /// For each rank, the end of each leg but the last.
    ends: Vec<Vec<u64>>,
    /// For each rank, the phases that some other rank has not: beginning, end and the phase's position. In order,
    /// without overlap.
    sole: Vec<Vec<(u64, u64, usize)>>,
}

impl Legs {
    /// The legs of a history.
    pub fn of(history: &History) -> Legs {
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); history.size()];
        for operation in &history.operations {
            if operation.passages.len() != history.recorded_size() {
                continue;
            }
            for passage in &operation.passages {
                let ends = &mut ends[passage.rank];
                // A rank may submit in another order than operations run in; the later of two submissions ends both
                // legs.
                let before_ns = ends.last().copied().unwrap_or(0);
                ends.push(passage.submitted_ns.max(before_ns));
            }
        }
        let mut legs = Legs { ends, sole: vec![Vec::new(); history.size()] };
        for rank in 0..history.size() {
            legs.sole[rank] = legs.sole_of(history, rank);
        }
        legs
    }

    /// Number of legs of each rank.
    pub fn count(&self) -> usize {
        self.ends.iter().map(|ends| ends.len() + 1).max().unwrap_or(1)
    }

    /// The leg that a moment of a rank lies in.
    pub fn at(&self, rank: usize, at_ns: u64) -> usize {
        self.ends[rank].partition_point(|&end_ns| end_ns <= at_ns)
    }

    /// The moments at which a rank goes from one leg to the next.
    pub fn ends(&self, rank: usize) -> &[u64] {
        &self.ends[rank]
    }

    /// The position of the phase, if a rank is at this moment in one that some other rank has not.
    pub fn sole_at(&self, rank: usize, at_ns: u64) -> Option<usize> {
        let next = self.sole[rank].partition_point(|&(from_ns, ..)| from_ns <= at_ns);
        self.sole[rank][..next].last().filter(|&&(_, to_ns, _)| at_ns < to_ns).map(|&(.., phase)| phase)
    }

    /// Beginning, end and position of the phases that a rank has and some other has not.
    pub fn sole(&self, rank: usize) -> &[(u64, u64, usize)] {
        &self.sole[rank]
    }

    fn sole_of(&self, history: &History, rank: usize) -> Vec<(u64, u64, usize)> {
        let mut sole: Vec<(u64, u64, usize)> = Vec::new();
        for (position, phase) in history.ranks[rank].phases.iter().enumerate() {
            let within = sole.last().is_some_and(|&(_, end_ns, _)| phase.from_ns < end_ns);
            if within || !matches!(phase.kind, PhaseKind::Evaluation | PhaseKind::Named) {
                continue;
            }
            let leg = self.at(rank, phase.from_ns);
            if history.recorded().any(|other| other != rank && !self.has(history, other, leg, phase)) {
                sole.push((phase.from_ns, phase.to_ns, position));
            }
        }
        sole
    }

    /// Whether a rank has a phase of the same name in this leg.
    fn has(&self, history: &History, rank: usize, leg: usize, wanted: &Phase) -> bool {
        let ends = &self.ends[rank];
        let from_ns = leg.checked_sub(1).map_or(0, |before| ends[before]);
        let to_ns = ends.get(leg).copied().unwrap_or(u64::MAX);
        let phases = &history.ranks[rank].phases;
        let behind = phases.partition_point(|phase| phase.from_ns < to_ns.max(from_ns + 1));
        phases[..behind].iter().rev().any(|phase| phase.name == wanted.name && phase.to_ns >= from_ns)
    }
}
