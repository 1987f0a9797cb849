//! Control messages over one connection.
//!
//! ```text
//! u32 length of the body, little-endian · u8 kind (0 message, 1 abort) · body
//! ```
//!
//! An abort is the last word of a peer that gives up; its body is `u32` the blamed rank · `u8` class · cause. It is not
//! handed on as a message: from then on [`Control::recv`] fails with it. A message that was sent before it is still
//! delivered first.

use std::io::ErrorKind;

use farandole_plan::{ErrorClass, Rank};

use super::{Connection, closed, peer_error};
use crate::error::{Error, Result};
use crate::link::{Control, Progress};

/// Longer messages are refused on both sides. The largest honest message is a list of agreed requests: some ten
/// thousand names of a hundred bytes, for a thousand ranks' worth of dimensions in the worst case.
pub const MESSAGE_LIMIT_BYTES: usize = 64 << 20;

const PREFIX_BYTES: usize = 5;
const KIND_MESSAGE: u8 = 0;
const KIND_ABORT: u8 = 1;

/// Stands in an abort where no rank is blamed.
const NOBODY: u32 = u32::MAX;

/// Causes longer than this are cut: they are for people.
const CAUSE_LIMIT_BYTES: usize = 64 << 10;

/// So much is read at a time.
const READ_BYTES: usize = 16 << 10;

/// A control line over one connection.
#[derive(Debug)]
pub struct StreamControl<C> {
    peer: Rank,
    connection: C,
    outbox: Vec<u8>,
    /// Bytes of the outbox that have left.
    left: usize,
    inbox: Vec<u8>,
    /// Bytes of the inbox that have been handed on.
    used: usize,
    /// Why no further message will come.
    end: Option<End>,
    /// Whether the connection is closed, which may be some time after the last message.
    is_closed: bool,
}

#[derive(Clone, Debug)]
enum End {
    Gone(String),
    Aborted { blamed: Option<Rank>, class: ErrorClass, cause: String },
    Garbled(String),
}

impl<C: Connection> StreamControl<C> {
    /// A control line to `peer`.
    pub fn new(peer: Rank, connection: C) -> StreamControl<C> {
        StreamControl {
            peer,
            connection,
            outbox: Vec::new(),
            left: 0,
            inbox: Vec::new(),
            used: 0,
            end: None,
            is_closed: false,
        }
    }

    fn queue(&mut self, kind: u8, body: &[u8]) {
        self.outbox.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.outbox.push(kind);
        self.outbox.extend_from_slice(body);
    }

    /// Takes the next whole message out of the inbox; notes an end if it is one.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        let waiting = &self.inbox[self.used..];
        let prefix: [u8; PREFIX_BYTES] = waiting.get(..PREFIX_BYTES)?.try_into().expect("sliced to its length");
        let (length, kind) = (u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize, prefix[4]);
        if length > MESSAGE_LIMIT_BYTES || kind > KIND_ABORT {
            self.end = Some(End::Garbled(format!("a control message of kind {kind} and {length} bytes")));
            return None;
        }
        let body = waiting[PREFIX_BYTES..].get(..length)?;
        if kind == KIND_ABORT {
            self.end = Some(last_words(body));
            return None;
        }
        let message = body.to_vec();
        self.used += PREFIX_BYTES + length;
        if self.used == self.inbox.len() {
            self.inbox.clear();
            self.used = 0;
        }
        Some(message)
    }

    /// Reads once. Says whether anything came.
    fn fill(&mut self) -> Result<bool> {
        if self.used > READ_BYTES {
            self.inbox.drain(..self.used);
            self.used = 0;
        }
        let filled = self.inbox.len();
        self.inbox.resize(filled + READ_BYTES, 0);
        let read = self.connection.read(&mut self.inbox[filled..]);
        self.inbox.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.fall_silent(closed()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => self.fall_silent(error),
        }
    }

    fn fall_silent(&mut self, error: std::io::Error) -> Result<bool> {
        let error = peer_error(self.peer, error);
        if let Error::PeerGone { how, .. } = &error {
            self.end.get_or_insert(End::Gone(how.clone()));
            self.is_closed = true;
        }
        Err(error)
    }

    fn end_error(&self) -> Option<Error> {
        let peer = self.peer;
        self.end.clone().map(|end| match end {
            End::Gone(how) => Error::PeerGone { peer, how },
            End::Aborted { blamed, class, cause } => Error::PeerAborted { peer, blamed, class, cause },
            End::Garbled(what) => Error::Garbled { peer, what },
        })
    }
}

/// What an abort says: the rank that is blamed, in four bytes, the class of the error, in one, and the cause.
fn last_words(body: &[u8]) -> End {
    let Some((&[b0, b1, b2, b3, class], cause)) = body.split_first_chunk::<5>() else {
        return End::Garbled(format!("an abort of {} bytes", body.len()));
    };
    let Some(class) = ErrorClass::from_byte(class) else {
        return End::Garbled(format!("an abort of class {class}"));
    };
    let blamed = Some(u32::from_le_bytes([b0, b1, b2, b3])).filter(|&rank| rank != NOBODY).map(Rank);
    End::Aborted { blamed, class, cause: String::from_utf8_lossy(cause).into_owned() }
}

impl<C: Connection> Control for StreamControl<C> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_LIMIT_BYTES {
            let doing = format!("sending a control message of {} bytes to rank {}", message.len(), self.peer);
            return Err(Error::local(doing, std::io::Error::from(ErrorKind::InvalidInput)));
        }
        self.queue(KIND_MESSAGE, message);
        self.flush().map(|_| ())
    }

    fn send_abort(&mut self, blamed: Option<Rank>, class: ErrorClass, cause: &str) -> Result<()> {
        let mut end = cause.len().min(CAUSE_LIMIT_BYTES);
        while !cause.is_char_boundary(end) {
            end -= 1;
        }
        let mut body = blamed.map_or(NOBODY, |rank| rank.0).to_le_bytes().to_vec();
        body.push(class.to_byte());
        body.extend_from_slice(&cause.as_bytes()[..end]);
        self.queue(KIND_ABORT, &body);
        self.flush().map(|_| ())
    }

    fn flush(&mut self) -> Result<Progress> {
        let before = self.left;
        while self.left < self.outbox.len() {
            match self.connection.write(&self.outbox[self.left..]) {
                Ok(count) => self.left += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(if self.left > before { Progress::Moved } else { Progress::Pending });
                }
                Err(error) => return Err(peer_error(self.peer, error)),
            }
        }
        self.outbox.clear();
        self.left = 0;
        match self.connection.flush() {
            Ok(()) => Ok(Progress::Done),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Progress::Pending),
            Err(error) => Err(peer_error(self.peer, error)),
        }
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.next_message() {
                return Ok(Some(message));
            }
            if let Some(error) = self.end_error() {
                return Err(error);
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn has_closed(&mut self) -> bool {
        while !self.is_closed && matches!(self.fill(), Ok(true)) {}
        self.is_closed
    }
}
