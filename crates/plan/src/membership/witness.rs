//! The witness: an acceptor that is not a member, and decides which half of a generation continues.
//!
//! It promises and votes like a member, proposes nothing and is in no list. Coordinators ask it only when exactly half
//! of the members whose loss is not certain take part, so all other changes cost no message to it.
//!
//! **Invariant:** within a base it answers no ballot lower than its promise. A question about a later base shows that
//! the earlier ones are decided: their votes are forgotten, and questions about them are refused from then on.

use super::message::{Ballot, Vote};

/// The state of the witness. The launcher keeps it.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    base: u64,
    promised: Ballot,
    vote: Option<Vote>,
}

/// What a coordinator asks the witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WitnessRequest {
    /// To promise to answer no lower ballot.
    Collect {
        /// The generation to be changed.
        base: u64,
        /// The coordinator's ballot.
        ballot: Ballot,
    },
    /// To vote.
    Propose {
        /// The generation to be changed.
        base: u64,
        /// What to vote for.
        vote: Vote,
    },
}

/// What the witness answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WitnessAnswer {
    /// The promise.
    Report {
        /// The generation to be changed.
        base: u64,
        /// The ballot that is promised.
        ballot: Ballot,
        /// Its last vote in this base.
        vote: Option<Vote>,
    },
    /// It has voted for the ballot's proposal.
    Accepted {
        /// The generation to be changed.
        base: u64,
        /// The ballot.
        ballot: Ballot,
    },
    /// It has promised a higher ballot, or knows that a later generation exists.
    Refused {
        /// The latest base that it was asked about.
        base: u64,
        /// What it has promised there.
        promised: Ballot,
    },
}

impl Witness {
    /// Answers a coordinator.
    pub fn take(&mut self, request: WitnessRequest) -> WitnessAnswer {
        let (base, ballot) = match &request {
            WitnessRequest::Collect { base, ballot } => (*base, *ballot),
            WitnessRequest::Propose { base, vote } => (*base, vote.ballot),
        };
        if base > self.base {
            *self = Witness { base, ..Witness::default() };
        }
        if base < self.base || ballot < self.promised {
            return WitnessAnswer::Refused { base: self.base, promised: self.promised };
        }
        self.promised = ballot;
        match request {
            WitnessRequest::Collect { .. } => WitnessAnswer::Report { base, ballot, vote: self.vote.clone() },
            WitnessRequest::Propose { vote, .. } => {
                self.vote = Some(vote);
                WitnessAnswer::Accepted { base, ballot }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Generation, MemberId, VoteKind};
    use super::*;

    fn vote(round: u64, coordinator: u64) -> Vote {
        let generation = Generation { number: 2, members: Vec::new(), left_out: Vec::new(), witness: true };
        let (ballot, voters) = (Ballot { round, coordinator }, Arc::from([MemberId(coordinator)]));
        Vote { ballot, generation: Arc::new(generation), voters, kind: VoteKind::First, witness: true }
    }

    #[test]
    fn of_two_coordinators_the_one_with_the_lower_ballot_is_refused() {
        let mut witness = Witness::default();
        let (low, high) = (vote(1, 0), vote(1, 1));
        let collect = |vote: &Vote| WitnessRequest::Collect { base: 1, ballot: vote.ballot };
        assert!(matches!(witness.take(collect(&low)), WitnessAnswer::Report { vote: None, .. }));
        assert!(matches!(witness.take(collect(&high)), WitnessAnswer::Report { vote: None, .. }));
        let refused = WitnessAnswer::Refused { base: 1, promised: high.ballot };
        assert_eq!(witness.take(WitnessRequest::Propose { base: 1, vote: low }), refused);
        let accepted = WitnessAnswer::Accepted { base: 1, ballot: high.ballot };
        assert_eq!(witness.take(WitnessRequest::Propose { base: 1, vote: high.clone() }), accepted);
        let higher = vote(2, 0);
        let report = WitnessAnswer::Report { base: 1, ballot: higher.ballot, vote: Some(high) };
        assert_eq!(witness.take(collect(&higher)), report, "the next coordinator sees the vote");
    }

    #[test]
    fn a_base_that_is_decided_gets_no_votes() {
        let mut witness = Witness::default();
        witness.take(WitnessRequest::Propose { base: 1, vote: vote(1, 0) });
        let ballot = Ballot { round: 1, coordinator: 4 };
        let report = WitnessAnswer::Report { base: 2, ballot, vote: None };
        assert_eq!(witness.take(WitnessRequest::Collect { base: 2, ballot }), report);
        let late = witness.take(WitnessRequest::Propose { base: 1, vote: vote(9, 1) });
        assert_eq!(late, WitnessAnswer::Refused { base: 2, promised: ballot });
    }
}
