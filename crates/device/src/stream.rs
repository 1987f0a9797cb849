//! A queue of work for a device: [`Stream`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{Backend, DeviceAdasum, DeviceCopy, DeviceFold, Event, Pinned, Result, Words};

/// Work in it runs in the order in which it was queued.
pub struct Stream {
    backend: Arc<dyn Backend>,
    handle: u64,
}

impl Stream {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Result<Stream> {
        let handle = backend.create_stream()?;
        Ok(Stream { backend, handle })
    }

    /// The driver's handle, which lives as long as this stream.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// An event behind everything that is queued.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(Arc::clone(&self.backend))?;
        self.backend.record(event.handle(), self.handle)?;
        Ok(event)
    }

    /// The same with an event that knows when it happened.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn record_timed(&self) -> Result<Event> {
        let event = Event::timed(Arc::clone(&self.backend))?;
        self.backend.record(event.handle(), self.handle)?;
        Ok(event)
    }

    /// Makes what is queued from now on wait for an event.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.backend.wait_event(self.handle, event.handle())
    }

    /// Queues a store to a word, behind everything that is stored before.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn write_word(&self, words: &Words, index: usize, value: u32) -> Result<()> {
        self.backend.write_word(self.handle, words.address(index), value)
    }

    /// Makes what is queued from now on wait until a word has this value or a later one.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn wait_word(&self, words: &Words, index: usize, value: u32) -> Result<()> {
        self.backend.wait_word(self.handle, words.address(index), value)
    }

    /// Calls this, on a thread of the driver's, when the device has come here. It must not call the device.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn call_when_reached(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        self.backend.call_when_reached(self.handle, Box::new(call))
    }

    /// Queues a fold.
    ///
    /// # Errors
    /// As [`Stream::record`].
    ///
    /// # Panics
    /// If there is not one address for each contribution and target of each segment, or the result cannot have this
    /// type.
    pub fn fold(&self, folding: &DeviceFold<'_>) -> Result<()> {
        assert_eq!(folding.addresses.len(), folding.elems.len() * folding.width(), "one address for each place");
        let can_store = DeviceFold::can_store(folding.dtype, folding.stored, folding.op);
        let apart = folding.dtype == folding.stored || folding.targets > 0;
        assert!(can_store && apart, "{} of {} is not stored as {}", folding.op, folding.dtype, folding.stored);
        if folding.elems.iter().all(|&elems| elems == 0) { Ok(()) } else { self.backend.fold(self.handle, folding) }
    }

    /// Queues combinations by adaptive summation.
    ///
    /// # Errors
    /// As [`Stream::record`].
    ///
    /// # Panics
    /// If the elements are no floats, or pairs do not have as many targets each, one at least.
    pub fn adasum(&self, combining: &DeviceAdasum<'_>) -> Result<()> {
        assert!(combining.dtype.is_float(), "Adasum of {} is not defined", combining.dtype);
        if combining.pairs.is_empty() {
            return Ok(());
        }
        let width = combining.width();
        assert!(width > 0 && combining.targets.len() == combining.pairs.len() * width, "as many targets for each pair");
        self.backend.adasum(self.handle, combining)
    }

    /// Queues copies between memory of devices.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn copy(&self, copies: &[DeviceCopy]) -> Result<()> {
        if copies.iter().all(|copy| copy.bytes == 0) { Ok(()) } else { self.backend.copy(self.handle, copies) }
    }

    /// Queues a copy from the device to a range of pinned memory. Nobody touches those bytes before that is done.
    ///
    /// # Errors
    /// As [`Stream::record`].
    ///
    /// # Panics
    /// If there is no such range.
    pub fn copy_to_pinned(&self, source: u64, target: &mut Pinned, range: Range<usize>) -> Result<()> {
        let place = target.place(&range);
        if range.is_empty() { Ok(()) } else { self.backend.copy_to_pinned(self.handle, source, place, range.len()) }
    }

    /// Queues a copy of a range of pinned memory to the device. Nobody writes to those bytes before that is done.
    ///
    /// # Errors
    /// As [`Stream::record`].
    ///
    /// # Panics
    /// If there is no such range.
    pub fn copy_from_pinned(&self, source: &mut Pinned, range: Range<usize>, target: u64) -> Result<()> {
        let place = source.place(&range);
        if range.is_empty() { Ok(()) } else { self.backend.copy_from_pinned(self.handle, place, target, range.len()) }
    }

    /// Waits until everything that is queued is done.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn wait_until_empty(&self) -> Result<()> {
        self.backend.wait_until_empty(self.handle)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.backend.destroy_stream(self.handle);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.handle)
    }
}
