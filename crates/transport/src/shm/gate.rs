//! Where a fault can strike what a rank does in shared memory: [`Point`], and who decides: [`Gate`].
//!
//! Links and control lines are trait objects, so a fault injector can be put in their place. Windows are not, because
//! the shortest way through them takes less time than a call through a table. Instead [`super::Windows`] may have a
//! gate, which is asked before each thing that peers could notice: before an operation is begun, when all are seen to
//! have begun it, before each step of its schedule, before it ends, and when a mapped buffer is made. Without a gate
//! that is one look at a field, once a point.
//!
//! A point that is tried again, because what it waits for has not come, is the same point.
//!
//! Deliberately not here: what happens (`crate::fault`).

use std::fmt::Debug;

use crate::error::Result;

/// A place in an operation on windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The rank is about to say that it has begun.
    Begin,
    /// The rank has seen that all have begun.
    Gathered,
    /// The rank is about to take this step of the schedule.
    Step(usize),
    /// The rank has taken all steps and is about to say so.
    Finish,
    /// The rank is about to make room for a mapped buffer.
    Reserve,
    /// The rank is about to map what all have made room for.
    Map,
}

/// Whether something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It does.
    Open,
    /// It does not, now or ever.
    Shut,
}

/// Decides at each point of one rank.
pub trait Gate: Debug + Send {
    /// The rank has come to this point of this operation, or tries it again.
    ///
    /// # Errors
    /// The rank cannot go on at all.
    fn pass(&mut self, operation: u64, point: Point) -> Result<Pass>;
}
