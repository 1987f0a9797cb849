//! Frames over several connections.
//!
//! A link has `connections` connections to its peer. A payload of at least [`FrameOptions::stripe_from_bytes`] is cut
//! into as many stripes, one for each, so that several congestion windows and several cores of the kernel work on it; a
//! shorter one travels over the first connection alone. Both sides cut by the same pure function of the length.
//!
//! Invariant: on every connection, in each direction, whole stripes follow each other. A frame that its sender
//! gives up is filled up with zeros and marked void before the next one begins; one that its receiver gives up
//! is read to its end and dropped. So an abandoned operation costs time, never the link.

use std::io::{self, ErrorKind};

use farandole_plan::Rank;

use super::incoming::{Incoming, Target, Trouble, Wanted};
use super::outgoing::{Damage, Outgoing};
use super::{Connection, peer_error};
use crate::error::{Error, Result};
use crate::frame::{Checksum, Cut, Header};
use crate::link::{Link, Progress, RecvCursor, SendCursor, Tag};

/// How frames are put on connections. Must be the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOptions {
    /// Payloads of at least this many bytes travel over all connections of the link.
    pub stripe_from_bytes: u64,
    /// Whether stripes carry a checksum. Each side decides for what it sends.
    pub checksum: Checksum,
}

impl Default for FrameOptions {
    fn default() -> FrameOptions {
        FrameOptions { stripe_from_bytes: STRIPE_FROM_BYTES, checksum: Checksum::Off }
    }
}

/// Below this a second connection costs more (system calls, a second wake-up) than it brings.
const STRIPE_FROM_BYTES: u64 = 256 << 10;

/// A link over connections that carry bytes in order.
#[derive(Debug)]
pub struct StreamLink<C> {
    peer: Rank,
    shape: FrameOptions,
    lanes: Vec<Lane<C>>,
    sending: Frame,
    receiving: Frame,
    damage: Damage,
    /// Set by the first error: the stream may be out of step, so nothing more is read or written.
    failure: Option<String>,
}

/// A connection and what is under way on it.
#[derive(Debug)]
struct Lane<C> {
    connection: C,
    /// A stripe of an operation that was given up when part of it had left: its rest goes out void, before anything
    /// else.
    abandoned: Option<Outgoing>,
    /// The stripe of the present frame.
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    /// Number of the frame whose stripe came completely over this connection.
    received: u64,
}

/// The frame that is under way in one direction, or was the last one.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Counts frames from one; cursors refer to frames by it.
    number: u64,
    operation: u64,
    finished: Finished,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Finished {
    #[default]
    Yes,
    No,
}

impl Frame {
    /// The cursor belongs to this frame, or to a new one, which begins. Says whether one begins.
    fn enter(&mut self, state: &mut u64, operation: u64) -> bool {
        if *state != 0 {
            assert!(
                *state == self.number && self.finished == Finished::No,
                "cursors of given-up frames are not reused"
            );
            return false;
        }
        assert!(
            self.finished == Finished::Yes || operation > self.operation,
            "a frame is finished before the next one of its operation begins"
        );
        *self = Frame { number: self.number + 1, operation, finished: Finished::No };
        *state = self.number;
        true
    }
}

impl<C: Connection> StreamLink<C> {
    /// A link to `peer` over these connections, in this order.
    pub fn new(peer: Rank, connections: Vec<C>, shape: FrameOptions) -> StreamLink<C> {
        assert!((1..=u16::MAX as usize).contains(&connections.len()), "a link has at least one connection");
        let lane = |connection| Lane {
            connection,
            abandoned: None,
            outgoing: None,
            incoming: Incoming::default(),
            received: 0,
        };
        StreamLink {
            peer,
            shape,
            lanes: connections.into_iter().map(lane).collect(),
            sending: Frame::default(),
            receiving: Frame::default(),
            damage: Damage::None,
            failure: None,
        }
    }

    fn cut(&self) -> Cut {
        Cut { connections: self.lanes.len() as u16, stripe_from_bytes: self.shape.stripe_from_bytes }
    }

    fn still_works(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(how) => Err(Error::PeerGone { peer: self.peer, how: format!("the link to it failed before: {how}") }),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.failure = Some(error.to_string());
        error
    }

    /// Puts the stripes of a new frame on their lanes.
    fn begin(&mut self, tag: Tag, payload_bytes: u64) {
        let stripes = self.cut().stripes(payload_bytes);
        let damage = std::mem::take(&mut self.damage);
        for lane in &mut self.lanes {
            if let Some(given_up) = lane.outgoing.take().filter(Outgoing::has_begun) {
                lane.abandoned = Some(given_up);
            }
        }
        for (stripe, lane) in (0..stripes).zip(&mut self.lanes) {
            let header = Header { tag, payload_bytes, stripe, stripes, checksum: self.shape.checksum };
            lane.outgoing = Some(Outgoing::new(&header, damage));
        }
    }

    fn push(&mut self, tag: Tag, payload: &[u8], cursor: &mut SendCursor) -> Result<Progress> {
        if self.sending.enter(&mut cursor.state, tag.operation) {
            self.begin(tag, payload.len() as u64);
        }
        let (mut moved, mut busy) = (false, false);
        for lane in &mut self.lanes {
            if lane.is_idle() {
                continue;
            }
            let (mut taken, peer) = (0, self.peer);
            let left = lane.push(payload, &mut taken);
            cursor.taken += taken;
            moved |= taken > 0;
            match left {
                Ok(()) => moved = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => busy |= lane.outgoing.is_some(),
                Err(error) => return Err(self.fail(peer_error(peer, error))),
            }
        }
        if !busy {
            self.sending.finished = Finished::Yes;
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Pending })
    }

    fn pull(&mut self, tag: Tag, len: u64, cursor: &mut RecvCursor, mut target: Target<'_>) -> Result<Progress> {
        self.receiving.enter(&mut cursor.state, tag.operation);
        let cut = self.cut();
        let stripes = cut.stripes(len);
        let (mut moved, mut finished) = (false, 0);
        for lane in 0..stripes {
            let wanted = Wanted { tag, payload_bytes: len, lane, cut };
            let Lane { connection, incoming, received, .. } = &mut self.lanes[usize::from(lane)];
            if *received == self.receiving.number {
                finished += 1;
                continue;
            }
            let before = incoming.total_bytes;
            match incoming.pull(connection, wanted, &mut target, &mut cursor.delivered) {
                Ok(()) => {
                    *received = self.receiving.number;
                    finished += 1;
                    moved = true;
                }
                Err(Trouble::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    moved |= incoming.total_bytes != before;
                }
                Err(trouble) => {
                    let error = self.trouble(trouble);
                    return Err(self.fail(error));
                }
            }
        }
        if finished == stripes {
            self.receiving.finished = Finished::Yes;
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Pending })
    }

    fn trouble(&self, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Io(error) => peer_error(self.peer, error),
            Trouble::Garbled(what) => Error::Garbled { peer: self.peer, what },
            Trouble::Corrupt(what) => Error::Corrupt { peer: self.peer, what },
            Trouble::Disagree { operation, ours, theirs } => {
                Error::Disagree { peer: self.peer, operation, ours, theirs }
            }
        }
    }
}

impl<C: Connection> Lane<C> {
    fn is_idle(&self) -> bool {
        self.abandoned.is_none() && self.outgoing.is_none()
    }

    /// Hands on what the connection takes now, first the rest of what was given up. Counts the bytes of the payload
    /// that went into `taken`.
    fn push(&mut self, payload: &[u8], taken: &mut u64) -> io::Result<()> {
        if let Some(abandoned) = &mut self.abandoned {
            abandoned.push(&mut self.connection, None)?;
            self.abandoned = None;
        }
        if let Some(outgoing) = &mut self.outgoing {
            let before = outgoing.payload_taken();
            let left = outgoing.push(&mut self.connection, Some(payload));
            *taken += outgoing.payload_taken() - before;
            left?;
            self.outgoing = None;
        }
        Ok(())
    }
}

impl<C: Connection> Link for StreamLink<C> {
    fn send(&mut self, tag: Tag, payload: &[u8], cursor: &mut SendCursor) -> Result<Progress> {
        self.still_works()?;
        self.push(tag, payload, cursor)
    }

    fn recv(
        &mut self,
        tag: Tag,
        len: u64,
        cursor: &mut RecvCursor,
        sink: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Progress> {
        self.still_works()?;
        self.pull(tag, len, cursor, Target::Sink(sink))
    }

    fn recv_into(&mut self, tag: Tag, target: &mut [u8], cursor: &mut RecvCursor) -> Result<Progress> {
        self.still_works()?;
        let len = target.len() as u64;
        self.pull(tag, len, cursor, Target::Memory(target))
    }

    fn damage_next(&mut self) -> bool {
        self.damage = Damage::Wanted;
        true
    }
}
