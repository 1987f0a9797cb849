//! Channels over simulated streams: the production ones, or plain ones for speed.
//!
//! A plain channel has the same shape as a sealed one (three handshake messages and frames with a length) and no
//! cryptography, which takes most of the time of a run with sealed ones.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::sync::LazyLock;

use farandole_cluster::channel::{ChannelFault, ChannelPurpose, Flushed, Polled, Received, Session};
use farandole_cluster::membership::MemberId;
use farandole_cluster::membership::simulated::{MemberChannel, MemberMedium};
use farandole_transport::Key;

use super::kernel::{Stream, Watch};

/// The key of all simulated jobs.
pub(crate) static KEY: LazyLock<Key> = LazyLock::new(|| "5e".repeat(32).parse().expect("64 digits are a key"));

/// Which channels a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedKind {
    Sealed,
    Plain,
}

/// A channel of either kind.
#[derive(Debug)]
pub(crate) enum SimulatedChannel {
    Sealed(Box<Polled<Stream>>),
    Plain(PlainChannel),
}

impl SimulatedChannel {
    pub(crate) fn dial(stream: Stream, kind: SimulatedKind, me: MemberId) -> SimulatedChannel {
        match kind {
            SimulatedKind::Sealed => {
                let session = Session::initiate(&KEY, ChannelPurpose::Membership, me.0 as u32).unwrap();
                SimulatedChannel::Sealed(Box::new(Polled::over(stream, session)))
            }
            SimulatedKind::Plain => SimulatedChannel::Plain(PlainChannel::new(stream, Shake::Calling)),
        }
    }

    pub(crate) fn accept(stream: Stream, kind: SimulatedKind) -> SimulatedChannel {
        match kind {
            SimulatedKind::Sealed => {
                let session = Session::respond(&KEY, ChannelPurpose::Membership);
                SimulatedChannel::Sealed(Box::new(Polled::over(stream, session)))
            }
            SimulatedKind::Plain => SimulatedChannel::Plain(PlainChannel::new(stream, Shake::Listening)),
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        match self {
            SimulatedChannel::Sealed(channel) => channel.stream(),
            SimulatedChannel::Plain(channel) => &channel.stream,
        }
    }
}

impl MemberChannel for SimulatedChannel {
    type Watch = Watch;

    fn into_watch(self) -> Option<Watch> {
        self.stream().watch()
    }

    fn medium(&self) -> MemberMedium {
        self.stream().medium()
    }

    fn is_established(&self) -> bool {
        match self {
            SimulatedChannel::Sealed(channel) => channel.is_established(),
            SimulatedChannel::Plain(channel) => channel.shake == Shake::Done,
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        match self {
            SimulatedChannel::Sealed(channel) => channel.receive(),
            SimulatedChannel::Plain(channel) => channel.receive(),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            SimulatedChannel::Sealed(channel) => channel.finish(),
            SimulatedChannel::Plain(channel) => channel.finish(),
        }
    }

    fn is_mid_message(&self) -> bool {
        match self {
            SimulatedChannel::Sealed(channel) => channel.is_mid_message(),
            SimulatedChannel::Plain(channel) => channel.is_mid_message,
        }
    }

    fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            SimulatedChannel::Sealed(channel) => channel.queue(message),
            SimulatedChannel::Plain(channel) => {
                channel.queue(message);
                Ok(())
            }
        }
    }

    fn wants_write(&self) -> bool {
        match self {
            SimulatedChannel::Sealed(channel) => channel.wants_write(),
            SimulatedChannel::Plain(channel) => channel.wants_write(),
        }
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        match self {
            SimulatedChannel::Sealed(channel) => channel.flush_linked(),
            SimulatedChannel::Plain(channel) => channel.flush(),
        }
    }
}

/// How far a plain handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shake {
    Calling,
    Listening,
    Confirming,
    Done,
}

const CALL_BYTES: usize = 64;
const ANSWER_BYTES: usize = 56;
const CONFIRMATION_BYTES: usize = 19;
/// A length, and what takes the place of a seal.
const FRAME_BYTES: usize = 4 + 15;

/// A channel without cryptography.
#[derive(Debug)]
pub(crate) struct PlainChannel {
    stream: Stream,
    shake: Shake,
    incoming: Vec<u8>,
    /// Handshake units and messages that wait, of which the first may be sent in part.
    outgoing: VecDeque<Vec<u8>>,
    is_mid_message: bool,
    early: VecDeque<Vec<u8>>,
}

impl PlainChannel {
    fn new(stream: Stream, shake: Shake) -> PlainChannel {
        let outgoing = (shake == Shake::Calling).then(|| vec![1; CALL_BYTES]).into_iter().collect();
        PlainChannel { stream, shake, incoming: Vec::new(), outgoing, is_mid_message: false, early: VecDeque::new() }
    }

    fn queue(&mut self, message: &[u8]) {
        let target = if self.shake == Shake::Done { &mut self.outgoing } else { &mut self.early };
        let mut frame = (message.len() as u32).to_le_bytes().to_vec();
        frame.extend([0; FRAME_BYTES - 4]);
        frame.extend_from_slice(message);
        target.push_back(frame);
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        (self.incoming.len() >= bytes).then(|| self.incoming.drain(..bytes).collect())
    }

    fn advance(&mut self) -> Option<Vec<u8>> {
        loop {
            let (wanted, answer) = match self.shake {
                Shake::Calling => (ANSWER_BYTES, CONFIRMATION_BYTES),
                Shake::Listening => (CALL_BYTES, ANSWER_BYTES),
                Shake::Confirming => (CONFIRMATION_BYTES, 0),
                Shake::Done => {
                    let length = u32::from_le_bytes(self.incoming.get(..4)?.try_into().ok()?) as usize;
                    return self.take(FRAME_BYTES + length).map(|frame| frame[FRAME_BYTES..].to_vec());
                }
            };
            self.take(wanted)?;
            self.outgoing.extend((answer > 0).then(|| vec![2; answer]));
            self.shake = if self.shake == Shake::Listening { Shake::Confirming } else { Shake::Done };
            if self.shake == Shake::Done {
                self.outgoing.append(&mut self.early);
            }
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.advance() {
                return Ok(Received::Message(message));
            }
            if self.shake != Shake::Done {
                let _ = self.flush();
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return self.finish().map(|()| Received::Closed),
                Ok(count) => self.incoming.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::NothingYet),
                Err(error) => return Err(error),
            }
        }
    }

    fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn finish(&mut self) -> io::Result<()> {
        let is_clean = self.incoming.is_empty() && self.shake == Shake::Done;
        if is_clean { Ok(()) } else { Err(ChannelFault::Truncated.into()) }
    }

    /// As the production channel does: the last byte of a message waits for the next message.
    fn flush(&mut self) -> io::Result<Flushed> {
        while let Some(first) = self.outgoing.front() {
            let mut bytes = first.clone();
            match self.outgoing.get(1) {
                Some(_) if bytes.len() > 1 => drop(bytes.pop()),
                Some(second) => {
                    let rest = if self.outgoing.len() > 2 { second.len() - 1 } else { second.len() };
                    bytes.extend_from_slice(&second[..rest]);
                }
                None => {}
            }
            match self.stream.write(&bytes) {
                Ok(count) => self.sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Partly),
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed::All)
    }

    fn sent(&mut self, mut count: usize) {
        while let Some(first) = self.outgoing.front_mut().filter(|_| count > 0) {
            let taken = count.min(first.len());
            first.drain(..taken);
            count -= taken;
            self.is_mid_message = !first.is_empty();
            if first.is_empty() {
                self.outgoing.pop_front();
            }
        }
    }
}
