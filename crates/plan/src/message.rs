//! What ranks tell each other to agree; encode beside decode.

use std::sync::Arc;

use crate::request::Request;
use crate::validate::Item;

/// A request on its way to the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The request.
    pub request: Request,
    /// How many buckets had finished on this rank when the request was made: it cannot depend on any later one.
    pub seen: u64,
}

/// An agreed item on its way to the members.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The item.
    pub item: Arc<Item>,
    /// The greatest `seen` of its announcements: it may depend on the results of buckets before this index.
    pub seen: u64,
}

/// One message of the agreement protocol. The control line keeps their order for each pair of ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Member to coordinator: requests made here, in order.
    Announce {
        /// The sender's generation; older ones are ignored.
        generation: u32,
        /// The requests.
        requests: Vec<Announcement>,
    },
    /// Coordinator to all: the next batch of the agreed stream.
    Agreed {
        /// The generation.
        generation: u32,
        /// Items in order.
        items: Vec<Agreed>,
    },
    /// Coordinator: these names will not run.
    Refuse {
        /// The names.
        names: Vec<Arc<str>>,
        /// Why.
        reason: Arc<str>,
    },
    /// Coordinator to all: everybody has joined.
    Joined {
        /// The last one (group rank).
        last: u32,
    },
    /// Coordinator to all: the last `items` items of the stream are the cycle; replay it from here on.
    Replay {
        /// The generation.
        generation: u32,
        /// Length of the cycle.
        items: u32,
        /// Hash of the cycle.
        hash: u64,
    },
    /// Member to coordinator: something does not fit.
    Break {
        /// The generation whose replay is to end.
        generation: u32,
    },
    /// Coordinator to all: enter no more buckets and answer.
    Halt {
        /// The generation.
        generation: u32,
    },
    /// Member to coordinator: the answer to `Halt`.
    Halted {
        /// The generation.
        generation: u32,
        /// Buckets that this rank has entered or is bound to enter.
        entered: u64,
        /// Buckets that have finished here.
        completed: u64,
    },
    /// Coordinator to all: buckets before `until` finish, later ones are abandoned; negotiate again.
    Resume {
        /// The new generation.
        generation: u32,
        /// See above.
        until: u64,
    },
    /// Member to coordinator: please close the group.
    Close,
    /// Coordinator to all: the end of the agreed stream.
    Closed {
        /// Why.
        cause: Arc<str>,
    },
    /// Anybody to anybody: the group has failed.
    Abort {
        /// The first cause.
        cause: Arc<str>,
    },
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where decoding stopped.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl Message {
    /// Appends the encoded message.
    pub fn encode(&self, _into: &mut Vec<u8>) {
        unimplemented!()
    }

    /// Reads one message that fills all of `bytes`.
    ///
    /// # Errors
    /// Anything that `encode` would not have written.
    pub fn decode(_bytes: &[u8]) -> Result<Message, Malformed> {
        unimplemented!()
    }
}
