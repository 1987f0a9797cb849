//! Links and control lines over anything that carries bytes in order: TCP, Unix sockets, pipes inside a process.
//!
//! A *connection* is a non-blocking byte stream in both directions ([`Connection`]): a [`Socket`], a [`Sealed`] one, or
//! an end of a [`crate::memory`] pipe. Above it nothing cares which it is: [`StreamLink`] cuts frames into stripes and
//! puts them on its connections, [`StreamControl`] carries messages on one. A connection is authenticated before it
//! gets here ([`crate::hello`]).

pub(crate) mod congestion;
mod control;
mod incoming;
mod link;
mod outgoing;
mod sealed;
mod socket;

use std::io::{self, ErrorKind, Read, Write};

use farandole_plan::Rank;

pub use control::{MESSAGE_LIMIT_BYTES, StreamControl};
pub use link::{FrameOptions, StreamLink};
pub use sealed::{Sealed, SessionKeys};
pub use socket::Socket;

use crate::error::Error;

/// A byte stream in both directions that never blocks. `flush` fails with [`ErrorKind::WouldBlock`] as long as bytes
/// that it has taken have not left; a read of zero bytes means that the peer has closed.
pub trait Connection: Read + Write + Send + 'static {}

impl<C: Read + Write + Send + 'static> Connection for C {}

/// What an error of a connection says about the peer at its other end.
fn peer_error(peer: Rank, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof
        | ErrorKind::NotConnected
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::TimedOut => Error::PeerGone { peer, how: error.to_string() },
        ErrorKind::InvalidData => Error::Corrupt { peer, what: error.to_string() },
        _ => Error::local(format!("moving bytes to or from rank {peer}"), error),
    }
}

/// The error of a connection whose peer has closed it.
fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}
