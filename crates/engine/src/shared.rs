//! What the engine, its tickets and its worker have in common.

use std::sync::Arc;

use farandole_trace::Recorder;
use farandole_transport::shm::ForkGuard;

use crate::driver_lock::DriverLock;
use crate::error::{Error, Result};
use crate::tensor_table::TensorTable;

/// Alive as long as the engine or one of its tickets.
pub(crate) struct Shared {
    pub(crate) driver_lock: DriverLock,
    pub(crate) tensor_table: Arc<TensorTable>,
    pub(crate) fork: ForkGuard,
    /// Where threads that wait for their tickets say so.
    pub(crate) recorder: Arc<Recorder>,
}

impl Shared {
    /// A forked child has our memory but not our worker, and our sockets are its parent's: it must not touch anything.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.fork.is_owner() { Ok(()) } else { Err(Error::Forked) }
    }
}
