//! One accelerator as this process sees it: [`Device`].

use std::fmt;
use std::sync::Arc;

use crate::{Allocation, Backend, DeviceCopy, Event, Export, Pinned, Result, Stream, WordMemory, Words};

/// The number of a physical device, which does not depend on what a process may see of the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is known about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its number in this process.
    pub ordinal: u32,
    /// Which device it is, for every process.
    pub uuid: Uuid,
    /// What the vendor calls it.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// The version of the driver, as it is written: 13.0.
    pub driver: String,
    /// Whether kernels of several processes run at the same time (MPS); otherwise the processes take turns.
    pub runs_processes_at_once: bool,
}

/// See the module's text. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// A device of this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Device {
        Device { backend }
    }

    /// What is known about it.
    pub fn info(&self) -> &Info {
        self.backend.info()
    }

    /// Memory of its own.
    ///
    /// # Errors
    /// If there is none left.
    pub fn allocate(&self, bytes: usize) -> Result<Allocation> {
        Allocation::new(Arc::clone(&self.backend), bytes)
    }

    /// Host memory that this device copies to and from.
    ///
    /// # Errors
    /// If there is none left.
    pub fn allocate_pinned(&self, bytes: usize) -> Result<Pinned> {
        Pinned::new(Arc::clone(&self.backend), bytes)
    }

    /// A stream.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(Arc::clone(&self.backend))
    }

    /// Words of host memory, for streams of this device. Nothing else in the same page of this process is registered.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if its streams cannot wait for memory; if the driver refuses.
    pub fn words(&self, memory: WordMemory) -> Result<Words> {
        Words::new(Arc::clone(&self.backend), memory)
    }

    /// An event in a stream that somebody else owns, behind everything that is there. `stream` is the driver's handle;
    /// zero is the default stream.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub fn record_in(&self, stream: u64) -> Result<Event> {
        let event = Event::new(Arc::clone(&self.backend))?;
        self.backend.record(event.handle(), stream)?;
        Ok(event)
    }

    /// Queues copies within the device in a stream that somebody else owns.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub fn copy_in(&self, stream: u64, copies: &[DeviceCopy]) -> Result<()> {
        if copies.iter().all(|copy| copy.bytes == 0) { Ok(()) } else { self.backend.copy(stream, copies) }
    }

    /// What other processes need to map the allocation in which an address lies.
    ///
    /// # Errors
    /// [`crate::Error::NotShareable`] if the memory is of a kind that cannot be mapped.
    pub fn export(&self, address: u64) -> Result<Export> {
        self.backend.export(address)
    }

    /// Copies from the device and waits for it.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn read_and_wait(&self, address: u64, target: &mut [u8]) -> Result<()> {
        self.backend.read_and_wait(address, target)
    }

    /// Copies to the device and waits for it.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn write_and_wait(&self, address: u64, source: &[u8]) -> Result<()> {
        self.backend.write_and_wait(address, source)
    }

    /// Calls this with the device current on this thread.
    pub(crate) fn run_current<R>(&self, call: impl FnOnce() -> R) -> Result<R> {
        let (mut call, mut result) = (Some(call), None);
        self.backend.call_current(&mut || result = call.take().map(|call| call()))?;
        Ok(result.expect("invariant: a backend calls what it is given"))
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_their_vendor_names_them() {
        let uuid = Uuid(std::array::from_fn(|index| index as u8));
        assert_eq!(uuid.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
