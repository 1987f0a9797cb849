//! Messages between two processes that hold the job's key, and that nobody else can read, forge, repeat or reorder.
//!
//! A channel is Noise, pattern NN with the job's key as the pre-shared one: `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`.
//! Both sides make a fresh key pair for each connection, so what was recorded stays secret even if the job's key
//! becomes known later. ChaCha20-Poly1305 and BLAKE2s are fast and constant-time on every processor without special
//! instructions, and a control channel carries too little for the cipher's speed to matter.
//!
//! [`Session`] is the protocol without any I/O: bytes in, bytes out. [`Channel`] moves its bytes over a blocking
//! stream, with a deadline for each call; [`Polled`] over a non-blocking one, for a loop that looks after many.
//!
//! What the messages say is not decided here, and neither is who may take which part: whoever holds the key is trusted.

mod blocking;
#[cfg(any(test, fuzzing))]
mod check;
mod polled;
mod session;

use std::fmt;
use std::io;

pub use blocking::{Channel, Patient};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use check::check_any_session;
pub use polled::{Flushed, Polled, Received};
pub use session::{DEFAULT_MOST_BYTES, Session};

/// Version of everything that is said over channels. Both sides must have the same.
pub const VERSION: u8 = 3;

/// What a channel is for. Both sides must mean the same; a recorded handshake for one purpose is worthless for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelPurpose {
    /// A rank comes to the rendezvous; the caller is the rank.
    Rendezvous,
    /// The agent of a host reports to the launcher; the caller is the host's place in the job.
    Agent,
    /// A host finds out whether it reaches another; the caller is the host that it looks for.
    Probe,
    /// A member of an elastic job talks to another; the caller is the lower half of its number.
    Membership,
    /// A process that is about to join an elastic job gets a member's state; the caller is the lower half of its
    /// number.
    State,
    /// A rank asks another one for a block of a data set; the caller is the rank.
    Blocks,
}

impl ChannelPurpose {
    fn byte(self) -> u8 {
        match self {
            ChannelPurpose::Rendezvous => 1,
            ChannelPurpose::Agent => 2,
            ChannelPurpose::Probe => 3,
            ChannelPurpose::Membership => 4,
            ChannelPurpose::State => 5,
            ChannelPurpose::Blocks => 6,
        }
    }
}

/// Why a session has ended, or why a message is not carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelFault {
    /// The first bytes are no channel's: whoever is there is not a farandole process.
    NotAChannel,
    /// The other side has another version of this program.
    Version {
        /// The other side's.
        theirs: u8,
    },
    /// The other side does not hold the job's key, or means another purpose.
    Stranger,
    /// A frame was altered, repeated, left out or moved.
    Damaged,
    /// The connection ended in the middle of a handshake or a message.
    Truncated,
    /// A message is longer than the session carries.
    TooLong {
        /// The most that it carries.
        most_bytes: usize,
    },
    /// The operating system has no randomness to give.
    NoRandomness,
}

impl fmt::Display for ChannelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelFault::NotAChannel => f.write_str("the other side is not a farandole process"),
            ChannelFault::Version { theirs } => write!(
                f,
                "the other side speaks version {theirs} of the channel protocol, this one version {VERSION}: \
                 install the same farandole everywhere"
            ),
            ChannelFault::Stranger => f.write_str("the other side does not hold this job's key"),
            ChannelFault::Damaged => f.write_str("a frame was damaged, repeated or left out on the way"),
            ChannelFault::Truncated => f.write_str("the connection ended in the middle of a message"),
            ChannelFault::TooLong { most_bytes } => {
                write!(f, "a message is longer than the {most_bytes} bytes that are carried")
            }
            ChannelFault::NoRandomness => f.write_str("the operating system has no randomness to give"),
        }
    }
}

impl std::error::Error for ChannelFault {}

impl ChannelFault {
    /// The fault inside an error that a [`Channel`] or a [`Polled`] gave; `None` if the operating system was the cause.
    pub fn of(error: &io::Error) -> Option<&ChannelFault> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<ChannelFault> for io::Error {
    fn from(fault: ChannelFault) -> io::Error {
        let kind = match fault {
            ChannelFault::Stranger => io::ErrorKind::PermissionDenied,
            ChannelFault::Truncated => io::ErrorKind::UnexpectedEof,
            ChannelFault::TooLong { .. } => io::ErrorKind::InvalidInput,
            ChannelFault::NotAChannel
            | ChannelFault::Version { .. }
            | ChannelFault::Damaged
            | ChannelFault::NoRandomness => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, fault)
    }
}
