//! What the ranks of a group say to each other over their control lines: agreement, stalls, messages between two of
//! them, goodbyes.

use std::time::Duration;

use farandole_plan::message::Message;
use farandole_plan::stall::Word;
use farandole_transport::{Error as TransportError, Progress};

use super::{Group, GroupError, TurnInput};

/// First byte of a control message that carries a message of the agreement.
pub(super) const SAYS_AGREEMENT: u8 = 0;

/// The only byte of a control message that says: this rank leaves in good order.
pub(super) const SAYS_GOODBYE: u8 = 1;

/// First byte of a control message about a stall.
pub(super) const SAYS_STALL: u8 = 2;

/// First byte of a control message about a message between two ranks.
pub(super) const SAYS_TRANSFER: u8 = 3;

impl Group {
    pub(super) fn hear(&mut self, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut about_stalls = Vec::new();
        for peer in self.mesh.peers_mut() {
            while !self.left[peer.rank.index()] {
                let Some(message) = peer.control.recv()? else { break };
                moved = true;
                let garbled = |what: String| TransportError::Garbled { peer: peer.rank, what };
                match message.split_first() {
                    Some((&SAYS_AGREEMENT, body)) => {
                        let message = Message::decode(body).map_err(|bad| garbled(bad.to_string()))?;
                        if let Message::Announce { requests, .. } = &message {
                            self.record.arrived(peer.rank, requests, turn.now);
                        }
                        self.member
                            .receive(peer.rank, message, turn.now)
                            .map_err(|violation| garbled(violation.what))?;
                    }
                    Some((&SAYS_GOODBYE, [])) => self.left[peer.rank.index()] = true,
                    Some((&SAYS_STALL, body)) => {
                        let word = Word::decode(body).map_err(|bad| garbled(bad.to_string()))?;
                        about_stalls.push((peer.rank, word));
                    }
                    Some((&SAYS_TRANSFER, body)) => self.transfers.hear(peer.rank, body).map_err(garbled)?,
                    _ => return Err(garbled("a control message of no known kind".to_owned()).into()),
                }
            }
        }
        for (from, word) in about_stalls {
            self.hear_of_stall(from, word, turn)?;
        }
        Ok(moved)
    }

    pub(super) fn speak(&mut self, now: Duration) -> Result<bool, GroupError> {
        let mut moved = false;
        while let Some((to, message)) = self.member.poll_send(now) {
            self.message.clear();
            self.message.push(SAYS_AGREEMENT);
            message.encode(&mut self.message);
            if !self.left[to.index()] {
                self.mesh.peer_mut(to).control.send(&self.message)?;
                self.unflushed = true;
            }
            moved = true;
        }
        self.flush()?;
        Ok(moved)
    }

    pub(super) fn flush(&mut self) -> Result<(), TransportError> {
        if self.unflushed {
            self.unflushed = false;
            for peer in self.mesh.peers_mut() {
                if !self.left[peer.rank.index()] {
                    self.unflushed |= peer.control.flush()? != Progress::Done;
                }
            }
        }
        Ok(())
    }
}
