//! A channel over a non-blocking stream, for a loop that looks after many things.
//!
//! The loop polls [`Polled::fd`] for reading, and for writing while [`Polled::wants_write`]; then it calls
//! [`Polled::receive`] until that has nothing more, and [`Polled::flush`]. The handshake happens inside these calls.
//! How long anything may take is the loop's business; nothing here knows time.
//!
//! **Invariant:** bytes are read only when no complete message waits to be taken, so a peer that talks faster than it
//! is listened to fills its own socket and not this side's memory.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use farandole_transport::Key;

use super::session::Session;
use super::{ChannelFault, ChannelPurpose};

/// How much is read at once: more than most messages, and little enough for a small stack.
const READ_BYTES: usize = 8 << 10;

/// What [`Polled::receive`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Vec<u8>),
    /// None so far.
    NothingYet,
    /// The other side has closed the channel, between two messages; there will be none.
    Closed,
}

/// How far [`Polled::flush`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything is on its way.
    All,
    /// The stream takes no more for now.
    Partly,
}

/// A channel over a non-blocking stream.
#[derive(Debug)]
pub struct Polled<S> {
    stream: S,
    session: Session,
}

impl<S: Read + Write + AsFd> Polled<S> {
    /// The side that has connected. The handshake begins with the first [`Polled::flush`].
    pub fn connect(stream: S, key: &Key, purpose: ChannelPurpose, caller: u32) -> io::Result<Polled<S>> {
        Polled::new(stream, Session::initiate(key, purpose, caller)?)
    }

    /// The side that was connected to.
    pub fn accept(stream: S, key: &Key, purpose: ChannelPurpose) -> io::Result<Polled<S>> {
        Polled::new(stream, Session::respond(key, purpose))
    }

    pub(super) fn new(stream: S, session: Session) -> io::Result<Polled<S>> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Polled::over(stream, session))
    }

    /// What to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: Read + Write> Polled<S> {
    /// A channel over a stream that does not block and need not have a descriptor.
    pub fn over(stream: S, session: Session) -> Polled<S> {
        Polled { stream, session }
    }

    /// Changes the length of the longest message.
    pub fn with_most_bytes(mut self, most_bytes: usize) -> Polled<S> {
        self.session = self.session.with_most_bytes(most_bytes);
        self
    }

    /// The stream under the channel.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether the other side has proved that it holds the key.
    pub fn is_established(&self) -> bool {
        self.session.is_established()
    }

    /// Who the initiator says it is; `None` before the channel is established.
    pub fn caller(&self) -> Option<u32> {
        self.session.caller()
    }

    /// The next message, if it is there. An error ends the channel, and what it was is inside it
    /// ([`ChannelFault::of`]).
    pub fn receive(&mut self) -> io::Result<Received> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some(message) = self.session.next_message() {
                return Ok(Received::Message(message));
            }
            let count = match self.stream.read(&mut bytes) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::NothingYet),
                Err(error) => return Err(error),
            };
            if count == 0 {
                self.session.feed_end()?;
                return Ok(Received::Closed);
            }
            let fed = self.session.feed(&bytes[..count]);
            if fed.is_err() || !self.session.is_established() {
                // What a handshake has to say is said at once, and in particular when it has failed.
                let _ = self.flush();
            }
            fed?;
        }
    }

    /// Puts a message into the queue. It travels with the next [`Polled::flush`], or when the channel is established.
    pub fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        Ok(self.session.send(message)?)
    }

    /// Whether there is anything to flush.
    pub fn wants_write(&self) -> bool {
        !self.session.outgoing().is_empty()
    }

    /// Bytes in the queue, sealed: a loop gives up a peer that does not take them.
    pub fn queued_bytes(&self) -> usize {
        self.session.outgoing().len()
    }

    /// Says that no more bytes will arrive. An error, if something was cut off.
    pub fn finish(&mut self) -> io::Result<()> {
        Ok(self.session.feed_end()?)
    }

    /// Whether the stream has taken a part of a message and not its rest.
    pub fn is_mid_message(&self) -> bool {
        self.session.is_mid_message()
    }

    /// Writes what the stream takes.
    pub fn flush(&mut self) -> io::Result<Flushed> {
        self.flush_by(Session::outgoing)
    }

    /// The same for messages whose loss the other side must notice: while a message waits here, the stream holds a
    /// part of the one before it, so the other side does not take the end of the stream for a clean one. See
    /// [`Session::next_write`].
    pub fn flush_linked(&mut self) -> io::Result<Flushed> {
        self.flush_by(Session::next_write)
    }

    fn flush_by(&mut self, next: impl Fn(&Session) -> &[u8]) -> io::Result<Flushed> {
        while self.wants_write() {
            match self.stream.write(next(&self.session)) {
                Ok(0) => return Err(ChannelFault::Truncated.into()),
                Ok(count) => self.session.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Partly),
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed::All)
    }
}
