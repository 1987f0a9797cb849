//! Where a rendezvous is, and a connection to it.
//!
//! Written `unix:/path/of/socket`, `unix:@name` (a Linux abstract socket, which has no file to clean up) or
//! `tcp:host:port`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::str::FromStr;
use std::time::Duration;

use farandole_transport::Countdown;
use rustix::net::SocketAddrUnix;

use crate::channel::Patient;
use crate::strangers;

/// Where a rendezvous is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket with a path.
    UnixPath(String),
    /// An abstract Unix socket.
    UnixAbstract(String),
    /// A TCP socket, `host:port`.
    Tcp(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::UnixPath(path) => write!(f, "unix:{path}"),
            Address::UnixAbstract(name) => write!(f, "unix:@{name}"),
            Address::Tcp(host_and_port) => write!(f, "tcp:{host_and_port}"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wanted = || format!("'{text}' is no address: write unix:/path, unix:@name or tcp:host:port");
        let (kind, rest) = text.split_once(':').ok_or_else(wanted)?;
        match kind {
            "unix" => match rest.strip_prefix('@') {
                Some(name) if !name.is_empty() => Ok(Address::UnixAbstract(name.to_string())),
                None if rest.starts_with('/') => Ok(Address::UnixPath(rest.to_string())),
                _ => Err(wanted()),
            },
            "tcp" => match rest.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Address::Tcp(rest.to_string()))
                }
                _ => Err(wanted()),
            },
            _ => Err(wanted()),
        }
    }
}

impl Address {
    /// One attempt to connect.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<Stream> {
        match self {
            Address::UnixPath(path) => connect_here(&SocketAddrUnix::new(path)?, patience),
            Address::UnixAbstract(name) => connect_here(&SocketAddrUnix::new_abstract_name(name.as_bytes())?, patience),
            Address::Tcp(host_and_port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in host_and_port.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, patience) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Listens here. The address that comes back is where to connect: port 0 has become a real one.
    pub(super) fn listen(&self) -> io::Result<(Listener, Address)> {
        match self {
            Address::UnixPath(path) => Ok((Listener::Unix(UnixListener::bind(path)?), self.clone())),
            Address::UnixAbstract(name) => {
                let address = UnixAddress::from_abstract_name(name)?;
                Ok((Listener::Unix(UnixListener::bind_addr(&address)?), self.clone()))
            }
            Address::Tcp(host_and_port) => {
                let listener = TcpListener::bind(host_and_port)?;
                let port = listener.local_addr()?.port();
                let host = host_and_port.rsplit_once(':').map_or("", |(host, _)| host);
                let address = Address::Tcp(format!("{host}:{port}"));
                Ok((Listener::Tcp(listener), address))
            }
        }
    }
}

fn connect_here(address: &SocketAddrUnix, patience: Duration) -> io::Result<Stream> {
    let socket = strangers::connect(address, &Countdown::new(patience))?;
    Ok(Stream::Unix(UnixStream::from(socket)))
}

/// A listening socket of either family.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    /// The next connection, made blocking, with words for where it comes from.
    pub(super) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), from.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                if !strangers::is_trusted(&stream) {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                stream.set_nonblocking(false)?;
                Ok((Stream::Unix(stream), "this host".to_string()))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A connection of either family.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Patient for Stream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_patience(patience),
            Stream::Unix(stream) => stream.set_patience(patience),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(target),
            Stream::Unix(stream) => stream.read(target),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_text() {
        for text in ["unix:/run/a b", "unix:@farandole-1", "tcp:node-7:4000", "tcp:[::1]:80"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_explained() {
        for text in ["", "unix:", "unix:@", "unix:relative", "tcp:host", "tcp::1", "tcp:h:99999", "http://x"] {
            assert!(text.parse::<Address>().unwrap_err().contains("is no address"), "{text}");
        }
    }
}
