//! NCCL, NVIDIA's library of collectives on devices, as far as the engine uses it.
//!
//! A [`Library`] makes communicators ([`NcclCommunicator`]): NCCL itself, opened at run time ([`open`]), or one that is
//! pretended (`crate::pretend::PretendNccl`). A communicator carries out [`Call`]s in the order of a stream, with the
//! same calls on all its ranks.
//!
//! The invariant: no call here waits for another rank. Communicators are made non-blocking, which NCCL can since
//! [`OLDEST`]: what takes long is under way until [`NcclCommunicator::is_ready`] says that it is over. One that is
//! dropped in the middle of something is aborted, on a thread of its own that is waited for only shortly.
//!
//! Not here: which bucket goes through NCCL (`farandole-plan`), and what is packed for it (`farandole-engine`).

mod api;
mod communicator;
mod linked;
mod places;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::{Dtype, ReduceOp};

use crate::{Device, Result};

pub use communicator::NcclCommunicator;
pub use places::{NcclPlaces, open};

/// Bytes of a [`UniqueId`].
pub const UNIQUE_ID_BYTES: usize = 128;

/// The first version whose communicators can be made, used and aborted without blocking in all that we do.
pub const OLDEST: Version = Version(21_800);

/// A version of NCCL, as the library tells it: 23007 is 2.30.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Up to 2.8 the number was made of thousands and hundreds.
        let major = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major, self.0 % major / 100, self.0 % 100)
    }
}

/// What the ranks of a new communicator find each other by. One rank asks for it and tells the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId(pub [u8; UNIQUE_ID_BYTES]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It says where a rank listens.
        f.write_str("UniqueId")
    }
}

/// What NCCL can reduce: an element type that it has, and one of its four operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
}

impl Reduction {
    /// How elements of this type are combined, if NCCL can do that. An average is a sum, which the caller divides.
    /// Bool is a byte that is zero or one: "any" is the larger one and "all" is the smaller one.
    pub fn of(dtype: Dtype, op: ReduceOp) -> Option<Reduction> {
        let (dtype, op) = match (dtype, op) {
            (_, ReduceOp::Adasum) | (Dtype::U16 | Dtype::I16, _) => return None,
            (Dtype::Bool, ReduceOp::Sum | ReduceOp::Max) => (Dtype::U8, ReduceOp::Max),
            (Dtype::Bool, _) => (Dtype::U8, ReduceOp::Min),
            (dtype, ReduceOp::Average) => (dtype, ReduceOp::Sum),
            other => other,
        };
        Some(Reduction { dtype, op })
    }
}

/// One call of NCCL's. Addresses are of the communicator's device; peers and roots are its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Call {
    AllReduce {
        source: u64,
        target: u64,
        elems: u64,
        reduction: Reduction,
    },
    Reduce {
        source: u64,
        target: u64,
        elems: u64,
        reduction: Reduction,
        root: usize,
    },
    Broadcast {
        source: u64,
        target: u64,
        bytes: u64,
        root: usize,
    },
    /// Every rank gives as many bytes.
    AllGather {
        source: u64,
        target: u64,
        bytes: u64,
    },
    /// Every rank gets as many elements.
    ReduceScatter {
        source: u64,
        target: u64,
        elems: u64,
        reduction: Reduction,
    },
    Send {
        source: u64,
        bytes: u64,
        peer: usize,
    },
    Recv {
        target: u64,
        bytes: u64,
        peer: usize,
    },
}

/// Something that makes communicators.
pub trait Library: Send + Sync + fmt::Debug {
    /// Its version. Ranks of one communicator must have the same.
    fn version(&self) -> Version;

    /// What the ranks of a new communicator find each other by.
    ///
    /// # Errors
    /// If the library refuses.
    fn unique_id(&self) -> Result<UniqueId>;

    /// Begins to join the others that have this id. Does not wait for them.
    ///
    /// # Errors
    /// If the library refuses.
    fn join(&self, device: &Device, id: &UniqueId, size: usize, rank: usize) -> Result<Box<dyn Handle>>;
}

/// One rank of a communicator, as a library knows it; [`NcclCommunicator`] owns it.
pub trait Handle: Send + fmt::Debug {
    /// Whether what was begun last, joining or calls, is over. Calls are in the stream from then on.
    ///
    /// # Errors
    /// If something has gone wrong, here or on another rank.
    fn is_ready(&self) -> Result<bool>;

    /// Begins to queue calls as one group.
    ///
    /// # Errors
    /// If the library refuses.
    fn call(&self, stream: u64, calls: &[Call]) -> Result<()>;

    /// Tells the library of memory that will be used often; nothing if it does not care.
    fn register(&self, address: u64, bytes: usize) -> Option<u64>;

    /// Takes that back.
    fn deregister(&self, registration: u64);

    /// Ends it, whatever is under way. May take long.
    fn abort(self: Box<Self>);

    /// Ends it in order, as the other ranks do; after this long it is aborted.
    fn end(self: Box<Self>, limit: Duration);
}

/// A library that others hold, too.
pub type SharedLibrary = Arc<dyn Library>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_write_them() {
        assert_eq!(
            [Version(23_007), Version(22_809), OLDEST, Version(2_708)].map(|version| version.to_string()),
            ["2.30.7", "2.28.9", "2.18.0", "2.7.8"]
        );
    }

    #[test]
    fn what_nccl_cannot_reduce_is_known() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let can = op != ReduceOp::Adasum && !matches!(dtype, Dtype::U16 | Dtype::I16);
                let reduction = Reduction::of(dtype, op);
                assert_eq!(reduction.is_some(), can, "{op} of {dtype}");
                assert!(reduction.is_none_or(|reduction| reduction.op != ReduceOp::Average), "{op} of {dtype}");
            }
        }
        let bool_sum = Reduction::of(Dtype::Bool, ReduceOp::Sum);
        assert_eq!(bool_sum, Some(Reduction { dtype: Dtype::U8, op: ReduceOp::Max }));
    }
}
