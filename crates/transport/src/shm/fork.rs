//! Tells a forked child that what it holds is not its own.
//!
//! After `fork` the child has copies of all sockets and mappings of its parent, but not its threads; using them would
//! disturb the parent. The kernel can wipe a page in the child: a non-zero byte there means "still the process that
//! made this". Asking costs one load, where asking for the process id would cost a system call.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::segment::PAGE_BYTES;
use crate::error::{Error, Result};

/// Knows whether this process made it.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<u8>,
}

// SAFETY: the page is private memory that lives as long as the guard and is accessed as an atomic only.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Marks this process as the owner.
    pub fn new() -> Result<ForkGuard> {
        // SAFETY: a null hint lets the kernel choose a free range.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::local("mapping a page", e))?;
        let guard = ForkGuard { page: NonNull::new(page.cast()).expect("mmap does not return null") };
        // SAFETY: exactly the page that was just mapped, to which nobody else has a pointer.
        unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }
            .map_err(|e| Error::local("asking for a page that fork wipes", e))?;
        guard.mark().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this is still the process that made the guard.
    pub fn is_owner(&self) -> bool {
        self.mark().load(Ordering::Relaxed) != 0
    }

    fn mark(&self) -> &AtomicU8 {
        // SAFETY: the page is mapped as long as the guard lives, and its first byte is only ever used as an atomic.
        unsafe { self.page.cast().as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: exactly the page that `new` mapped; the guard is the only holder of its address.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_the_owner() {
        assert!(ForkGuard::new().unwrap().is_owner());
    }
}
