//! Who is in the job: members agree on one generation after the other, whoever is lost and whoever joins.
//!
//! A *member* is a process with a number that no other process of the job ever has. A *generation* is a number and a
//! list of members in the order of their ranks. A member that cannot go on, or that wants candidates to be let in,
//! comes to the *boundary* and asks for the next generation. [`Membership`] is one member's side of the agreement: a
//! state machine to which messages, evidence of losses, the member's own wishes and the time are given, and which
//! answers with [`MembershipEffect`]s.
//!
//! # Protocol
//!
//! Generations form a chain: generation `g + 1` is the value of a single-decree Paxos in which the members of
//! generation `g`, the *base*, vote. So a generation number has one list, whichever processes die in between.
//!
//! ```text
//! coordinator                                    every other member of the base that is not lost
//!     Collect { ballot }              ───────▶   promises to take part in no lower ballot
//!     ◀───────  Report { vote, whether it is at the boundary, whose loss is certain }
//!     Propose { vote }                ───────▶   records and says LeftOut to members that do not take part, then votes
//!     ◀───────  Accepted
//!     Decided { generation }          ───────▶   installs it
//! ```
//!
//! The coordinator is the first member of the base that is not lost in its own view; there may be several for a while.
//! A ballot is a round and its coordinator's number, so no two are equal. When all members that are not lost have
//! answered, and are at the boundary, the coordinator proposes them, in their order, and the candidates that wait, by
//! number. It decides when all of the list have accepted; a loss meanwhile leads to a higher ballot. That takes five
//! messages in a row, two to and fro and the decision.
//!
//! A new coordinator that finds a vote of a lost one must assume that it was decided, unless the reports refute it.
//! Then it proposes that list again ([`VoteKind::Repeated`]), is content with the votes of the base, and installs it
//! although one of its members is lost; the next change begins at once.
//!
//! Two members of which one does not hear the other could not work together, though the coordinator hears both: if they
//! do not meet within a heartbeat, the later one is left out, like a suspect.
//!
//! The *witness* ([`Witness`]) is an acceptor that is not a member: the launcher. Whether a generation has one is said
//! by its founder and inherited. A coordinator asks it only when exactly half of the members take part.
//!
//! Messages on a connection arrive in order while it lasts. Each can arrive twice or never: the coordinator repeats its
//! questions with every heartbeat and on every new connection, and a member that shows an old generation (each message
//! carries the sender's) is told the newest one. So a member that was presumed dead learns that it is evicted.
//!
//! # Losses, and the partition rule
//!
//! The loss of a member is *certain* to another one if its process has ended or has left, and it has not voted in this
//! base without the other one. What proves this is in the next section. A member that is silent, or dead without such a
//! proof, is *suspected*. The rule: **of the members of the base whose loss is not certain to a member that takes part,
//! more than half take part, or exactly half and the witness** ([`Quorum`]). In a generation without a witness exactly
//! half suffice if they have the first of these members.
//!
//! It is not enough to leave out fewer than half of the whole base on suspicion. Of five members two are killed, and a
//! cut separates the third from the others: one is left on one side and two on the other, each side suspects fewer than
//! half of five, and both would continue.
//!
//! # Proofs of an end
//!
//! A member adds those whom a vote leaves out to its [`VoteRecord`], and the record is stored outside the process
//! before any message of that vote is sent. Three things prove the end of a member to another one:
//!
//! - a `Leave` with its record: it takes part in nothing after that;
//! - the record that the agent read after it had reaped the process ([`LossEvidence::Reaped`]). Messages in flight may
//!   be lost with the connections; the record has what a lost `LeftOut` would have said;
//! - on one host, the word of the kernel that the process has ended, after its stream was read to the end
//!   ([`LossEvidence::Ended`]). This counts only without a *gap*. A new connection, or one that breaks although others
//!   remain, opens a gap, for a `LeftOut` may have been lost. On both the sender repeats it before anything else, so
//!   the first message that arrives then closes the gap.
//!
//! A closed or reset connection proves nothing: the member is redialled, and is suspected if it is not heard within two
//! heartbeats.
//!
//! # Invariants, and why they hold
//!
//! *Decided ballots of one base have a common acceptor.* Let S1 and S2 be the members that voted in two decided
//! ballots. Suppose that no member is in both. Each member of S1 has recorded all of S2 as left out, and said so to
//! them, before it voted; so its loss is certain to no member of S2, by none of the three proofs. Hence S1 is among
//! those that S2 suspects, and S2 among those that S1 suspects. By the rule S2 has at least as many members as it
//! suspects, and so has S1: all these sets are of one size, S1 is exactly what S2 suspects and the other way round.
//! Both are exactly half. With a witness, it has voted in both ballots. Without one, both hold the same members for
//! certainly lost, the first of the others is in S1 or in S2, and the rule lets only its side decide.
//!
//! *At most one list for each number.* Let `b` be the lowest decided ballot, L its list, S its acceptors, and call a
//! later ballot *aware* if one of S takes part in it. By the first invariant only aware ballots are decided. Every
//! aware ballot proposes L, by induction: an acceptor in S reports its last vote, which is the one for `b` or one in a
//! later aware ballot, hence for L. Of the reported votes the coordinator drops first votes that are refuted, which
//! that for `b` is not; a vote in a later aware ballot is a repeated one and is never dropped. It also drops first
//! votes that a later vote with another list *supersedes*, because both ballots have a common acceptor; such a later
//! ballot would be aware of `b` and would have L, so the vote for `b` stays. If votes with different lists are left,
//! nothing is proposed; if one list is left, it is L.
//!
//! A ballot that is not aware can still be proposed: its coordinator had a quorum of promises, of which some members
//! then died without a vote. Therefore a later vote alone does not refute an earlier one.
//!
//! For this, what is certain must be known at first hand by a member that takes part: reports say what is certain to
//! the reporting member itself. A member in a later generation has told so with each message, which counts as a vote
//! without those that are behind.
//!
//! *The order is stable*: members of the base keep their order, candidates follow by number.
//!
//! *No wait is endless.* A wait ends with a decision, or with the caller's deadline and a [`Waiting`] that says for
//! what. When messages arrive again and no other member is lost, every live member of the newest generation comes to
//! the next one, if the rule allows it; all others are told that they are evicted.
//!
//! Not here: sockets and encodings (`farandole-cluster`), how long a member waits at the boundary, and what a rank does
//! with a generation. Nothing makes the members come to the boundary; a member that trains is told of losses
//! ([`MembershipEffect::Lost`]) and of others that are there ([`MembershipEffect::Called`]), and sees whether
//! candidates wait ([`Membership::candidates`]).

mod change;
mod confirm;
mod evidence;
mod losses;
mod machine;
mod message;
mod peer;
mod quorum;
mod replay;
mod witness;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use confirm::ConfirmRefusal;
pub use evidence::{LossEvidence, VoteRecord};
pub use machine::Membership;
pub use message::{Ballot, MemberMessage, Place, Report, Vote, VoteKind};
pub use quorum::Quorum;
pub use replay::{GenerationHistory, MembershipInput, MembershipStart, Replay, TwoHistories};
pub use witness::{Witness, WitnessAnswer, WitnessRequest};

/// The number of a member, which no other process of the job ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What everybody in a generation knows of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Who.
    pub id: MemberId,
    /// Where it listens for other members; not read here.
    pub contact: Arc<[u8]>,
    /// What it brings along for this generation; not read here.
    pub payload: Arc<[u8]>,
}

/// A list of members with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Counts from 1.
    pub number: u64,
    /// In the order of ranks.
    pub members: Vec<Introduction>,
    /// Who was in the generation before and is not in this one, and why.
    pub left_out: Vec<(MemberId, Arc<str>)>,
    /// Whether the job has a [`Witness`], which decides ties. The founder says so, and each generation inherits it.
    pub witness: bool,
}

impl Generation {
    /// The rank of a member.
    pub fn rank(&self, member: MemberId) -> Option<usize> {
        self.members.iter().position(|introduction| introduction.id == member)
    }

    /// Whether it is in.
    pub fn contains(&self, member: MemberId) -> bool {
        self.rank(member).is_some()
    }

    /// The numbers of its members, in the order of ranks.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().map(|introduction| introduction.id)
    }
}

/// What can be set; equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A generation has at least so many members; fewer wait for candidates.
    pub min_members: usize,
    /// A generation has at most so many; more candidates stay candidates.
    pub max_members: usize,
    /// A member that is not heard of for longer is suspected; `None`: never.
    pub silence: Option<Duration>,
}

impl Limits {
    /// Heartbeats in one allowed silence: three may be late before the fourth matters.
    const HEARTBEATS: u32 = 4;

    /// The longest silence; with no limit on silence, a common one.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.silence.unwrap_or(Duration::from_secs(5))
    }

    /// How often everybody is heard; with no limit on silence, as often as with a common one.
    pub fn beat(&self) -> Duration {
        self.longest_silence() / Limits::HEARTBEATS
    }
}

/// How sure a loss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process has ended.
    Certain,
    /// It is silent, or somebody could not reach it.
    Suspected,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEffect {
    /// Record the members without which this one votes. The record must survive the process before any of the following
    /// effects is carried out.
    Record(VoteRecord),
    /// Ask the witness. A request or its answer may be lost; it is repeated.
    AskWitness(WitnessRequest),
    /// Send a message. The order of messages to one member matters, and a [`MemberMessage::LeftOut`] must be on its way
    /// before what follows it, to whomever.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        message: MemberMessage,
    },
    /// A member of the current generation is lost.
    Lost {
        /// Who.
        member: MemberId,
        /// How sure that is.
        loss: Loss,
        /// What was seen.
        cause: Arc<str>,
    },
    /// Another member is at the boundary of the generation in which this one trains, or is about to, or has left in
    /// order. Said once in a generation: whoever waits for the other one's links waits in vain.
    Called {
        /// Who does not work in this generation any more.
        by: MemberId,
    },
    /// This member is in a new generation, and no longer at the boundary.
    Installed(Arc<Generation>),
    /// The others have gone on without this member, which takes part no more.
    Evicted {
        /// The generation that is without it.
        generation: u64,
        /// Why.
        cause: Arc<str>,
    },
    /// Somebody waits at the boundary, and it has become clear for what.
    Waiting(Waiting),
    /// The answer to [`Membership::confirm`].
    Confirmed {
        /// Of the question.
        nonce: u64,
        /// The generation in which this member was after the question, or why that is not known.
        outcome: Result<u64, ConfirmRefusal>,
    },
}

/// What a member at the boundary waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For somebody who lets it join.
    Welcome,
    /// For the decision of another member.
    Coordinator(MemberId),
    /// For answers.
    Answers(Vec<MemberId>),
    /// For members that still train.
    Boundary(Vec<MemberId>),
    /// For two members to hear each other. If that does not happen soon, the second is left out.
    Acquaintance(MemberId, MemberId),
    /// For votes.
    Votes(Vec<MemberId>),
    /// For candidates: there are fewer members than the job needs.
    Candidates {
        /// So many are there.
        present: usize,
        /// So many are needed.
        needed: usize,
    },
    /// For members that are only suspected: without them too few are left to decide.
    Majority {
        /// So many take part.
        present: usize,
        /// Who may be deciding without them.
        suspected: Vec<MemberId>,
    },
    /// For the witness: exactly half of the members take part.
    Witness {
        /// So many take part.
        present: usize,
        /// Who may be deciding without them.
        suspected: Vec<MemberId>,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Welcome => f.write_str("no member of the job has let this process join"),
            Waiting::Coordinator(member) => write!(
                f,
                "member {member}, which has to propose the next generation, has not done so: it still trains, or waits \
                 for others"
            ),
            Waiting::Answers(members) => write!(f, "{} did not answer", names(members)),
            Waiting::Boundary(members) => {
                write!(f, "{} did not come to the boundary: the training script there goes on", names(members))
            }
            Waiting::Acquaintance(one, other) => {
                write!(f, "member {one} does not hear member {other}, or the other way round")
            }
            Waiting::Votes(members) => write!(f, "{} did not accept the next generation", names(members)),
            Waiting::Candidates { present, needed } => write!(
                f,
                "{present} members are left and the job needs {needed} (min-np): the others have to be replaced"
            ),
            Waiting::Majority { present, suspected } => write!(
                f,
                "{} cannot be reached and may be alive; the {present} on this side are too few to go on without them",
                names(suspected)
            ),
            Waiting::Witness { present, suspected } => write!(
                f,
                "{} cannot be reached and may be alive; the {present} on this side are half of the members: the \
                 launcher (farandole run) decides which half continues, and has not answered",
                names(suspected)
            ),
        }
    }
}

/// So many members are named one by one; of more, the first and the count say as much.
const MOST_NAMED: usize = 8;

fn names(members: &[MemberId]) -> String {
    let listed: Vec<String> = members.iter().take(MOST_NAMED).map(MemberId::to_string).collect();
    match (members.len(), listed.as_slice()) {
        (1, [only]) => format!("member {only}"),
        (count, listed) if count > MOST_NAMED => format!("members {}, … ({count} in all)", listed.join(", ")),
        (_, [first @ .., last]) if !first.is_empty() => format!("members {} and {last}", first.join(", ")),
        _ => "nobody".to_string(),
    }
}
