//! What the endpoint's state ([`super::endpoint_core`]) needs of the world: channels to other endpoints.
//!
//! Production has sockets (`connection`); the simulation has byte streams in memory. Neither call waits.
//!
//! Not here: clocks, commands and the poll. The driver of the state has those.

use std::io;

use farandole_plan::membership::MemberId;

use super::connection::Medium;
use super::wire::Whereabouts;
use crate::channel::{Flushed, Received};

/// Where an endpoint connects, and who it is.
#[derive(Debug)]
pub struct Call<'a> {
    /// Where the other endpoint listens.
    pub place: &'a Whereabouts,
    /// Counts the attempts to reach this endpoint; selects one of its addresses.
    pub attempt: usize,
    /// The number of the calling member.
    pub me: MemberId,
}

/// Makes channels.
pub trait Network {
    /// One end of a connection.
    type Channel: MemberChannel;

    /// Begins to connect.
    fn dial(&mut self, call: &Call<'_>) -> io::Result<Self::Channel>;

    /// The next connection that another process has made; `WouldBlock` if none waits.
    fn accept(&mut self) -> io::Result<Self::Channel>;
}

/// One end of a connection between two endpoints: whole messages, sealed, in order.
pub trait MemberChannel {
    /// What carries the channel.
    fn medium(&self) -> Medium;

    /// Whether the other side has proved that it holds the key.
    fn is_established(&self) -> bool;

    /// The next message, if it has arrived. An error ends the channel.
    fn receive(&mut self) -> io::Result<Received>;

    /// Adds a message to the queue. It travels with the next flush after the handshake.
    fn queue(&mut self, message: &[u8]) -> io::Result<()>;

    /// Whether the queue holds bytes that can travel.
    fn wants_write(&self) -> bool;

    /// Sends what the connection takes.
    fn flush(&mut self) -> io::Result<Flushed>;
}
