//! A channel over a blocking stream, with a deadline for each call.
//!
//! **Invariant:** no call takes longer than its deadline, also when the other side sends a byte now and then: the time
//! that is left is set anew before each read and write. Only time in which this process was awake counts
//! ([`Countdown`]).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farandole_transport::{Countdown, Key};

use super::polled::Polled;
use super::session::Session;
use super::{ChannelFault, ChannelPurpose};

/// How much is read at once: more than most messages have.
const READ_BYTES: usize = 8 << 10;

/// A stream whose reads and writes can be limited in time.
pub trait Patient: Read + Write {
    /// Limits each read and write from now on.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Patient for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Patient for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

/// An established channel over a blocking stream.
#[derive(Debug)]
pub struct Channel<S> {
    stream: S,
    session: Session,
    /// What was read last.
    read: Vec<u8>,
}

impl<S: Patient> Channel<S> {
    /// Shakes hands as the side that has connected.
    pub fn connect(
        stream: S,
        key: &Key,
        purpose: ChannelPurpose,
        caller: u32,
        deadline: &Countdown,
    ) -> io::Result<Channel<S>> {
        Channel::shake_hands(stream, Session::initiate(key, purpose, caller)?, deadline)
    }

    /// Shakes hands as the side that was connected to.
    pub fn accept(stream: S, key: &Key, purpose: ChannelPurpose, deadline: &Countdown) -> io::Result<Channel<S>> {
        Channel::shake_hands(stream, Session::respond(key, purpose), deadline)
    }

    fn shake_hands(stream: S, session: Session, deadline: &Countdown) -> io::Result<Channel<S>> {
        let mut channel = Channel { stream, session, read: vec![0; READ_BYTES] };
        channel.write_outgoing(deadline)?;
        while !channel.session.is_established() {
            channel.read_some(deadline)?;
        }
        Ok(channel)
    }

    /// Who the initiator says it is.
    pub fn caller(&self) -> u32 {
        self.session.caller().unwrap_or_default()
    }

    /// Changes the length of the longest message.
    pub fn with_most_bytes(mut self, most_bytes: usize) -> Channel<S> {
        self.session = self.session.with_most_bytes(most_bytes);
        self
    }

    /// Changes how much is read at once, for messages that are long.
    pub fn with_read_bytes(mut self, read_bytes: usize) -> Channel<S> {
        self.read = vec![0; read_bytes.max(1)];
        self
    }

    /// Sends a message.
    pub fn send(&mut self, message: &[u8], deadline: &Countdown) -> io::Result<()> {
        self.session.send(message)?;
        self.write_outgoing(deadline)
    }

    /// The next message; `None` when the other side has closed the channel between two messages.
    pub fn receive(&mut self, deadline: &Countdown) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.session.next_message() {
                return Ok(Some(message));
            }
            if self.read_some(deadline)? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next message if it has come already, with what was read before.
    pub fn take_ready(&mut self) -> Option<Vec<u8>> {
        self.session.next_message()
    }

    /// The stream under the channel.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The same channel for a poll loop; its stream becomes non-blocking.
    pub fn into_polled(self) -> io::Result<Polled<S>>
    where
        S: AsFd,
    {
        Polled::new(self.stream, self.session)
    }

    fn read_some(&mut self, deadline: &Countdown) -> io::Result<usize> {
        let count = loop {
            self.stream.set_patience(step(deadline)?)?;
            match self.stream.read(&mut self.read) {
                Ok(count) => break count,
                Err(error) if is_to_be_tried_again(&error) => {}
                Err(error) => return Err(error),
            }
        };
        let fed = if count == 0 { self.session.feed_end() } else { self.session.feed(&self.read[..count]) };
        // What a handshake has to say is said also, and in particular, when it has failed.
        let written = self.write_outgoing(deadline);
        fed?;
        written?;
        Ok(count)
    }

    fn write_outgoing(&mut self, deadline: &Countdown) -> io::Result<()> {
        while !self.session.outgoing().is_empty() {
            self.stream.set_patience(step(deadline)?)?;
            match self.stream.write(self.session.outgoing()) {
                Ok(0) => return Err(ChannelFault::Truncated.into()),
                Ok(count) => self.session.sent(count),
                Err(error) if is_to_be_tried_again(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn step(deadline: &Countdown) -> io::Result<Duration> {
    let step = deadline.step();
    if step.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(step) }
}

/// Whether only a step of the countdown is over. Linux calls the end of a socket's time limit `WouldBlock`.
fn is_to_be_tried_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
