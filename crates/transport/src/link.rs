//! The contract of a link: what every way of moving bytes between two ranks must do.
//!
//! A link joins this rank to one peer inside one group and carries *frames* in both directions, each direction first
//! in, first out and independent of the other. A frame is a payload with a [`Tag`] that says which operation and which
//! step of it the payload belongs to. Both sides know from their schedules which frames come and how long they are; the
//! tag exists so that a difference of opinion is an error with a name and not a wrong sum.
//!
//! All calls return at once. [`Progress::Pending`] means "call again after the [`crate::Waiter`] has woken you", with
//! the very same arguments: what has been done so far is kept in the cursor, never a pointer to the payload, which is
//! why nothing here needs unsafe code. Frames of operations older than the one asked for (left behind by an operation
//! that was given up) are skipped in silence; frames of newer ones are an error. Each direction carries one frame at a
//! time: a frame must be [`Progress::Done`] before the next one of the same operation begins. An operation is given up
//! by beginning a frame of a newer one; the cursors of the old one must not be used again.
//!
//! [`Control`] carries whole small messages beside the frames. It is also the life-line: when the peer dies, `recv`
//! says so, whatever the link for data is made of.

use farandole_plan::{ErrorClass, Rank};

use crate::error::Result;

/// Which operation of the group, and which step of it, a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Operations of a group are numbered; every rank of the group counts alike.
    pub operation: u64,
    /// Messages between these two ranks in this direction, counted within the operation.
    pub message: u32,
    /// A hash of what this rank thinks the operation is (names, shapes, schedule). Ranks that count alike but think
    /// differently find out here: a difference is an error that says so.
    pub descriptor: u64,
}

/// Whether a call has finished its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Finished.
    Done,
    /// Not finished, but something moved.
    Moved,
    /// Nothing can be done now.
    Pending,
}

/// How far a frame has been sent. Starts as `default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCursor {
    /// Bytes of the payload that the link has taken. The meaning of the rest is the link's own.
    pub taken: u64,
    /// The link's own bookkeeping.
    pub state: u64,
}

/// How far a frame has been received. Starts as `default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvCursor {
    /// Bytes of the payload that have been delivered.
    pub delivered: u64,
    /// The link's own bookkeeping.
    pub state: u64,
}

/// Pieces that [`Link::recv`] delivers start at multiples of this many bytes from the start of the payload, and all
/// but the last have a length that is a multiple of it. It is a multiple of every element size.
pub const PIECE_ALIGN: usize = 64;

/// A way to one peer. See the module's text for the contract.
pub trait Link: Send {
    /// Sends the frame `tag` with this payload.
    fn send(&mut self, tag: Tag, payload: &[u8], cursor: &mut SendCursor) -> Result<Progress>;

    /// Receives the frame `tag` of exactly `len` bytes and hands it on piece by piece: `sink(offset, bytes)`. Each byte
    /// is handed on exactly once; pieces may come in any order, because a large frame travels over several connections
    /// at once.
    fn recv(
        &mut self,
        tag: Tag,
        len: u64,
        cursor: &mut RecvCursor,
        sink: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Progress>;

    /// Receives the frame `tag` into memory. Links that can read straight into it override this.
    fn recv_into(&mut self, tag: Tag, target: &mut [u8], cursor: &mut RecvCursor) -> Result<Progress> {
        let len = target.len() as u64;
        self.recv(tag, len, cursor, &mut |offset, bytes| {
            target[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        })
    }

    /// For the fault injector: damages the next frame that is sent, beneath its checksum and seal, so that the peer
    /// must notice. Says whether this link can do that.
    fn damage_next(&mut self) -> bool {
        false
    }
}

/// Whole small messages to and from one peer, in order, and the news of its death.
pub trait Control: Send {
    /// Queues a message. It leaves as soon as the peer takes it; `flush` reports when all have left.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Queues the last word of a rank that gives up: the peer's `recv` fails with [`crate::Error::PeerAborted`] and
    /// this cause as soon as it has taken the messages before it. `blamed` is the rank that is to blame, if one can be
    /// named, and `class` what the peer's caller can do about it.
    fn send_abort(&mut self, blamed: Option<Rank>, class: ErrorClass, cause: &str) -> Result<()>;

    /// Moves queued messages on.
    fn flush(&mut self) -> Result<Progress>;

    /// The next whole message, if one is there. Fails with [`crate::Error::PeerGone`] when the peer is dead.
    fn recv(&mut self) -> Result<Option<Vec<u8>>>;

    /// Whether the peer has closed the connection or the kernel has, at the end of its process. Unlike the last word of
    /// a peer, this also says that the peer does nothing more in this group.
    fn has_closed(&mut self) -> bool;
}
