//! One connection between two endpoints: who is at the other end, and what its end means.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::time::Instant;

use farandole_plan::membership::{LossEvidence, MemberId, MemberMessage};
use farandole_transport::Key;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::network::{Call, MemberChannel, Network};
use super::wire::Packet;
use crate::channel::{ChannelFault, ChannelPurpose, Flushed, Polled, Received};
use crate::launch::Socket;

/// So many messages go to somebody who is not heard of: enough that one of them is there when it comes back, and few
/// enough that a word that must arrive finds room in the socket.
const MOST_UNANSWERED: u32 = 64;

/// Where processes connect to an endpoint.
#[derive(Debug)]
pub(super) enum MemberListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl MemberListener {
    pub(super) fn tcp(at: SocketAddr) -> io::Result<MemberListener> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(MemberListener::Tcp(listener))
    }

    pub(super) fn unix(name: &str) -> io::Result<MemberListener> {
        let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(MemberListener::Unix(listener))
    }

    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            MemberListener::Tcp(listener) => listener.local_addr().ok(),
            MemberListener::Unix(_) => None,
        }
    }

    fn accept(&self, key: &Key) -> io::Result<MemberSocket> {
        let (socket, medium) = match self {
            MemberListener::Tcp(listener) => (Socket::from_tcp(listener.accept()?.0)?, Medium::Tcp),
            MemberListener::Unix(listener) => (Socket::from(listener.accept()?.0), Medium::Unix),
        };
        let process = process_behind(&socket, medium);
        let channel = Polled::accept(socket, key, ChannelPurpose::Membership)?;
        Ok(MemberSocket { channel, medium, process })
    }
}

impl AsFd for MemberListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            MemberListener::Tcp(listener) => listener.as_fd(),
            MemberListener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// TCP, between hosts.
    Tcp,
    /// A Unix socket, within a host.
    Unix,
}

/// Whom a connection was made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Member(MemberId),
    /// Somebody who may know the members, by its place in the list that a candidate was given.
    Seed(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The other side has not said who it is.
    Handshake,
    Known(MemberId),
}

/// The sockets of this process.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) listeners: Vec<MemberListener>,
    pub(super) key: Key,
    /// Identity of this host.
    pub(super) host: String,
}

impl Network for Sockets {
    type Channel = MemberSocket;

    fn dial(&mut self, call: &Call<'_>) -> io::Result<MemberSocket> {
        let place = call.place;
        let (socket, medium) = if place.host == self.host {
            (dial_unix(&place.unix_name)?, Medium::Unix)
        } else {
            let count = place.tcp.len();
            let no_address = || io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
            let address = place.tcp.get(call.attempt % count.max(1)).ok_or_else(no_address)?;
            (dial_tcp(*address)?, Medium::Tcp)
        };
        let process = process_behind(&socket, medium);
        // Only the lower half fits the opening of a channel; the hello has the whole number.
        let channel = Polled::connect(socket, &self.key, ChannelPurpose::Membership, call.me.0 as u32)?;
        Ok(MemberSocket { channel, medium, process })
    }

    fn accept(&mut self) -> io::Result<MemberSocket> {
        for listener in &self.listeners {
            match listener.accept(&self.key) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                accepted => return accepted,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// A channel over a socket.
#[derive(Debug)]
pub(super) struct MemberSocket {
    pub(super) channel: Polled<Socket>,
    medium: Medium,
    /// The process at the other end, if it is on this host: readable when it has ended. Its children may have inherited
    /// the connection (whoever forks without `exec` does that), and keep it open.
    pub(super) process: Option<OwnedFd>,
}

impl MemberChannel for MemberSocket {
    fn medium(&self) -> Medium {
        self.medium
    }

    fn is_established(&self) -> bool {
        self.channel.is_established()
    }

    fn receive(&mut self) -> io::Result<Received> {
        self.channel.receive()
    }

    fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        self.channel.queue(message)
    }

    fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        self.channel.flush()
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection<C> {
    pub(super) channel: C,
    /// Set on the side that has connected.
    pub(super) dialed: Option<Target>,
    pub(super) stage: Stage,
    /// When the handshake began.
    pub(super) began: Instant,
    /// Messages since the other side was heard.
    unanswered: u32,
}

impl<C: MemberChannel> Connection<C> {
    pub(super) fn new(channel: C, dialed: Option<Target>, began: Instant) -> Connection<C> {
        Connection { channel, dialed, stage: Stage::Handshake, began, unanswered: 0 }
    }

    pub(super) fn peer(&self) -> Option<MemberId> {
        match self.stage {
            Stage::Known(member) => Some(member),
            Stage::Handshake => None,
        }
    }

    /// The other side was heard.
    pub(super) fn hear(&mut self) {
        self.unanswered = 0;
    }

    /// Sends a message as far as the socket takes it. What is repeated anyway is not piled up for somebody who does not
    /// listen.
    pub(super) fn send(&mut self, message: MemberMessage) {
        let must_arrive = matches!(message, MemberMessage::LeftOut { .. } | MemberMessage::Leave);
        if self.unanswered < MOST_UNANSWERED || must_arrive {
            self.unanswered += 1;
            self.put(&Packet::Message(message));
        }
    }

    pub(super) fn put(&mut self, packet: &Packet) {
        // A connection that takes nothing more will be heard closing.
        let _ = self.channel.queue(&packet.encode());
        let _ = self.channel.flush();
    }

    pub(super) fn flush(&mut self) -> bool {
        matches!(self.channel.flush(), Ok(Flushed::All))
    }
}

/// What the end of a connection to a known member means, and in which words. `suspected`: nothing was heard of it for
/// too long.
pub(super) fn judge_end(medium: Medium, end: Result<(), &io::Error>, suspected: bool) -> (LossEvidence, String) {
    let Err(error) = end else {
        return (LossEvidence::Ended, "its process has ended: its connection was closed".into());
    };
    let evidence =
        match (ChannelFault::of(error), error.kind()) {
            (Some(ChannelFault::Truncated), _) => LossEvidence::Dead,
            (None, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                if suspected && medium == Medium::Tcp { LossEvidence::Broken } else { LossEvidence::Ended }
            }
            _ => LossEvidence::Broken,
        };
    let what = if evidence == LossEvidence::Broken { "its connection broke" } else { "its process has ended" };
    (evidence, format!("{what}: {error}"))
}

/// The process at the other end of a Unix socket. `None` where the kernel does not say, as across namespaces.
fn process_behind(socket: &Socket, medium: Medium) -> Option<OwnedFd> {
    if medium == Medium::Tcp {
        return None;
    }
    let pid = rustix::net::sockopt::socket_peercred(socket).ok()?.pid;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

fn dial_unix(name: &str) -> io::Result<Socket> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(Socket::from(socket))
}

fn dial_tcp(address: SocketAddr) -> io::Result<Socket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Socket::from_tcp(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
