//! The side that asks: channels to other ranks, kept for the next question.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farandole_transport::Countdown;

use super::wire::{Hello, PIECE_BYTES, Word};
use super::{BlockAnswer, BlockContact, BlockPeer, HANDSHAKE_PATIENCE, SILENCE};
use crate::channel::{Channel, ChannelPurpose};
use crate::launch::Socket;
use crate::peer_listener::dial;

/// Channels that wait for the next question, to all ranks together. Each is a descriptor here and a thread there.
const MOST_IDLE: usize = 64;

/// A channel that was not used for so long is closed; the other side closes it later (`server::IDLE`), so that it is
/// rarely found closed.
const IDLE: Duration = Duration::from_secs(20);

/// Read at once: several frames of a channel.
const READ_BYTES: usize = 256 << 10;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Client {
    own: BlockPeer,
    contacts: Vec<BlockContact>,
    /// The last one was used last. Threads that ask take from it and add to it.
    idle: Mutex<Vec<IdleChannel>>,
}

#[derive(Debug)]
struct IdleChannel {
    rank: usize,
    channel: Channel<Socket>,
    since: Instant,
    /// Whose channel it is. A process that was forked has a copy, which is of no use: both would count frames.
    process: u32,
}

impl Client {
    pub(super) fn new(own: BlockPeer, contacts: Vec<BlockContact>) -> Client {
        Client { own, contacts, idle: Mutex::default() }
    }

    pub(super) fn ask(
        &self,
        rank: usize,
        question: &[u8],
        bytes: usize,
        patience: Duration,
    ) -> io::Result<Option<BlockAnswer>> {
        let deadline = Countdown::new(patience);
        if let Some(channel) = self.take_idle(rank) {
            match self.ask_over(channel, rank, question, bytes, &deadline) {
                // The other side may have closed it meanwhile: that is no reason not to ask.
                Err(error) if !is_silence(&error) => log::debug!("a channel to rank {rank} is gone: {error}"),
                answer => return answer,
            }
        }
        self.ask_over(self.connect(rank)?, rank, question, bytes, &deadline)
    }

    fn connect(&self, rank: usize) -> io::Result<Channel<Socket>> {
        let place = self.contacts.get(rank).map(|contact| contact.place.as_slice()).unwrap_or_default();
        let own_host = self.contacts.get(self.own.rank).map(|contact| contact.host.as_str()).unwrap_or_default();
        let deadline = Countdown::new(HANDSHAKE_PATIENCE);
        let socket = dial(place, own_host, &deadline)?;
        let caller = self.own.rank as u32;
        let channel = Channel::connect(socket, &self.own.key, ChannelPurpose::Blocks, caller, &deadline)?;
        let mut channel = channel.with_most_bytes(PIECE_BYTES).with_read_bytes(READ_BYTES);
        channel.send(&Hello { job: self.own.job }.encode(), &deadline)?;
        Ok(channel)
    }

    /// Asks over a channel, and keeps it if it can be used again.
    fn ask_over(
        &self,
        mut channel: Channel<Socket>,
        rank: usize,
        question: &[u8],
        bytes: usize,
        deadline: &Countdown,
    ) -> io::Result<Option<BlockAnswer>> {
        let began = Instant::now();
        channel.send(question, &Countdown::new(SILENCE))?;
        let answer = loop {
            match Word::decode(&next(&mut channel)?).ok_or_else(nonsense)? {
                Word::Wait if deadline.left().is_zero() => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "it has not got the block in time"));
                }
                Word::Wait => {}
                Word::NotHere => break None,
                Word::Block { bytes: announced, .. } if announced != bytes as u64 => return Err(nonsense()),
                Word::Block { spent_us, .. } => {
                    let block = pieces(&mut channel, bytes)?;
                    let on_its_way = began.elapsed().saturating_sub(Duration::from_micros(spent_us));
                    break Some(BlockAnswer { block, on_its_way });
                }
            }
        };
        self.keep(rank, channel);
        Ok(answer)
    }

    fn take_idle(&self, rank: usize) -> Option<Channel<Socket>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        idle.retain(|one| one.since.elapsed() < IDLE && one.process == process);
        let at = idle.iter().rposition(|one| one.rank == rank)?;
        Some(idle.remove(at).channel)
    }

    fn keep(&self, rank: usize, channel: Channel<Socket>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MOST_IDLE {
            idle.remove(0);
        }
        idle.push(IdleChannel { rank, channel, since: Instant::now(), process: std::process::id() });
    }
}

fn pieces(channel: &mut Channel<Socket>, bytes: usize) -> io::Result<Vec<u8>> {
    let mut block = Vec::new();
    block.try_reserve_exact(bytes).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    while block.len() < bytes {
        let piece = next(channel)?;
        if piece.is_empty() || piece.len() > bytes - block.len() {
            return Err(nonsense());
        }
        block.extend_from_slice(&piece);
    }
    Ok(block)
}

fn next(channel: &mut Channel<Socket>) -> io::Result<Vec<u8>> {
    let message = channel.receive(&Countdown::new(SILENCE))?;
    message.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection"))
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it sent something that is no answer")
}
