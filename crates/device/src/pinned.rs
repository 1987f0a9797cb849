//! Host memory that a device copies to and from: [`Pinned`].

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Backend, Result};

/// Given back when it is dropped. While a copy from or to it is under way nobody may look at its bytes or drop it:
/// whoever queues one ([`crate::Stream::copy_to_pinned`]) waits for an event behind it first.
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

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, initialised, and lent out by `&mut self`. Devices write to it only in copies that
        // whoever has queued them has waited for (the type's text).
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }

    pub(crate) fn memory(&mut self) -> NonNull<u8> {
        self.memory
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
        stream.copy_to_pinned(memory.address(), &mut pinned, 4).unwrap();
        stream.wait_until_empty().unwrap();
        assert_eq!(pinned.bytes_mut()[..5], [1, 2, 3, 4, 0]);
        pinned.bytes_mut()[0] = 9;
        stream.copy_from_pinned(&mut pinned, memory.address() + 4, 2).unwrap();
        stream.wait_until_empty().unwrap();
        let mut bytes = [0; 8];
        device.read_and_wait(memory.address(), &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 9, 2, 7, 8]);
    }
}
