//! One connection between two endpoints: who is at the other end, and what its end means.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::time::Instant;

use farandole_plan::membership::{LossEvidence, MemberId, MemberMessage, VoteRecord};
use farandole_transport::Key;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::time::Timespec;

use super::network::{MemberCall, MemberChannel, MemberNetwork, PeerWatch, Rule};
use super::vote_file::VoteFile;
use super::wire::Packet;
use crate::channel::{ChannelFault, ChannelPurpose, Flushed, Polled, Received};
use crate::launch::Socket;
use crate::strangers;

/// The most messages to a member that does not answer: enough that one of them is there when it continues.
const MOST_UNANSWERED: u32 = 64;

/// The most bytes to a member that does not answer, beyond a first message. Less than half of what a socket holds by
/// default, so that messages that must arrive find room.
const MOST_UNANSWERED_BYTES: usize = 64 << 10;

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
            MemberListener::Tcp(listener) => (Socket::from_tcp(listener.accept()?.0)?, MemberMedium::Tcp),
            MemberListener::Unix(listener) => {
                let socket = Socket::from(listener.accept()?.0);
                if !strangers::is_trusted(&socket) {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                (socket, MemberMedium::Unix)
            }
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
pub enum MemberMedium {
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
    /// The descriptor of the file in which votes are recorded, if there is one, and the file once it is open.
    pub(super) votes_in: Option<u32>,
    pub(super) votes: Option<VoteFile>,
}

impl MemberNetwork for Sockets {
    type Channel = MemberSocket;

    fn dial(&mut self, call: &MemberCall<'_>) -> io::Result<MemberSocket> {
        let place = call.place;
        let (socket, medium) = if place.host == self.host {
            (dial_unix(&place.unix_name)?, MemberMedium::Unix)
        } else {
            let count = place.tcp.len();
            let no_address = || io::Error::new(io::ErrorKind::AddrNotAvailable, "it listens at no address");
            let address = place.tcp.get(call.attempt % count.max(1)).ok_or_else(no_address)?;
            (dial_tcp(*address)?, MemberMedium::Tcp)
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

    fn open_votes(&mut self, me: MemberId) {
        let open = |descriptor| {
            VoteFile::open(descriptor, me).map_err(|error| log::warn!("votes are not recorded: {error}")).ok()
        };
        self.votes = self.votes_in.and_then(open);
    }

    fn record_votes(&mut self, record: &VoteRecord) {
        if let Some(Err(error)) = self.votes.as_mut().map(|votes| votes.record(record)) {
            log::warn!("votes are not recorded any more: {error}");
            self.votes = None;
        }
    }
}

/// A channel over a socket.
#[derive(Debug)]
pub(super) struct MemberSocket {
    pub(super) channel: Polled<Socket>,
    medium: MemberMedium,
    /// The process at the other end, if it is on this host: readable when it has ended. Its children may have inherited
    /// the connection (whoever forks without `exec` does that), and keep it open.
    pub(super) process: Option<OwnedFd>,
}

impl MemberChannel for MemberSocket {
    type Watch = OwnedFd;

    fn into_watch(self) -> Option<OwnedFd> {
        self.process
    }

    fn medium(&self) -> MemberMedium {
        self.medium
    }

    fn is_established(&self) -> bool {
        self.channel.is_established()
    }

    fn receive(&mut self) -> io::Result<Received> {
        self.channel.receive()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.channel.finish()
    }

    fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        self.channel.queue(message)
    }

    fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    fn is_mid_message(&self) -> bool {
        self.channel.is_mid_message()
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        self.channel.flush_linked()
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
    heard: Instant,
    /// Messages since the other side was heard, and their bytes.
    unanswered: u32,
    unanswered_bytes: usize,
    /// Whether the queue holds a [`MemberMessage::LeftOut`].
    holds_left_out: bool,
}

impl<C: MemberChannel> Connection<C> {
    pub(super) fn new(channel: C, dialed: Option<Target>, began: Instant) -> Connection<C> {
        let stage = Stage::Handshake;
        let (unanswered, unanswered_bytes, holds_left_out) = (0, 0, false);
        Connection { channel, dialed, stage, began, heard: began, unanswered, unanswered_bytes, holds_left_out }
    }

    pub(super) fn peer(&self) -> Option<MemberId> {
        match self.stage {
            Stage::Known(member) => Some(member),
            Stage::Handshake => None,
        }
    }

    /// Whether the connection is of no use until the other side says more. Within a host a process that holds the key
    /// may know this one already, and would take a closed connection for its end; between hosts the other side's hello
    /// may be lost for good.
    pub(super) fn is_shaking_hands(&self) -> bool {
        let has_said_enough = self.peer().is_some() || self.channel.medium() == MemberMedium::Unix;
        !(self.channel.is_established() && has_said_enough)
    }

    /// Whether the other side has connected and has not proved that it holds the key.
    pub(super) fn is_stranger(&self) -> bool {
        self.dialed.is_none() && !self.channel.is_established()
    }

    /// The other side was heard.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        (self.unanswered, self.unanswered_bytes) = (0, 0);
    }

    /// When the other side was heard over this connection, or when it began.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Sends a message as far as the socket takes it. What is repeated anyway is not queued for a member that does not
    /// answer.
    pub(super) fn send(&mut self, message: MemberMessage, broken: Option<Rule>) {
        let is_left_out = matches!(message, MemberMessage::LeftOut { .. });
        let must_arrive = is_left_out || matches!(message, MemberMessage::Leave(_));
        let bytes = Packet::Message(message).encode();
        let has_room = self.unanswered == 0 || self.unanswered_bytes + bytes.len() <= MOST_UNANSWERED_BYTES;
        let must_arrive = must_arrive && broken != Some(Rule::MustArrive);
        if must_arrive || has_room && self.unanswered < MOST_UNANSWERED {
            self.unanswered += 1;
            self.unanswered_bytes += bytes.len();
            self.holds_left_out |= is_left_out;
            self.put(&bytes);
        }
    }

    pub(super) fn put(&mut self, packet: &[u8]) {
        // A connection that takes nothing more will be heard closing.
        let _ = self.channel.queue(packet);
        self.flush();
    }

    pub(super) fn flush(&mut self) -> bool {
        let is_done = matches!(self.channel.flush(), Ok(Flushed::All));
        self.holds_left_out &= !is_done;
        is_done
    }

    pub(super) fn holds_left_out(&self) -> bool {
        self.holds_left_out
    }

    /// Whether this process could end now without the other side noticing that a [`MemberMessage::LeftOut`] is
    /// missing. Nothing that follows from the vote may be sent meanwhile.
    pub(super) fn withholds(&self) -> bool {
        self.holds_left_out && !self.channel.is_mid_message()
    }
}

/// How a connection to a known member has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEnd<'a> {
    /// The kernel says that the process at the other end has ended, and the stream was read to its end.
    Process,
    /// The same, but the stream ended in the middle of a message.
    ProcessCutOff,
    /// In order.
    Closed,
    Failed(&'a io::Error),
}

impl ConnectionEnd<'_> {
    /// Whether all that was sent over a Unix socket was received: within a host a reset loses nothing.
    pub(super) fn is_complete(self) -> bool {
        match self {
            ConnectionEnd::Process | ConnectionEnd::Closed => true,
            ConnectionEnd::ProcessCutOff => false,
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
        ConnectionEnd::ProcessCutOff => (LossEvidence::Dead, "its process has ended within a message".into()),
        ConnectionEnd::Closed => (LossEvidence::Broken, "its connection was closed".into()),
        ConnectionEnd::Failed(error) => (LossEvidence::Broken, format!("its connection broke: {error}")),
    }
}

impl PeerWatch for OwnedFd {
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// The process at the other end of a Unix socket, whatever its PID namespace. `None` where the kernel does not say.
fn process_behind(socket: &Socket, medium: MemberMedium) -> Option<OwnedFd> {
    if medium == MemberMedium::Tcp { None } else { farandole_transport::credentials::pidfd_of_peer(socket) }
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
        assert!(!process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
    }
}
