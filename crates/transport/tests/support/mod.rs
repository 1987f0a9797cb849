//! What the tests of this folder share: pairs of connections of every make, and drivers with deadlines.

#![allow(dead_code, missing_docs, reason = "each test file uses a part of this")]

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::memory::pipe;
use farandole_transport::stream::{Connection, FrameOptions, Sealed, SessionKeys, Socket, StreamControl, StreamLink};
use farandole_transport::{Control, Link, Progress, RecvCursor, Result, SendCursor, Tag, Waiter};

/// Whether valgrind looks on: large payloads are smaller then, and still pass in many pieces.
pub(crate) fn is_brief() -> bool {
    std::env::var_os("FARANDOLE_MEMCHECK").is_some()
}

/// Nothing in these tests takes longer unless it hangs, not even under valgrind beside others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const ONE: Rank = Rank(0);
pub(crate) const OTHER: Rank = Rank(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// In-process pipes of this capacity.
    Memory(usize),
    Tcp,
    /// TCP with buffers of a few segments. With less, delayed acknowledgements make every test a matter of seconds.
    TightTcp,
    Unix,
}

pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

pub(crate) fn socket_pair(make: Make) -> (Socket, Socket) {
    let (one, other) = match make {
        Make::Unix => {
            let (one, other) = UnixStream::pair().unwrap();
            (Socket::from_unix(one).unwrap(), Socket::from_unix(other).unwrap())
        }
        _ => {
            let (one, other) = tcp_pair();
            (Socket::from_tcp(one).unwrap(), Socket::from_tcp(other).unwrap())
        }
    };
    if make == Make::TightTcp {
        one.set_buffer_bytes(32 << 10).unwrap();
        other.set_buffer_bytes(32 << 10).unwrap();
    }
    (one, other)
}

pub(crate) fn session_keys() -> (SessionKeys, SessionKeys) {
    let (forth, back) = ([3; 32], [5; 32]);
    (SessionKeys { sending: forth, receiving: back }, SessionKeys { sending: back, receiving: forth })
}

/// Both sides of a link over connections of this make.
pub(crate) type LinkSide = (Waiter, Box<dyn Link>);

pub(crate) fn link_pair(make: Make, connections: usize, shape: FrameOptions, sealed: bool) -> (LinkSide, LinkSide) {
    let (one, other) = (Waiter::new().unwrap(), Waiter::new().unwrap());
    if let Make::Memory(capacity) = make {
        let pipes = (0..connections).map(|_| pipe(&one.bell(), &other.bell(), capacity)).unzip();
        return sides(one, other, pipes, shape, sealed);
    }
    let pairs: (Vec<Socket>, Vec<Socket>) = (0..connections).map(|_| socket_pair(make)).unzip();
    pairs.0.iter().for_each(|socket| one.watch(socket).unwrap());
    pairs.1.iter().for_each(|socket| other.watch(socket).unwrap());
    sides(one, other, pairs, shape, sealed)
}

fn sides<C: Connection>(
    one: Waiter,
    other: Waiter,
    (ours, theirs): (Vec<C>, Vec<C>),
    shape: FrameOptions,
    sealed: bool,
) -> (LinkSide, LinkSide) {
    let (our_keys, their_keys) = session_keys();
    let link = |peer: Rank, ends: Vec<C>, keys: &SessionKeys| -> Box<dyn Link> {
        if sealed {
            let ends = ends.into_iter().map(|end| Sealed::new(end, keys)).collect();
            return Box::new(StreamLink::new(peer, ends, shape));
        }
        Box::new(StreamLink::new(peer, ends, shape))
    };
    ((one, link(OTHER, ours, &our_keys)), (other, link(ONE, theirs, &their_keys)))
}

pub(crate) fn control_pair() -> (StreamControl<Socket>, StreamControl<Socket>) {
    let (one, other) = socket_pair(Make::Unix);
    (StreamControl::new(OTHER, one), StreamControl::new(ONE, other))
}

/// Bytes that differ at every offset and from seed to seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn tag(operation: u64, message: u32) -> Tag {
    Tag { operation, message, descriptor: 0xabcd }
}

/// How a payload is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Memory,
    Pieces,
}

/// Calls until the work is done, the call fails, or patience ends.
pub(crate) fn drive(waiter: &Waiter, mut call: impl FnMut() -> Result<Progress>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call()? {
            Progress::Done => return Ok(()),
            Progress::Moved => {}
            Progress::Pending => {
                let left = deadline.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "no progress within {PATIENCE:?}");
                waiter.wait(left)?;
            }
        }
    }
}

pub(crate) fn send(side: &mut LinkSide, tag: Tag, payload: &[u8]) -> Result<()> {
    let (waiter, link) = side;
    let mut cursor = SendCursor::default();
    drive(waiter, || link.send(tag, payload, &mut cursor))
}

pub(crate) fn recv(side: &mut LinkSide, tag: Tag, len: usize, how: How) -> Result<Vec<u8>> {
    let mut into = vec![0xee; len];
    exchange(side, tag, None, Some((&mut into, how)))?;
    Ok(into)
}

/// Sends and receives at the same time.
pub(crate) fn exchange(
    side: &mut LinkSide,
    tag: Tag,
    mut out: Option<&[u8]>,
    mut into: Option<(&mut [u8], How)>,
) -> Result<()> {
    let (waiter, link) = side;
    let (mut sent, mut received) = (SendCursor::default(), RecvCursor::default());
    let mut pieces = Pieces::default();
    drive(waiter, || {
        let mut moved = Progress::Pending;
        if let Some(payload) = out {
            match link.send(tag, payload, &mut sent)? {
                Progress::Done => out = None,
                Progress::Moved => moved = Progress::Moved,
                Progress::Pending => {}
            }
        }
        if let Some((target, how)) = &mut into {
            let progress = match how {
                How::Memory => link.recv_into(tag, target, &mut received)?,
                How::Pieces => {
                    let len = target.len() as u64;
                    link.recv(tag, len, &mut received, &mut |at, piece| pieces.take(target, at, piece))?
                }
            };
            match progress {
                Progress::Done => {
                    assert_eq!(received.delivered, target.len() as u64);
                    into = None;
                }
                Progress::Moved => moved = Progress::Moved,
                Progress::Pending => {}
            }
        }
        Ok(if out.is_none() && into.is_none() { Progress::Done } else { moved })
    })
}

/// Checks what a link promises about pieces.
#[derive(Default)]
struct Pieces {
    bytes: usize,
}

impl Pieces {
    fn take(&mut self, target: &mut [u8], at: u64, piece: &[u8]) {
        let (at, end) = (at as usize, at as usize + piece.len());
        assert_eq!(at % 64, 0, "pieces start aligned");
        assert!(piece.len().is_multiple_of(64) || end == target.len(), "all but the last piece are of aligned length");
        target[at..end].copy_from_slice(piece);
        self.bytes += piece.len();
        assert!(self.bytes <= target.len(), "no byte comes twice");
    }
}

/// The next control message.
pub(crate) fn next_message(waiter: &Waiter, control: &mut dyn Control) -> Result<Vec<u8>> {
    let mut message = None;
    drive(waiter, || {
        message = control.recv()?;
        Ok(if message.is_some() { Progress::Done } else { Progress::Pending })
    })?;
    Ok(message.unwrap())
}
