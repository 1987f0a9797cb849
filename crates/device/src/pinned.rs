//! Host memory that a device copies to and from: [`Pinned`].

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Backend, Result};

/// Given back when it is dropped. While a copy from or to it is under way nobody may drop it, look at bytes that the
/// copy writes, or write to bytes that it reads: whoever queues one ([`crate::Stream::copy_to_pinned`]) waits for an
/// event behind it first. Other bytes may be used meanwhile.
pub struct Pinned {
    backend: Arc<dyn Backend>,
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and the backend may be called from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(backend: Arc<dyn Backend>, bytes: usize) -> Result<Pinned> {
        let memory = backend.allocate_pinned(bytes.max(1))?;
        // SAFETY: the backend has just given us so many bytes. From now on all of them are initialised.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Pinned { backend, memory, bytes })
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Its bytes. Those of copies that are under way are not to be touched (the type's text).
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, initialised, and lent out by `&mut self`. Bytes that a device uses meanwhile are
        // not accessed through this slice: whoever has queued a copy waits for it first (the type's text).
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }

    /// Where a range of it lies.
    ///
    /// # Panics
    /// If it has no such bytes.
    pub(crate) fn place(&mut self, range: &Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "the bytes are there");
        // SAFETY: the range lies within our memory.
        unsafe { self.memory.add(range.start) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.backend.free_pinned(self.memory);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::pretend::Pretend;

    #[test]
    fn bytes_come_from_the_device_and_go_back_to_it() {
        let device = Pretend::new().device();
        let (memory, stream) = (device.allocate(8).unwrap(), device.stream().unwrap());
        let mut pinned = device.allocate_pinned(16).unwrap();
        assert!(pinned.bytes_mut().iter().all(|byte| *byte == 0));
        device.write_and_wait(memory.address(), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        stream.copy_to_pinned(memory.address(), &mut pinned, 3..7).unwrap();
        stream.wait_until_empty().unwrap();
        assert_eq!(pinned.bytes_mut()[..8], [0, 0, 0, 1, 2, 3, 4, 0]);
        pinned.bytes_mut()[3] = 9;
        stream.copy_from_pinned(&mut pinned, 3..5, memory.address() + 4).unwrap();
        stream.wait_until_empty().unwrap();
        let mut bytes = [0; 8];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 9, 2, 7, 8]);
    }
}
