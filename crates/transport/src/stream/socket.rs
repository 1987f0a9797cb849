//! A non-blocking socket, TCP or Unix.
//!
//! Differs from the streams of the standard library in two ways: gathered writes never raise SIGPIPE, whatever the
//! program that hosts us does with signals, and both families are one type.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};
use rustix::net::{connect, getpeername, sendmsg, socket_with, sockopt};

use super::congestion::suit_bursts;
use crate::awake::Countdown;
use crate::error::{Error, Result};
use crate::fds::wait_for;

/// After this silence TCP asks whether the peer's host is still there, and then every [`PROBE_EVERY`]. Only a host that
/// vanished without a word needs this; a process that dies closes its sockets at once.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// See [`PROBE_AFTER`]. Five unanswered probes, ten seconds in all, mean that the host is gone.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A control line whose messages are not acknowledged for so long leads nowhere.
const ANSWER_WITHIN_MS: u32 = 10_000;

/// A connected, non-blocking socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Takes a TCP connection over: small frames leave at once, a vanished host is noticed.
    pub fn from_tcp(stream: TcpStream) -> Result<Socket> {
        let set_up = || -> io::Result<()> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
            sockopt::set_tcp_keepintvl(&stream, PROBE_EVERY)?;
            sockopt::set_tcp_keepcnt(&stream, 5)?;
            Ok(())
        };
        set_up().map_err(|e| Error::local("setting up a TCP connection", e))?;
        Ok(Socket { fd: stream.into() })
    }

    /// Connects to a TCP address and takes the connection over. Not the standard library's way, because how the
    /// connection sends must be decided before it is one (see `congestion`).
    pub fn to_tcp(address: SocketAddr, deadline: &Countdown) -> Result<Socket> {
        let refused = |e: Errno| Error::local(format!("connecting to {address}"), e);
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None).map_err(refused)?;
        suit_bursts(&fd);
        match connect(&fd, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                while !is_connected(&fd).map_err(refused)? {
                    wait_for(&fd, PollFlags::OUT, deadline)?;
                }
            }
            Err(error) => return Err(refused(error)),
        }
        Socket::from_tcp(fd.into())
    }

    /// Lets the connection fail when the peer's host acknowledges nothing for a while. For control lines only: on a
    /// data connection the same silence may mean that the peer's program is busy and its buffers are full.
    pub fn expect_answers(&self) -> Result<()> {
        sockopt::set_tcp_user_timeout(&self.fd, ANSWER_WITHIN_MS)
            .map_err(|e| Error::local("setting up a control line", e))
    }

    /// Takes a Unix connection over.
    pub fn from_unix(stream: UnixStream) -> Result<Socket> {
        stream.set_nonblocking(true).map_err(|e| Error::local("setting up a Unix connection", e))?;
        Ok(Socket { fd: stream.into() })
    }

    /// Connects to an abstract Unix socket. Fails at once if nobody listens there or too many are waiting.
    pub fn to_abstract(name: &str) -> io::Result<Socket> {
        use rustix::net::SocketAddrUnix;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&fd, &address)?;
        Ok(Socket { fd })
    }

    /// Asks the kernel for send and receive buffers of this size. It may give less.
    pub fn set_buffer_bytes(&self, bytes: usize) -> Result<()> {
        sockopt::set_socket_send_buffer_size(&self.fd, bytes)
            .and_then(|()| sockopt::set_socket_recv_buffer_size(&self.fd, bytes))
            .map_err(|e| Error::local("sizing socket buffers", e))
    }
}

/// Whether a connection that is being made has been; fails if it will not be.
fn is_connected(fd: &OwnedFd) -> rustix::io::Result<bool> {
    sockopt::socket_error(fd)??;
    match getpeername(fd) {
        Ok(peer) => Ok(peer.is_some()),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.fd, &mut *target) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn read_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            match rustix::io::readv(&self.fd, targets) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
