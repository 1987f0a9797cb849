//! Point-to-point messages: which send belongs to which receive, and when the bytes travel.
//!
//! A send names its destination and a tag, a receive its source, or none, and a tag. They need no agreement of the
//! group and no bucket: the two ranks tell each other *notes* over their control line, which keeps their order. As in
//! MPI, a receive takes the oldest send that fits, and a send the oldest receive; so messages of one tag from one rank
//! to another do not overtake each other.
//!
//! Two protocols, by size, with MPI's names:
//! - *eager*, up to [`EAGER_BYTES`]: the bytes travel with the [`Note::Offer`]. The receiver keeps them until a receive
//!   fits, and then accepts. Sends of up to [`BUFFERED_BYTES`] in all for each destination are done at once; further
//!   ones when they are accepted, so that what a receiver keeps is bounded by what its peers have under way.
//! - *rendezvous*: the offer travels alone. When a receive fits, the receiver accepts, and the bytes follow in *pieces*
//!   of [`PIECE_BYTES`], in order, each when the line has taken the one before.
//!
//! Both sides must agree on element type and number of bytes. If they do not, send and receive are both refused, and
//! everything else goes on. (A send that was done at once cannot be told.)
//!
//! [`PointToPoint`] is the state of one rank. It holds no tensor memory: [`PointToPoint::receive`] says where the bytes
//! of a note go, and [`TransferEffect`]s what is to be done besides. A rank may send to itself.

mod note;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::request::Rank;

pub use note::{Form, Note};

/// Messages up to this size are eager: about what a line carries in the time of the hand-over that this saves.
pub const EAGER_BYTES: u64 = 16 << 10;

/// Eager sends to one destination of up to this size in all are done before they are accepted. Programs in which two
/// ranks send to each other before they receive need that; they find as much room in the buffers of a socket.
pub const BUFFERED_BYTES: u64 = 1 << 20;

/// The bytes of a longer message travel in pieces of this size, so that notes of the agreement are not held up.
pub const PIECE_BYTES: u64 = 256 << 10;

/// A send or a receive of this rank, until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(u64);

/// Where the bytes that came with a note go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// There are none.
    None,
    /// Into the memory of this receive, from this byte on.
    Place {
        /// The receive.
        id: TransferId,
        /// Where.
        offset: u64,
    },
    /// They are kept, under the sender and the number of the offer, until an effect asks for them.
    Keep {
        /// The offer.
        number: u64,
    },
}

/// What is to be done. In order: what a `Done` frees is not needed by anything before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferEffect {
    /// Tell a rank, with bytes of a send if there are any.
    Tell {
        /// The rank.
        to: Rank,
        /// What.
        note: Note,
        /// The send, all of whose bytes follow.
        with: Option<TransferId>,
    },
    /// Put bytes that were kept into the memory of a receive.
    PlaceKept {
        /// The receive.
        id: TransferId,
        /// Whose bytes.
        from: Rank,
        /// The offer.
        number: u64,
    },
    /// Forget bytes that were kept.
    DropKept {
        /// Whose bytes.
        from: Rank,
        /// The offer.
        number: u64,
    },
    /// A send or receive is done.
    Done {
        /// Which.
        id: TransferId,
        /// The other side.
        peer: Rank,
    },
    /// A send or receive does not fit its other side.
    Refused {
        /// Which.
        id: TransferId,
        /// Why.
        reason: Arc<str>,
    },
}

/// A peer told something that cannot be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What.
    pub what: String,
}

/// A piece of a message, to be sent as a [`Note::Piece`] with these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The note.
    pub note: Note,
    /// The send.
    pub id: TransferId,
    /// Its bytes.
    pub span: Range<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    id: TransferId,
    form: Form,
    /// Whether the caller has been told that it is done.
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    id: TransferId,
    from: Option<Rank>,
    tag: u32,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
struct Offered {
    from: Rank,
    number: u64,
    tag: u32,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
struct Arriving {
    id: TransferId,
    form: Form,
    arrived: u64,
}

/// What this rank has with one peer.
#[derive(Debug, Default)]
struct Peer {
    /// Offers made to it so far.
    offered: u64,
    /// Offers made by it so far.
    heard: u64,
    /// Offers to it that have not been answered.
    sends: HashMap<u64, Sending>,
    /// Bytes of sends that are done and not accepted.
    buffered: u64,
    /// Accepted offers whose bytes are on their way, and how many of them have been.
    flowing: VecDeque<(u64, Sending, u64)>,
    /// Offers by it that this rank has accepted and whose bytes are on their way.
    arriving: HashMap<u64, Arriving>,
}

/// See the module's text.
#[derive(Debug)]
pub struct PointToPoint {
    me: Rank,
    /// World ranks of the members, for messages to people.
    world_ranks: Vec<Rank>,
    peers: Vec<Peer>,
    /// Receives that wait for an offer, the oldest first.
    posted: VecDeque<Posted>,
    /// Offers that wait for a receive, the oldest first.
    offers: VecDeque<Offered>,
    effects: VecDeque<TransferEffect>,
    transfers: u64,
}

impl PointToPoint {
    /// The state of rank `me` of a group of these world ranks.
    pub fn new(me: Rank, world_ranks: &[Rank]) -> PointToPoint {
        PointToPoint {
            me,
            world_ranks: world_ranks.to_vec(),
            peers: world_ranks.iter().map(|_| Peer::default()).collect(),
            posted: VecDeque::new(),
            offers: VecDeque::new(),
            effects: VecDeque::new(),
            transfers: 0,
        }
    }

    /// Begins to send. Its memory must stay until it is done.
    pub fn send(&mut self, to: Rank, tag: u32, form: Form) -> TransferId {
        let id = self.next_id();
        let peer = &mut self.peers[to.index()];
        let number = peer.offered;
        peer.offered += 1;
        let done = form.is_eager() && peer.buffered + form.bytes <= BUFFERED_BYTES;
        peer.sends.insert(number, Sending { id, form, done });
        let with = form.is_eager().then_some(id);
        self.effects.push_back(TransferEffect::Tell { to, note: Note::Offer { number, tag, form }, with });
        if done {
            self.peers[to.index()].buffered += form.bytes;
            self.effects.push_back(TransferEffect::Done { id, peer: to });
        }
        id
    }

    /// Begins to receive, from anybody if no source is named.
    pub fn recv(&mut self, from: Option<Rank>, tag: u32, form: Form) -> TransferId {
        let id = self.next_id();
        let posted = Posted { id, from, tag, form };
        match self.offers.iter().position(|offer| fit(&posted, offer)) {
            None => self.posted.push_back(posted),
            Some(at) => {
                let offer = self.offers.remove(at).expect("invariant: it was just found");
                self.answer_kept(posted, offer);
            }
        }
        id
    }

    /// Hears a note with so many bytes, and says where they go.
    ///
    /// # Errors
    /// If it cannot be: the control line is not to be trusted any more.
    pub fn receive(&mut self, from: Rank, note: Note, bytes: u64) -> Result<Use, Violation> {
        let violation = |what: &str| Violation { what: format!("{what}: {note:?} with {bytes} bytes") };
        if matches!(note, Note::Accept { .. } | Note::Refuse { .. }) && bytes > 0 {
            return Err(violation("an answer with bytes"));
        }
        match note {
            Note::Offer { number, tag, form } => {
                let peer = &mut self.peers[from.index()];
                let expected_bytes = if form.is_eager() { form.bytes } else { 0 };
                if number != peer.heard || bytes != expected_bytes {
                    return Err(violation("an offer out of order, or of another size"));
                }
                peer.heard += 1;
                Ok(self.hear_offer(Offered { from, number, tag, form }))
            }
            Note::Accept { number } => {
                let sending = self.answered(from, number).ok_or_else(|| violation("an answer to no offer"))?;
                if !sending.form.is_eager() {
                    self.peers[from.index()].flowing.push_back((number, sending, 0));
                } else if !sending.done {
                    self.effects.push_back(TransferEffect::Done { id: sending.id, peer: from });
                }
                Ok(Use::None)
            }
            Note::Refuse { number, form } => {
                let sending = self.answered(from, number).ok_or_else(|| violation("an answer to no offer"))?;
                if !sending.done {
                    let reason = self.mismatch(self.me, sending.form, from, form);
                    self.effects.push_back(TransferEffect::Refused { id: sending.id, reason });
                }
                Ok(Use::None)
            }
            Note::Piece { number } => self.hear_piece(from, number, bytes).ok_or_else(|| violation("an unknown piece")),
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<TransferEffect> {
        self.effects.pop_front()
    }

    /// The next piece for a rank whose line has room.
    pub fn next_piece(&mut self, to: Rank) -> Option<Piece> {
        let (number, sending, sent) = self.peers[to.index()].flowing.front_mut()?;
        let (number, id) = (*number, sending.id);
        let span = *sent..(*sent + PIECE_BYTES).min(sending.form.bytes);
        *sent = span.end;
        if span.end == sending.form.bytes {
            self.peers[to.index()].flowing.pop_front();
            self.effects.push_back(TransferEffect::Done { id, peer: to });
        }
        Some(Piece { note: Note::Piece { number }, id, span })
    }

    /// Whether a rank has bytes coming from this one that wait for room.
    pub fn has_pieces(&self, to: Rank) -> bool {
        !self.peers[to.index()].flowing.is_empty()
    }

    /// Whether every send of this rank has been received: it may leave.
    pub fn all_received(&self) -> bool {
        self.effects.is_empty() && self.peers.iter().all(|peer| peer.sends.is_empty() && peer.flowing.is_empty())
    }

    fn next_id(&mut self) -> TransferId {
        self.transfers += 1;
        TransferId(self.transfers)
    }

    fn hear_offer(&mut self, offer: Offered) -> Use {
        let Offered { from, number, form, .. } = offer;
        let Some(at) = self.posted.iter().position(|posted| fit(posted, &offer)) else {
            self.offers.push_back(offer);
            return if form.is_eager() { Use::Keep { number } } else { Use::None };
        };
        let posted = self.posted.remove(at).expect("invariant: it was just found");
        if !self.accept(posted, offer) {
            return Use::None;
        }
        if form.is_eager() {
            self.effects.push_back(TransferEffect::Done { id: posted.id, peer: from });
            return Use::Place { id: posted.id, offset: 0 };
        }
        Use::None
    }

    /// A receive was found for an offer that has waited, and whose bytes are kept if it is eager.
    fn answer_kept(&mut self, posted: Posted, offer: Offered) {
        let Offered { from, number, form, .. } = offer;
        let accepted = self.accept(posted, offer);
        match (accepted, form.is_eager()) {
            (true, true) => {
                self.effects.push_back(TransferEffect::PlaceKept { id: posted.id, from, number });
                self.effects.push_back(TransferEffect::Done { id: posted.id, peer: from });
            }
            (false, true) => self.effects.push_back(TransferEffect::DropKept { from, number }),
            (_, false) => {}
        }
    }

    /// Answers an offer for which a receive was found. Says whether they agree.
    fn accept(&mut self, posted: Posted, offer: Offered) -> bool {
        let Offered { from, number, form, .. } = offer;
        if form != posted.form {
            self.effects.push_back(TransferEffect::Tell {
                to: from,
                note: Note::Refuse { number, form: posted.form },
                with: None,
            });
            let reason = self.mismatch(from, form, self.me, posted.form);
            self.effects.push_back(TransferEffect::Refused { id: posted.id, reason });
            return false;
        }
        self.effects.push_back(TransferEffect::Tell { to: from, note: Note::Accept { number }, with: None });
        if !form.is_eager() {
            self.peers[from.index()].arriving.insert(number, Arriving { id: posted.id, form, arrived: 0 });
        }
        true
    }

    /// Takes out an offer that a rank has answered.
    fn answered(&mut self, by: Rank, number: u64) -> Option<Sending> {
        let peer = &mut self.peers[by.index()];
        let sending = peer.sends.remove(&number)?;
        if sending.done {
            peer.buffered -= sending.form.bytes;
        }
        Some(sending)
    }

    fn hear_piece(&mut self, from: Rank, number: u64, bytes: u64) -> Option<Use> {
        let peer = &mut self.peers[from.index()];
        let arriving = peer.arriving.get_mut(&number)?;
        let offset = arriving.arrived;
        arriving.arrived = offset.checked_add(bytes).filter(|end| bytes > 0 && *end <= arriving.form.bytes)?;
        let id = arriving.id;
        if arriving.arrived == arriving.form.bytes {
            peer.arriving.remove(&number);
            self.effects.push_back(TransferEffect::Done { id, peer: from });
        }
        Some(Use::Place { id, offset })
    }

    fn mismatch(&self, sender: Rank, sent: Form, receiver: Rank, expected: Form) -> Arc<str> {
        let world = |rank: Rank| self.world_ranks[rank.index()];
        format!("rank {} sends {sent}, but rank {} receives {expected}", world(sender), world(receiver)).into()
    }
}

fn fit(posted: &Posted, offer: &Offered) -> bool {
    posted.tag == offer.tag && posted.from.is_none_or(|from| from == offer.from)
}
