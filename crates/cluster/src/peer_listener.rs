//! Where a process is reached by others of its job, and how they get there: Unix sockets within a host, TCP between
//! hosts.
//!
//! A listener is first *reserved*: its name and ports are taken and can be told to others, but whoever connects is
//! refused at once. [`PeerListener::listen`] opens it. So a process can say at the rendezvous where something will be,
//! and others lose no time if it never comes.
//!
//! What is deliberately not here: what is said over the connections, and whether the other side holds the job's key.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farandole_transport::{Countdown, Key};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::launch::Socket;
use crate::membership::Whereabouts;
use crate::strangers;

/// Connections that wait to be accepted; as many as Rust's own listeners have.
const BACKLOG: i32 = 128;

/// A socket at which others of the job connect.
#[derive(Debug)]
pub(crate) struct PeerListener(OwnedFd);

impl PeerListener {
    /// Reserves a socket on this host and one at each address, and says where they are. `what` is part of a name.
    pub(crate) fn reserve_all(what: &str, host: &str, at: &[SocketAddr]) -> io::Result<(Vec<PeerListener>, Vec<u8>)> {
        let random = Key::random().map_err(io::Error::other)?.to_hex();
        let unix_name = format!("farandole-{what}-{}-{}", std::process::id(), &random[..16]);
        let unix = socket(AddressFamily::UNIX)?;
        net::bind(&unix, &SocketAddrUnix::new_abstract_name(unix_name.as_bytes())?)?;
        let (mut listeners, mut tcp) = (vec![PeerListener(unix)], Vec::new());
        for address in at {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket(family)?;
            net::bind(&socket, address)?;
            tcp.push(SocketAddr::try_from(net::getsockname(&socket)?)?);
            listeners.push(PeerListener(socket));
        }
        Ok((listeners, Whereabouts { host: host.to_owned(), unix_name, tcp }.encode()))
    }

    /// Lets others connect from now on.
    pub(crate) fn listen(&self) -> io::Result<()> {
        Ok(net::listen(&self.0, BACKLOG)?)
    }

    /// Waits for a connection. Callers of another user are turned away.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        let socket = Socket::from(net::accept_with(&self.0, SocketFlags::CLOEXEC)?);
        if net::sockopt::socket_domain(&socket)? != AddressFamily::UNIX {
            // Small messages go out at once.
            let _ = net::sockopt::set_tcp_nodelay(&socket, true);
        } else if !strangers::is_trusted(&socket) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(socket)
    }
}

impl AsFd for PeerListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Connects to where somebody says that it listens, at the first address that answers. `own_host` is this host.
pub(crate) fn dial(contact: &[u8], own_host: &str, deadline: &Countdown) -> io::Result<Socket> {
    let nowhere = || io::Error::new(io::ErrorKind::InvalidData, "it has not said where it listens");
    let place = Whereabouts::decode(contact).ok_or_else(nowhere)?;
    if place.host == own_host {
        let address = SocketAddrUnix::new_abstract_name(place.unix_name.as_bytes())?;
        return Ok(Socket::from(strangers::connect(&address, deadline)?));
    }
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
    for address in &place.tcp {
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
