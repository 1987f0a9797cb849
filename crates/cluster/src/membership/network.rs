//! What the endpoint's state ([`super::endpoint_core`]) needs of the world: channels to other endpoints.
//!
//! Production has sockets (`connection`); the simulation has byte streams in memory. Neither call waits.
//!
//! Not here: clocks, commands and the poll. The driver of the state has those.

use std::io;

use farandole_plan::membership::{MemberId, VoteRecord};

use super::connection::MemberMedium;
use super::wire::Whereabouts;
use crate::channel::{Flushed, Received};

/// Where an endpoint connects, and who it is.
#[derive(Debug)]
pub struct MemberCall<'a> {
    /// Where the other endpoint listens.
    pub place: &'a Whereabouts,
    /// Counts the attempts to reach this endpoint; selects one of its addresses.
    pub attempt: usize,
    /// The number of the calling member.
    pub me: MemberId,
}

/// Makes channels.
pub trait MemberNetwork {
    /// One end of a connection.
    type Channel: MemberChannel;

    /// Begins to connect.
    fn dial(&mut self, call: &MemberCall<'_>) -> io::Result<Self::Channel>;

    /// The next connection that another process has made; `WouldBlock` if none waits, `PermissionDenied` if it was
    /// turned away.
    fn accept(&mut self) -> io::Result<Self::Channel>;

    /// This process has a number from now on. Its votes are recorded for its agent, if it has one.
    fn open_votes(&mut self, me: MemberId);

    /// Records votes where they survive this process.
    fn record_votes(&mut self, record: &VoteRecord);

    /// A rule that the endpoint is to break, for tests of the simulation itself.
    fn broken_rule(&self) -> Option<Rule> {
        None
    }
}

/// Rules of an endpoint whose violation the simulation must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The end of one of two connections to a member may have lost messages.
    EveryConnectionCounts,
    /// A message that is not repeated is sent to a member that does not answer.
    MustArrive,
    /// A refused connection does not prove a death.
    RefusalProvesNothing,
    /// A reset between hosts does not prove a death.
    ResetProvesNothing,
}

/// A process of this host.
pub trait PeerWatch {
    /// Whether the kernel says that it has ended.
    fn has_ended(&self) -> bool;
}

/// One end of a connection between two endpoints: whole messages, sealed, in order.
pub trait MemberChannel {
    /// Says whether the process at the other end has ended.
    type Watch: PeerWatch;

    /// Closes the connection; what is left tells whether the process has ended, if it is on this host and can be
    /// watched.
    fn into_watch(self) -> Option<Self::Watch>;

    /// What carries the channel.
    fn medium(&self) -> MemberMedium;

    /// Whether the other side has proved that it holds the key.
    fn is_established(&self) -> bool;

    /// The next message, if it has arrived. An error ends the channel.
    fn receive(&mut self) -> io::Result<Received>;

    /// Says that no more bytes will arrive. An error, if something was cut off.
    fn finish(&mut self) -> io::Result<()>;

    /// Adds a message to the queue. It travels with the next flush after the handshake.
    fn queue(&mut self, message: &[u8]) -> io::Result<()>;

    /// Whether the queue holds bytes that can travel.
    fn wants_write(&self) -> bool;

    /// Whether the connection has taken a part of a message whose rest is in the queue. If this process ends now, the
    /// other side notices that something is missing.
    fn is_mid_message(&self) -> bool;

    /// Sends what the connection takes. While a message waits in the queue, the last byte of the one before it does.
    fn flush(&mut self) -> io::Result<Flushed>;
}
