//! One connection between two endpoints: who is at the other end, and what its end means.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::time::Instant;

use farandole_plan::membership::{LossEvidence, MemberId, MemberMessage};
use farandole_transport::Key;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::time::Timespec;

use super::wire::{Packet, Whereabouts};
use crate::channel::{ChannelFault, ChannelPurpose, Flushed, Polled};
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

    pub(super) fn accept(&self, key: &Key) -> io::Result<Connection> {
        let (socket, medium) = match self {
            MemberListener::Tcp(listener) => (Socket::from_tcp(listener.accept()?.0)?, Medium::Tcp),
            MemberListener::Unix(listener) => (Socket::from(listener.accept()?.0), Medium::Unix),
        };
        let process = process_behind(&socket, medium);
        let channel = Polled::accept(socket, key, ChannelPurpose::Membership)?;
        Ok(Connection { channel, process, dialed: None, stage: Stage::Handshake, began: None, unanswered: 0 })
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
pub(super) enum Medium {
    Tcp,
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

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) channel: Polled<Socket>,
    /// The process at the other end, if it is on this host: readable when it has ended. Its children may have inherited
    /// the connection (whoever forks without `exec` does that), and keep it open.
    pub(super) process: Option<OwnedFd>,
    /// Set on the side that has connected.
    pub(super) dialed: Option<Target>,
    pub(super) stage: Stage,
    /// When the handshake began.
    pub(super) began: Option<Instant>,
    /// Messages since the other side was heard.
    unanswered: u32,
}

impl Connection {
    /// Begins to connect, and waits for nothing. `attempt` goes round the addresses of the place.
    pub(super) fn dial(
        place: &Whereabouts,
        own_host: &str,
        attempt: usize,
        key: &Key,
        me: MemberId,
        target: Target,
    ) -> io::Result<Connection> {
        let (socket, medium) = if place.host == own_host {
            (dial_unix(&place.unix_name)?, Medium::Unix)
        } else {
            let count = place.tcp.len();
            let no_address = || io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
            let address = place.tcp.get(attempt % count.max(1)).ok_or_else(no_address)?;
            (dial_tcp(*address)?, Medium::Tcp)
        };
        let process = process_behind(&socket, medium);
        // Only the lower half fits the opening of a channel; the hello has the whole number.
        let channel = Polled::connect(socket, key, ChannelPurpose::Membership, me.0 as u32)?;
        let (dialed, stage) = (Some(target), Stage::Handshake);
        Ok(Connection { channel, process, dialed, stage, began: None, unanswered: 0 })
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
        let must_arrive = matches!(message, MemberMessage::LeftOut { .. } | MemberMessage::Leave(_));
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

/// How a connection to a known member has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEnd<'a> {
    /// The kernel says that the process at the other end has ended, and the stream was read to its end.
    Process,
    /// In order.
    Closed,
    Failed(&'a io::Error),
}

impl ConnectionEnd<'_> {
    /// Whether all that was sent over a Unix socket was received: within a host a reset loses nothing.
    pub(super) fn is_complete(self) -> bool {
        match self {
            ConnectionEnd::Process | ConnectionEnd::Closed => true,
            ConnectionEnd::Failed(error) => {
                let is_reset = matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
                ChannelFault::of(error).is_none() && is_reset
            }
        }
    }
}

/// What the end of a connection proves about the process at its other end, and in which words.
pub(super) fn judge_end(end: ConnectionEnd<'_>) -> (LossEvidence, String) {
    match end {
        ConnectionEnd::Process => (LossEvidence::Ended, "its process has ended".into()),
        ConnectionEnd::Closed => (LossEvidence::Broken, "its connection was closed".into()),
        ConnectionEnd::Failed(error) => (LossEvidence::Broken, format!("its connection broke: {error}")),
    }
}

/// Whether a process has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A reset, or a FIN, between two hosts counted as the end of the process.
    #[test]
    fn only_the_kernel_of_the_same_host_proves_an_end() {
        assert_eq!(judge_end(ConnectionEnd::Process).0, LossEvidence::Ended);
        assert_eq!(judge_end(ConnectionEnd::Closed).0, LossEvidence::Broken);
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut] {
            let error = io::Error::from(kind);
            assert_eq!(judge_end(ConnectionEnd::Failed(&error)).0, LossEvidence::Broken, "{kind:?}");
        }
    }

    #[test]
    fn a_process_is_seen_to_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert!(!has_ended(&process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process));
    }
}
