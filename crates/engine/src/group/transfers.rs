//! The point-to-point messages of one group on one rank: the memory behind `plan::p2p`, and the control lines.
//!
//! Bytes go over the control lines, between the messages of the agreement. A piece of a long message is handed to a
//! line when the line has let go of everything before, so a line never holds more than one, and other messages wait for
//! one at most.

use std::collections::HashMap;

use farandole_plan::Rank;
use farandole_plan::p2p::{Form, Note, PointToPoint, TransferEffect, TransferId, Use};
use farandole_transport::{Error as TransportError, Mesh, Progress};

use super::control::SAYS_TRANSFER;
use crate::error::Error;
use crate::pending::Pending;
use crate::submission::Outcome;
use crate::transfer::Transfer;

/// A line that takes everything at once gets so many pieces in a turn: the driver has other groups.
const PIECES_PER_TURN: usize = 4;

/// See the module's text.
pub(super) struct Transfers {
    me: Rank,
    state: PointToPoint,
    pending: HashMap<TransferId, Pending>,
    /// Small messages for which there is no receive yet, by sender and number.
    kept: HashMap<(Rank, u64), Vec<u8>>,
    /// Reused between messages.
    message: Vec<u8>,
}

impl Transfers {
    pub(super) fn new(me: Rank, world_ranks: &[Rank]) -> Transfers {
        let state = PointToPoint::new(me, world_ranks);
        Transfers { me, state, pending: HashMap::new(), kept: HashMap::new(), message: Vec::new() }
    }

    /// Takes a send or a receive in.
    pub(super) fn begin(&mut self, transfer: Transfer, pending: Pending) {
        let memory = pending.input.as_ref().expect("invariant: a transfer has memory");
        let form = Form { dtype: memory.dtype(), bytes: memory.len_bytes() as u64 };
        let id = match transfer {
            Transfer::Send { to, tag } => self.state.send(to, tag, form),
            Transfer::Recv { from, tag } => self.state.recv(from, tag, form),
        };
        self.pending.insert(id, pending);
    }

    /// Hears a control message of another rank, or of this one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn hear(&mut self, from: Rank, body: &[u8]) -> Result<(), String> {
        let (note, bytes) = Note::decode(body).map_err(|malformed| malformed.to_string())?;
        match self.state.receive(from, note, bytes.len() as u64).map_err(|violation| violation.what)? {
            Use::None => {}
            Use::Place { id, offset } => self.place(id, offset as usize, bytes),
            Use::Keep { number } => {
                self.kept.insert((from, number), bytes.to_vec());
            }
        }
        Ok(())
    }

    /// Does what can be done now. Says whether anything moved, and sets `unflushed` if a line has got something.
    pub(super) fn advance(
        &mut self,
        mesh: &mut Mesh,
        left: &[bool],
        unflushed: &mut bool,
    ) -> Result<bool, TransportError> {
        let mut moved = self.take_effects(mesh, left, unflushed)?;
        // Taken out while it is composed and sent: this rank may be the one that hears it.
        let mut message = std::mem::take(&mut self.message);
        while self.next_piece(self.me, &mut message) {
            self.hear_from_self(&message);
            moved = true;
        }
        for peer in mesh.peers_mut() {
            if left[peer.rank.index()] || !self.state.has_pieces(peer.rank) {
                continue;
            }
            *unflushed = true;
            for _ in 0..PIECES_PER_TURN {
                if peer.control.flush()? != Progress::Done || !self.next_piece(peer.rank, &mut message) {
                    break;
                }
                peer.control.send(&message)?;
                moved = true;
            }
        }
        self.message = message;
        Ok(moved | self.take_effects(mesh, left, unflushed)?)
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.state.all_received()
    }

    /// Whether everything that this rank has sent was received.
    pub(super) fn all_received(&self) -> bool {
        self.state.all_received()
    }

    /// Whether somebody waits for a send or a receive.
    pub(super) fn has_work(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends everything that is under way.
    pub(super) fn fail_all(&mut self, error: &Error) {
        self.kept.clear();
        for (_, pending) in self.pending.drain() {
            pending.fail(error.clone());
        }
    }

    fn take_effects(&mut self, mesh: &mut Mesh, left: &[bool], unflushed: &mut bool) -> Result<bool, TransportError> {
        let mut moved = false;
        while let Some(effect) = self.state.poll() {
            moved = true;
            match effect {
                TransferEffect::Tell { to, note, with } => {
                    let mut message = std::mem::take(&mut self.message);
                    let bytes = with.map(|id| self.pending[&id].input()).unwrap_or_default();
                    compose(&mut message, note, bytes);
                    if to == self.me {
                        self.hear_from_self(&message);
                    } else if !left[to.index()] {
                        *unflushed = true;
                        mesh.peer_mut(to).control.send(&message)?;
                    }
                    self.message = message;
                }
                TransferEffect::PlaceKept { id, from, number } => {
                    let bytes = self.kept.remove(&(from, number)).expect("invariant: eager bytes are kept");
                    self.place(id, 0, &bytes);
                }
                TransferEffect::DropKept { from, number } => drop(self.kept.remove(&(from, number))),
                TransferEffect::Done { id, peer } => {
                    let Pending { promise, input, .. } = self.take(id);
                    promise.fulfil(Ok(Outcome { input, source: Some(peer), ..Outcome::default() }));
                }
                TransferEffect::Refused { id, reason } => {
                    let pending = self.take(id);
                    let name = pending.name.clone();
                    pending.fail(Error::Refused { name, explanation: reason });
                }
            }
        }
        Ok(moved)
    }

    /// Makes the next piece for a rank a control message, if there is one.
    fn next_piece(&mut self, to: Rank, message: &mut Vec<u8>) -> bool {
        let Some(piece) = self.state.next_piece(to) else { return false };
        let bytes = self.pending[&piece.id].input();
        compose(message, piece.note, &bytes[piece.span.start as usize..piece.span.end as usize]);
        true
    }

    fn hear_from_self(&mut self, message: &[u8]) {
        self.hear(self.me, &message[1..]).expect("invariant: this rank tells itself what is true");
    }

    fn place(&mut self, id: TransferId, offset: usize, bytes: &[u8]) {
        let pending = self.pending.get_mut(&id).expect("invariant: a transfer that is not done is pending");
        pending.target()[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn take(&mut self, id: TransferId) -> Pending {
        self.pending.remove(&id).expect("invariant: a transfer ends once")
    }
}

fn compose(message: &mut Vec<u8>, note: Note, bytes: &[u8]) {
    message.clear();
    message.push(SAYS_TRANSFER);
    note.encode(message);
    message.extend_from_slice(bytes);
}
