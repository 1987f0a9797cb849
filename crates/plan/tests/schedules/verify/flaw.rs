//! What can be wrong with a set of schedules, said so that the reader finds the step.

use std::fmt;

use farandole_plan::request::Rank;
use farandole_plan::schedule::Span;

/// A step of a rank: where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The rank.
    pub(crate) rank: Rank,
    /// Index into the steps of its schedule.
    pub(crate) step: usize,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} at step {}", self.rank, self.step)
    }
}

/// Why a rank cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No message is under way.
    Message,
    /// It must not overwrite what it sends before that has left.
    SendToLeave,
    /// Its slot is still read.
    SlotToBeFree,
    /// A tile is not published.
    Publication,
    /// A result is not there.
    Result,
    /// A mapped buffer is not filled.
    Exposure,
    /// Others still use the mapped buffers.
    Settlement,
}

/// A rank that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// Where it is.
    pub(crate) spot: Spot,
    /// Why.
    pub(crate) cause: Cause,
    /// Whom it waits for.
    pub(crate) on: Vec<Rank>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on: Vec<String> = self.on.iter().map(Rank::to_string).collect();
        let on = on.join(", ");
        write!(f, "{} ", self.spot)?;
        match self.cause {
            Cause::Message => write!(f, "waits for a message from rank {on}"),
            Cause::SendToLeave => write!(f, "waits until rank {on} has taken what it is about to overwrite"),
            Cause::SlotToBeFree => write!(f, "waits until rank {on} no longer reads the slot"),
            Cause::Publication => write!(f, "waits until rank {on} has published the tile"),
            Cause::Result => write!(f, "waits until rank {on} has folded the tile"),
            Cause::Exposure => write!(f, "waits until rank {on} has exposed its buffer"),
            Cause::Settlement => write!(f, "waits until rank {on} is done with the mapped buffers"),
        }
    }
}

/// What is wrong with a set of schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Some ranks wait and none can go on.
    Deadlock {
        /// All ranks that wait.
        stuck: Vec<Stuck>,
    },
    /// A rank ends without a contribution it should have.
    MissingContribution {
        /// The rank.
        rank: Rank,
        /// First element concerned.
        element: u64,
        /// Whose contribution.
        contributor: Rank,
    },
    /// A rank ends with a contribution that does not belong there.
    UnwantedContribution {
        /// The rank.
        rank: Rank,
        /// First element concerned.
        element: u64,
        /// Whose contribution.
        contributor: Rank,
    },
    /// A contribution would be counted twice.
    DoubleContribution {
        /// The step that folds it.
        spot: Spot,
        /// First element concerned.
        element: u64,
        /// Whose contribution.
        contributor: Rank,
    },
    /// Different elements meet: combined by a step, or found in the wrong place at the end (`step` is then the number
    /// of steps).
    Misplaced {
        /// Where it shows.
        spot: Spot,
        /// The element at this place.
        element: u64,
        /// Where the value found there comes from.
        origin: u64,
    },
    /// A step reads what nobody has written.
    ReadBeforeWrite {
        /// The step.
        spot: Spot,
        /// Whose memory is read.
        owner: Rank,
        /// First element concerned.
        element: u64,
    },
    /// A step reaches beyond the end of its buffer.
    OutOfBounds {
        /// The step.
        spot: Spot,
        /// The span.
        span: Span,
        /// Elements of the buffer.
        elems: u64,
    },
    /// A message does not have the length that its receiver expects.
    LengthMismatch {
        /// The receive.
        spot: Spot,
        /// The sender.
        from: Rank,
        /// Elements sent.
        sent: u64,
        /// Elements expected.
        expected: u64,
    },
    /// A message without elements, outside a barrier.
    EmptyMessage {
        /// The step.
        spot: Spot,
    },
    /// A message that nobody receives.
    MessageLeftOver {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// What it carries.
        span: Span,
    },
    /// A step other than a receive writes where a posted send may still read.
    OverwrittenSend {
        /// The step.
        spot: Spot,
        /// Whose send.
        sender: Rank,
        /// The span of the send.
        span: Span,
    },
    /// A slot holds another tile than the one its reader expects.
    OverwrittenSlot {
        /// The read.
        spot: Spot,
        /// Whose slot.
        owner: Rank,
        /// The tile expected.
        tile: u32,
        /// The tile found.
        found: Option<u32>,
    },
    /// A rank publishes tiles out of order, or one twice.
    TileOutOfOrder {
        /// The step.
        spot: Spot,
        /// The tile.
        tile: u32,
    },
    /// Ranks of a host disagree about the number of slots, or there are window steps without slots.
    SlotsDiffer {
        /// A rank.
        rank: Rank,
        /// Slots it assumes.
        slots: u32,
        /// What it should assume.
        expected: u32,
    },
    /// A step names a rank that does not exist, that is the rank itself, or whose memory cannot be seen.
    NoSuchPeer {
        /// The step.
        spot: Spot,
        /// The rank named.
        peer: Rank,
    },
    /// A rank leaves a barrier without knowing that another has come.
    LeavesEarly {
        /// The rank that leaves.
        rank: Rank,
        /// The rank it knows nothing of.
        absent: Rank,
    },
}

/// How many of the waiting ranks a message lists; the first few show the circle.
const STUCK_SHOWN: usize = 8;

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Deadlock { stuck } => {
                let shown: Vec<String> = stuck.iter().take(STUCK_SHOWN).map(Stuck::to_string).collect();
                write!(f, "deadlock: {}", shown.join("; "))?;
                match stuck.len().saturating_sub(STUCK_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
            Flaw::MissingContribution { rank, element, contributor } => {
                write!(f, "rank {rank} ends without the contribution of rank {contributor} to element {element}")
            }
            Flaw::UnwantedContribution { rank, element, contributor } => {
                write!(f, "rank {rank} ends with the contribution of rank {contributor} in element {element}, unasked")
            }
            Flaw::DoubleContribution { spot, element, contributor } => {
                write!(f, "{spot} counts the contribution of rank {contributor} to element {element} twice")
            }
            Flaw::Misplaced { spot, element, origin } => {
                write!(f, "{spot} has element {origin} in the place of element {element}")
            }
            Flaw::ReadBeforeWrite { spot, owner, element } => {
                write!(f, "{spot} reads element {element} of rank {owner}, which has not been written")
            }
            Flaw::OutOfBounds { spot, span, elems } => {
                write!(f, "{spot} reaches to element {} of a buffer of {elems}", span.end())
            }
            Flaw::LengthMismatch { spot, from, sent, expected } => {
                write!(f, "{spot} expects {expected} elements from rank {from}, which sends {sent}")
            }
            Flaw::EmptyMessage { spot } => write!(f, "{spot} has a message without elements"),
            Flaw::MessageLeftOver { from, to, span } => {
                let (start, end) = (span.start, span.end());
                write!(f, "the message with elements {start}..{end} from rank {from} to rank {to} is never received")
            }
            Flaw::OverwrittenSend { spot, sender, span } => {
                let (start, end) = (span.start, span.end());
                write!(f, "{spot} overwrites elements {start}..{end} while rank {sender} may still be sending them")
            }
            Flaw::OverwrittenSlot { spot, owner, tile, found } => {
                write!(f, "{spot} reads tile {tile} in the window of rank {owner}, but finds ")?;
                match found {
                    Some(found) => write!(f, "tile {found}"),
                    None => write!(f, "nothing"),
                }
            }
            Flaw::TileOutOfOrder { spot, tile } => write!(f, "{spot} publishes tile {tile} out of order"),
            Flaw::SlotsDiffer { rank, slots, expected } => {
                write!(f, "rank {rank} assumes {slots} slots where {expected} are expected")
            }
            Flaw::NoSuchPeer { spot, peer } => write!(f, "{spot} names rank {peer}, which it cannot reach that way"),
            Flaw::LeavesEarly { rank, absent } => {
                write!(f, "rank {rank} leaves without knowing whether rank {absent} has come")
            }
        }
    }
}

impl std::error::Error for Flaw {}
