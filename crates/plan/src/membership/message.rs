//! What members tell each other.
//!
//! Every message but a decision carries the number of the generation that its sender is in, so that whoever is behind
//! is noticed. Encodings are elsewhere (`farandole-cluster`).

use std::sync::Arc;

use super::{Generation, Introduction, MemberId, VoteRecord};

/// The number of an attempt to change one generation into the next. Each is made by one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    /// Higher than all that its coordinator knew.
    pub round: u64,
    /// The coordinator's number. Only where round is zero, which is no ballot, it means nobody.
    pub coordinator: u64,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It works in its generation.
    Training,
    /// It asks for the next one.
    Boundary,
}

/// Where the list of a proposal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteKind {
    /// From the coordinator: nothing was decided before, and it decides when all of the list have accepted.
    First,
    /// From an earlier ballot, which may have been decided. The votes of the base are enough.
    Repeated,
}

/// A proposal, as it is voted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// In which ballot.
    pub ballot: Ballot,
    /// The next generation.
    pub generation: Arc<Generation>,
    /// The members of the base that take part in this ballot.
    pub voters: Arc<[MemberId]>,
    /// Where the list comes from.
    pub kind: VoteKind,
    /// Whether the witness takes part in this ballot as well.
    pub witness: bool,
}

/// What a coordinator has to know of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its last vote in this base.
    pub vote: Option<Vote>,
    /// What it brings along, if it is at the boundary.
    pub payload: Option<Arc<[u8]>>,
    /// Whose loss is certain: it has itself received all that they had sent.
    pub certain: Vec<MemberId>,
    /// Whom it does not hear.
    pub suspected: Vec<MemberId>,
}

/// What members tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberMessage {
    /// The sender is alive.
    Heartbeat {
        /// The sender's generation.
        generation: u64,
        /// Where it is.
        place: Place,
    },
    /// The sender is a candidate: it waits to be in a generation. Repeated like a heartbeat.
    Join {
        /// The newest generation that it knows of; 0 for none.
        generation: u64,
        /// The candidate.
        candidate: Introduction,
    },
    /// A coordinator begins a ballot.
    Collect {
        /// The generation to be changed.
        base: u64,
        /// Its ballot.
        ballot: Ballot,
    },
    /// The answer: a promise to take part in no lower ballot. Sent again when what it says has changed.
    Report {
        /// The generation to be changed.
        base: u64,
        /// The ballot that is answered.
        ballot: Ballot,
        /// What the sender has to say.
        report: Report,
    },
    /// The coordinator's proposal.
    Propose {
        /// The generation to be changed.
        base: u64,
        /// What to vote for.
        vote: Vote,
    },
    /// The sender has voted for the ballot's proposal.
    Accepted {
        /// The generation to be changed.
        base: u64,
        /// The ballot.
        ballot: Ballot,
    },
    /// The sender votes in a ballot in which the receiver does not take part.
    LeftOut {
        /// The generation to be changed.
        base: u64,
    },
    /// The sender has promised a higher ballot.
    Refused {
        /// The generation to be changed.
        base: u64,
        /// The ballot that it has promised.
        promised: Ballot,
    },
    /// This generation was decided. The receiver may be in it or not.
    Decided {
        /// The newest that the sender knows.
        generation: Arc<Generation>,
    },
    /// The sender leaves in order, takes part in nothing more, and has voted like this.
    Leave(VoteRecord),
    /// The sender asks whether it is still in the job.
    Confirm {
        /// The sender's generation.
        base: u64,
        /// Tells questions apart.
        nonce: u64,
    },
    /// The sender is in this generation and has not voted for a next one without the receiver.
    Confirmed {
        /// The sender's generation.
        base: u64,
        /// Of the question.
        nonce: u64,
    },
}

impl MemberMessage {
    /// The generation of the sender, for messages that make sense only to members of the same one.
    pub(super) fn base(&self) -> Option<u64> {
        match self {
            MemberMessage::Heartbeat { generation, .. } => Some(*generation),
            MemberMessage::Collect { base, .. }
            | MemberMessage::Report { base, .. }
            | MemberMessage::Propose { base, .. }
            | MemberMessage::Accepted { base, .. }
            | MemberMessage::Refused { base, .. }
            | MemberMessage::Confirm { base, .. }
            | MemberMessage::Confirmed { base, .. } => Some(*base),
            MemberMessage::Join { .. }
            | MemberMessage::LeftOut { .. }
            | MemberMessage::Decided { .. }
            | MemberMessage::Leave(_) => None,
        }
    }
}
