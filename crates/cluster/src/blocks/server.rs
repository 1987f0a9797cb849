//! The side that answers: a thread that accepts connections, and one for each of them.
//!
//! A question is answered by a thread of its own, because fetching a block may take long; meanwhile the connection's
//! thread says that it is being fetched. An eventfd tells all threads that the exchange is over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_transport::Countdown;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::wire::{Hello, PIECE_BYTES, Word};
use super::{Answer, BlockPeer, HANDSHAKE_PATIENCE, MOST_QUESTION_BYTES, SILENCE, WAIT_WORD_EVERY};
use crate::channel::{Channel, ChannelPurpose};
use crate::launch::Socket;
use crate::peer_listener::PeerListener;
use crate::strangers::{MOST_STRANGERS, Stranger, Strangers};

/// The most connections at a time, those of strangers included; each is a thread. Ranks that find no room read from
/// storage.
const MOST_CONNECTIONS: usize = 256 + MOST_STRANGERS;

/// A connection without a question for so long is closed. Longer than the other side keeps it (`client::IDLE`).
const IDLE: Duration = Duration::from_secs(60);

/// A rank that takes nothing of a piece for so long is lost or stopped.
const SEND_PATIENCE: Duration = Duration::from_secs(10);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Threads of connections read, seal and send; the largest thing on their stacks is a read buffer.
const STACK_BYTES: usize = 256 << 10;

/// See the module's text. Dropping it ends the threads: those that wait at once, those that answer when they are done.
#[derive(Debug)]
pub(super) struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads have in common.
#[derive(Clone)]
struct Desk {
    own: BlockPeer,
    answer: Answer,
    stop: Arc<OwnedFd>,
    /// One clone for each connection, besides the one of the server's thread.
    connections: Arc<()>,
    strangers: Strangers,
}

impl Server {
    pub(super) fn start(own: &BlockPeer, listeners: Vec<PeerListener>, answer: Answer) -> io::Result<Server> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        listeners.iter().try_for_each(PeerListener::listen)?;
        let desk = Desk {
            own: own.clone(),
            answer,
            stop: Arc::clone(&stop),
            connections: Arc::new(()),
            strangers: Strangers::default(),
        };
        let thread = std::thread::Builder::new().name("farandole-blocks".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || desk.accept(&listeners))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is never read, so that it stays readable for every thread. Adding one to it cannot fail.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic has been told already.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn accept(&self, listeners: &[PeerListener]) {
        loop {
            let mut waiting: Vec<_> = listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
            waiting.push(PollFd::new(&*self.stop, PollFlags::IN));
            if poll(&mut waiting, None).is_err() {
                continue;
            }
            let is_ready: Vec<bool> = waiting.iter().map(|one| !one.revents().is_empty()).collect();
            if is_ready.last() == Some(&true) {
                return;
            }
            for (listener, _) in listeners.iter().zip(is_ready).filter(|(_, is_ready)| *is_ready) {
                match listener.accept() {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    // The one clone besides those of connections is ours.
                    Ok(_) if Arc::strong_count(&self.connections) > MOST_CONNECTIONS => {}
                    Ok(socket) => self.start_connection(socket),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        }
    }

    fn start_connection(&self, socket: Socket) {
        let desk = self.clone();
        let Ok(stranger) = self.strangers.enter(&socket) else { return };
        let serve = move || {
            if let Err(error) = desk.serve(socket, stranger) {
                log::debug!("a rank that asked for blocks is gone: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("block-server".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(serve) {
            log::debug!("no thread for a rank that asks for blocks: {error}");
        }
    }

    fn serve(&self, socket: Socket, stranger: Stranger) -> io::Result<()> {
        let deadline = Countdown::new(HANDSHAKE_PATIENCE);
        let channel = Channel::accept(socket, &self.own.key, ChannelPurpose::Blocks, &deadline)?;
        drop(stranger);
        let mut channel = channel.with_most_bytes(PIECE_BYTES);
        let hello = channel.receive(&deadline)?.as_deref().and_then(Hello::decode);
        if hello.is_none_or(|hello| hello.job != self.own.job) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it belongs to another job"));
        }
        while let Some(question) = self.next_question(&mut channel)? {
            if question.len() > MOST_QUESTION_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it asks a question that is too long"));
            }
            self.answer(&mut channel, question)?;
        }
        Ok(())
    }

    /// The next question; none if the other side or the exchange is at its end, or nothing comes for long.
    fn next_question(&self, channel: &mut Channel<Socket>) -> io::Result<Option<Vec<u8>>> {
        if let Some(question) = channel.take_ready() {
            return Ok(Some(question));
        }
        match self.wait_for_bytes(channel.stream())? {
            true => channel.receive(&Countdown::new(SILENCE)),
            false => Ok(None),
        }
    }

    /// Whether something comes; not if the exchange is over, or nothing comes for long.
    fn wait_for_bytes(&self, socket: &Socket) -> io::Result<bool> {
        let until = Instant::now() + IDLE;
        loop {
            let mut waiting =
                [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut waiting, Some(&limit)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(waiting[1].revents().is_empty() && !waiting[0].revents().is_empty()),
            }
        }
    }

    fn answer(&self, channel: &mut Channel<Socket>, question: Vec<u8>) -> io::Result<()> {
        let (done, answered) = sync_channel(1);
        let answer = Arc::clone(&self.answer);
        let fetch = move || {
            let began = Instant::now();
            let block = answer(&question);
            // Nobody listens any more: the rank that asked is gone.
            let _ = done.send((block, began.elapsed()));
        };
        std::thread::Builder::new().name("block-fetch".to_owned()).spawn(fetch)?;
        let (block, spent) = loop {
            match answered.recv_timeout(WAIT_WORD_EVERY) {
                Ok((Some(block), spent)) => break (block, spent),
                Err(RecvTimeoutError::Timeout) => {
                    channel.send(&Word::Wait.encode(), &Countdown::new(SEND_PATIENCE))?;
                }
                // Disconnected: the answer has panicked, which has been told already.
                Ok((None, _)) | Err(RecvTimeoutError::Disconnected) => {
                    return channel.send(&Word::NotHere.encode(), &Countdown::new(SEND_PATIENCE));
                }
            }
        };
        let word = Word::Block { bytes: block.len() as u64, spent_us: spent.as_micros() as u64 };
        channel.send(&word.encode(), &Countdown::new(SEND_PATIENCE))?;
        let mut pieces = block.chunks(PIECE_BYTES);
        pieces.try_for_each(|piece| channel.send(piece, &Countdown::new(SEND_PATIENCE)))
    }
}
