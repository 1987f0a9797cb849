//! A mark in a stream: [`Event`].

use std::fmt;
use std::sync::Arc;

use crate::{Backend, Result};

/// Has happened once the device has come to the place in the stream where it was recorded. Clones are the same mark.
#[derive(Clone)]
pub struct Event(Arc<Owned>);

struct Owned {
    backend: Arc<dyn Backend>,
    handle: u64,
}

impl Event {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Result<Event> {
        let handle = backend.create_event()?;
        Ok(Event(Arc::new(Owned { backend, handle })))
    }

    /// One that knows when it happened.
    pub(crate) fn timed(backend: Arc<dyn Backend>) -> Result<Event> {
        let handle = backend.create_timed_event()?;
        Ok(Event(Arc::new(Owned { backend, handle })))
    }

    /// Nanoseconds from another event to this one, both of [`crate::Stream::record_timed`]; `None` if one of them has
    /// not happened.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn ns_since(&self, earlier: &Event) -> Result<Option<u64>> {
        self.0.backend.elapsed_ns(earlier.0.handle, self.0.handle)
    }

    /// Whether the device has come to it.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn has_happened(&self) -> Result<bool> {
        self.0.backend.has_happened(self.0.handle)
    }

    /// Makes a stream that somebody else owns wait for it. `stream` is the driver's handle.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub fn make_wait(&self, stream: u64) -> Result<()> {
        self.0.backend.wait_event(stream, self.0.handle)
    }

    /// The driver's handle, which lives as long as this event.
    pub fn handle(&self) -> u64 {
        self.0.handle
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.backend.destroy_event(self.handle);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.0.handle)
    }
}
