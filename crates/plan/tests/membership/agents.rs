//! What agents and the launcher of a simulated job say: the ends of processes, with their records, and the answers of
//! the witness.
//!
//! An agent tells the members of its host of an end at once, and the members of other hosts through the launcher. Each
//! report may be late, or is never made. Nothing passes between an agent and the launcher once they are parted.

use farandole_plan::membership::{LossEvidence, VoteRecord, Witness, WitnessAnswer, WitnessRequest};

use super::mutations::Mutation;
use super::sim::{Event, MILLISECOND, SILENCE, World};

impl World {
    /// The agent has reaped a process.
    pub(crate) fn reap(&mut self, ended: usize) {
        if !self.plan.has_agents || self.random.below(256) < self.plan.lost_reports {
            return;
        }
        let (host, is_linked) = (self.nodes[ended].host, self.nodes[ended].is_linked);
        let evidence = match (&self.nodes[ended].record, self.mutation) {
            (None, Some(Mutation::MissingRecordIsEmpty)) | (Some(_), Some(Mutation::RecordIsIgnored)) => {
                LossEvidence::Reaped(VoteRecord::default())
            }
            (Some(record), _) => LossEvidence::Reaped(record.clone()),
            (None, _) => LossEvidence::Dead,
        };
        for node in (0..self.nodes.len()).filter(|node| *node != ended) {
            let is_near = self.nodes[node].host == host;
            if is_near || is_linked && self.nodes[node].is_linked && self.launcher_is_alive {
                let later = self.on_the_way();
                self.at(self.now + later, Event::Learn { node, about: ended, evidence: evidence.clone() });
            }
        }
    }

    /// How long a message from a member to the launcher takes, or the other way round.
    fn on_the_way(&mut self) -> u64 {
        match self.random.below(16) {
            0 if !self.quiet => self.random.below(SILENCE),
            _ => 100 + self.random.below(2 * MILLISECOND),
        }
    }

    pub(crate) fn ask_witness(&mut self, node: usize, request: WitnessRequest) {
        if self.mutation == Some(Mutation::FirstNeedsNoWitness) {
            let first = self.nodes[node].machine.generation().ids().next();
            if first == Some(super::sim::member(node)) {
                let answer = agreement(request);
                return self.at(self.now, Event::Answer { node, answer });
            }
        }
        if self.may_pass() {
            let later = self.on_the_way();
            self.at(self.now + later, Event::Ask { node, request });
        }
    }

    /// Now and then a message is lost with the connection that carries it.
    fn may_pass(&mut self) -> bool {
        self.quiet || self.random.below(32) > 0
    }

    pub(crate) fn ask_launcher(&mut self, node: usize, request: WitnessRequest) {
        if !self.launcher_is_alive || !self.nodes[node].is_linked {
            return;
        }
        let base = match &request {
            WitnessRequest::Collect { base, .. } | WitnessRequest::Propose { base, .. } => *base,
        };
        self.witness_base = self.witness_base.max(base);
        if let (Some(Mutation::WitnessBreaksPromise), WitnessRequest::Propose { .. }) = (self.mutation, &request) {
            self.witness = Witness::default();
        }
        let mut answer = self.witness.take(request);
        if let (Some(Mutation::WitnessForgetsVote), WitnessAnswer::Report { vote, .. }) = (self.mutation, &mut answer) {
            *vote = None;
        }
        if self.may_pass() {
            let later = self.on_the_way();
            self.at(self.now + later, Event::Answer { node, answer });
        }
    }
}

/// The answer of a witness that agrees to everything.
fn agreement(request: WitnessRequest) -> WitnessAnswer {
    match request {
        WitnessRequest::Collect { base, ballot } => WitnessAnswer::Report { base, ballot, vote: None },
        WitnessRequest::Propose { base, vote } => WitnessAnswer::Accepted { base, ballot: vote.ballot },
    }
}
