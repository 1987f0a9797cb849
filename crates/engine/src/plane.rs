//! Planes that a program adds to the engine: other ways to reduce a bucket than host memory over links or windows.
//!
//! A [`Plane`] says what it carries ([`Offer`]; `plan::plane` chooses by it) and joins each group. A [`PlaneGroup`] is
//! one rank's end in one group; it begins a [`PlaneRun`] for each bucket. The engine's driver calls
//! [`PlaneRun::advance`] until the run is done. None of these calls blocks, except [`Plane::join`].
//!
//! What comes with the seam, and is not the plane's business: agreement, fusion, packing and unpacking, half precision
//! and factors, deadlines, stall reports, records, aborts, and what happens when a rank dies. A run that is given up is
//! dropped, at any point between two calls; it holds no memory of the bucket.
//!
//! **What a plane must guarantee.** (1) All ranks of a group get the same bits. (2) A run that says
//! [`Progress::Pending`] rings the bell that `join` got when it can go on. (3) A run says that it is done only when
//! no peer reads or writes this rank's buffer any more. (4) `waiting_for` names a peer if one can be named.
//!
//! `docs/planes.md` shows how a plane is added, with the one in the engine's tests as the example.

use std::fmt::Debug;

use farandole_plan::{Dtype, GroupId, Rank, Topology};
use farandole_tensor::Fold;
use farandole_transport::{Bell, Progress, Result};

pub use farandole_plan::plane::Offer;

/// A way to reduce buckets. Added by [`crate::Hooks::planes`], in the same order on all ranks.
pub trait Plane: Send + Sync {
    /// What it carries. Must be the same on all ranks; ranks whose offers differ fail at their first request.
    fn offer(&self) -> Offer;

    /// Joins this rank to the others of a group. All of them call this at about the same time. May block for as long
    /// as making connections takes.
    ///
    /// # Errors
    /// If the ranks cannot use this plane together.
    fn join(&self, seat: GroupSeat<'_>) -> Result<Box<dyn PlaneGroup>>;
}

/// What a plane learns of a group.
#[derive(Clone, Debug)]
pub struct GroupSeat<'a> {
    /// The group, told apart from all others that this job has had.
    pub group: GroupId,
    /// This rank inside the group.
    pub me: Rank,
    /// Where the members are.
    pub topology: &'a Topology,
    /// Wakes the driver of this rank.
    pub bell: Bell,
}

/// One rank's end of a plane in one group.
pub trait PlaneGroup: Send {
    /// Begins an allreduce. Numbers of operations grow and are the same on all ranks. An operation may be given up
    /// and begun again under a higher number.
    fn begin(&mut self, operation: u64, elems: u64, dtype: Dtype) -> Box<dyn PlaneRun>;
}

/// One bucket under way.
pub trait PlaneRun: Send + Debug {
    /// Does what can be done now. `work` holds this rank's contribution, the same memory in every call, and at the end
    /// the combination of all.
    ///
    /// # Errors
    /// What ends the group, with the peer that is to blame if one is known.
    fn advance(&mut self, work: &mut [u8], fold: &Fold) -> Result<Progress>;

    /// The peer that it waits for, if one can be named.
    fn waiting_for(&self) -> Option<Rank>;
}
