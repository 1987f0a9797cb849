//! A socket of any family, as a channel wants it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::channel::Patient;

/// A connected socket: TCP between hosts, one end of a pair within a host.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket(stream.into())
    }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Socket {
        Socket(socket)
    }
}

impl Socket {
    /// A TCP connection; small messages go out at once.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        Ok(Socket(stream.into()))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, target)?)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Without a signal when the other side is gone: the error says it.
        Ok(rustix::net::send(&self.0, bytes, rustix::net::SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Patient for Socket {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(patience))?;
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(patience))?)
    }
}
