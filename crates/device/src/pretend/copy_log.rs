//! The order in which a pretended device copies to and from the host: [`CopyLog`].

use std::sync::{Arc, Mutex, PoisonError};

/// Copies between a device and pinned memory, in the order in which they were queued. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct CopyLog(Arc<Mutex<Vec<HostCopy>>>);

/// A copy between a device and pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCopy {
    /// From the device.
    ToHost,
    /// To the device.
    ToDevice,
}

impl CopyLog {
    /// What was queued so far.
    pub fn copies(&self) -> Vec<HostCopy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, copy: HostCopy) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
    }
}
