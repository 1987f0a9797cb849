//! Where a source listens, and how a follower gets there: Unix sockets within a host, TCP between hosts.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use farandole_transport::{Countdown, JobId, Key};

use crate::channel::{Channel, ChannelPurpose};
use crate::launch::Socket;
use crate::membership::Whereabouts;

/// For a connection and its handshake. Somebody who is well answers at once, unless the machine is very busy.
pub(super) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);

/// A process as a side of a stream.
#[derive(Clone, Debug)]
pub struct StreamPeer {
    /// The job's key.
    pub key: Key,
    /// Which job this is; others may have the same key.
    pub job: JobId,
    /// Identity of this host, within which Unix sockets are used.
    pub host: String,
    /// The number of this process among the members.
    pub member: u64,
}

/// Where followers connect.
#[derive(Debug)]
pub(super) enum SourceListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl SourceListener {
    /// Listens on this host and at these addresses, and says where.
    pub(super) fn bind_all(host: &str, at: &[SocketAddr]) -> io::Result<(Vec<SourceListener>, Vec<u8>)> {
        let random = Key::random().map_err(io::Error::other)?.to_hex();
        let unix_name = format!("farandole-state-{}-{}", std::process::id(), &random[..16]);
        let unix = UnixListener::bind_addr(&UnixAddress::from_abstract_name(&unix_name)?)?;
        let (mut listeners, mut tcp) = (vec![SourceListener::Unix(unix)], Vec::new());
        for address in at {
            let listener = TcpListener::bind(address)?;
            tcp.push(listener.local_addr()?);
            listeners.push(SourceListener::Tcp(listener));
        }
        Ok((listeners, Whereabouts { host: host.to_owned(), unix_name, tcp }.encode()))
    }

    /// Waits for a follower.
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            SourceListener::Tcp(listener) => Socket::from_tcp(listener.accept()?.0),
            SourceListener::Unix(listener) => Ok(Socket::from(listener.accept()?.0)),
        }
    }
}

/// Connects to a source, at the first of its addresses that answers.
pub(super) fn dial(contact: &[u8], own: &StreamPeer) -> io::Result<Channel<Socket>> {
    let place = Whereabouts::decode(contact).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the member has not said where it streams its state")
    })?;
    let deadline = Countdown::new(HANDSHAKE_PATIENCE);
    let socket = if place.host == own.host {
        Socket::from(UnixStream::connect_addr(&UnixAddress::from_abstract_name(&place.unix_name)?)?)
    } else {
        dial_tcp(&place.tcp, &deadline)?
    };
    // Only the lower half fits the opening of a channel; the first message has the whole number.
    Channel::connect(socket, &own.key, ChannelPurpose::State, own.member as u32, &deadline)
}

fn dial_tcp(addresses: &[SocketAddr], deadline: &Countdown) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
    for address in addresses {
        let left = deadline.left();
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left / 2) {
            Ok(stream) => return Socket::from_tcp(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
