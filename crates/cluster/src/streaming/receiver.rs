//! The follower's side of a stream.

use std::io;
use std::time::Duration;

use farandole_transport::Countdown;

use super::wire::{Ask, Content, PIECE_BYTES, Word};
use super::{HANDSHAKE_PATIENCE, StreamPeer};
use crate::channel::{Channel, ChannelPurpose};
use crate::launch::Socket;
use crate::peer_listener::dial;

/// A source says something several times in a second; one that is silent for so long is lost or stopped.
const SILENCE: Duration = Duration::from_secs(5);

/// Read at once: several frames of a channel.
const READ_BYTES: usize = 256 << 10;

/// What has come from a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Streamed {
    /// Nothing is ready to be sent.
    Wait,
    /// The stream is over, for this reason: the process is to join as it is.
    JoinNow(String),
    /// The state has changed without an update: another snapshot follows, and what was sent is out of date.
    Again,
    /// A whole state.
    Snapshot {
        /// Which state this is, as its training says.
        note: Vec<u8>,
        /// The state.
        state: Vec<u8>,
        /// Bytes of updates that wait behind it at the source.
        left_bytes: u64,
    },
    /// What the next state follows from.
    Update {
        /// Which state follows.
        note: Vec<u8>,
        /// The update.
        update: Vec<u8>,
        /// Bytes of updates that wait behind it at the source.
        left_bytes: u64,
    },
}

/// A connection to a source.
#[derive(Debug)]
pub struct StateReceiver {
    channel: Channel<Socket>,
}

impl StateReceiver {
    /// Connects to the source with this contact, and asks for its state.
    pub fn connect(contact: &[u8], own: &StreamPeer) -> io::Result<StateReceiver> {
        let deadline = Countdown::new(HANDSHAKE_PATIENCE);
        let socket = dial(contact, &own.host, &deadline)?;
        // Only the lower half fits the opening of a channel; the first message has the whole number.
        let caller = own.member as u32;
        let channel = Channel::connect(socket, &own.key, ChannelPurpose::State, caller, &deadline)?;
        let mut channel = channel.with_most_bytes(PIECE_BYTES + 1).with_read_bytes(READ_BYTES);
        channel.send(&Ask { job: own.job, member: own.member }.encode(), &Countdown::new(SILENCE))?;
        Ok(StateReceiver { channel })
    }

    /// Waits for what comes next. An error means that the source is lost.
    pub fn receive(&mut self) -> io::Result<Streamed> {
        match self.word()? {
            Word::Announce { content, note, bytes, left_bytes } => Ok(match (self.pieces(bytes)?, content) {
                (Err(instead), _) => instead,
                (Ok(state), Content::Snapshot) => Streamed::Snapshot { note, state, left_bytes },
                (Ok(update), Content::Update) => Streamed::Update { note, update, left_bytes },
            }),
            word => plain(word),
        }
    }

    /// So many bytes, or what the source says instead of the rest of them.
    fn pieces(&mut self, bytes: u64) -> io::Result<Result<Vec<u8>, Streamed>> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let mut all = Vec::new();
        all.try_reserve_exact(bytes).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        while all.len() < bytes {
            let message = self.message()?;
            match Word::piece_of(&message) {
                Some(piece) if piece.len() <= bytes - all.len() => all.extend_from_slice(piece),
                _ => match Word::decode(&message).ok_or_else(nonsense)? {
                    Word::Wait => {}
                    word => return plain(word).map(Err),
                },
            }
        }
        Ok(Ok(all))
    }

    fn word(&mut self) -> io::Result<Word> {
        Word::decode(&self.message()?).ok_or_else(nonsense)
    }

    fn message(&mut self) -> io::Result<Vec<u8>> {
        let message = self.channel.receive(&Countdown::new(SILENCE))?;
        message.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the stream"))
    }
}

/// A word that stands for itself.
fn plain(word: Word) -> io::Result<Streamed> {
    match word {
        Word::Wait => Ok(Streamed::Wait),
        Word::JoinNow { why } => Ok(Streamed::JoinNow(why)),
        Word::Again => Ok(Streamed::Again),
        Word::Announce { .. } | Word::Piece(_) => Err(nonsense()),
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it sent something that is no part of a stream")
}
