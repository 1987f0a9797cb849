//! Memory of our own for outputs and scratch: [`OwnedBytes`].
//!
//! It starts on a cache line, so kernels and streaming stores work on whole lines, and it is zeroed by the allocator
//! (for large sizes that is untouched memory from the system, which costs nothing until it is written). It never grows.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The size of a cache line on every machine we know, and of the widest vector register.
pub const LINE_BYTES: usize = 64;

/// An owned byte buffer that starts on a cache line. Zero bytes are legal.
pub struct OwnedBytes {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the buffer is owned by this value alone, like a `Box<[u8]>`.
unsafe impl Send for OwnedBytes {}
// SAFETY: a shared reference only gives out shared references to bytes.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    /// A buffer of zeros.
    pub fn zeroed(len_bytes: usize) -> Self {
        if len_bytes == 0 {
            return OwnedBytes { ptr: dangling(), len_bytes };
        }
        let layout = layout(len_bytes);
        // SAFETY: the layout has a size above zero.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        OwnedBytes { ptr, len_bytes }
    }

    /// A buffer with these contents.
    pub fn from_slice(contents: &[u8]) -> Self {
        let mut bytes = OwnedBytes::zeroed(contents.len());
        bytes.copy_from_slice(contents);
        bytes
    }

    /// Where the buffer starts; valid for reads and writes of its length while the buffer lives.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.ptr
    }
}

impl Deref for OwnedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len_bytes` initialised bytes (`zeroed`) and borrowed through `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for OwnedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        if self.len_bytes > 0 {
            // SAFETY: allocated in `zeroed` with this very layout, and nobody else frees it.
            unsafe { dealloc(self.ptr.as_ptr(), layout(self.len_bytes)) }
        }
    }
}

impl Clone for OwnedBytes {
    fn clone(&self) -> Self {
        OwnedBytes::from_slice(self)
    }
}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedBytes({} bytes)", self.len_bytes)
    }
}

fn layout(len_bytes: usize) -> Layout {
    Layout::from_size_align(len_bytes, LINE_BYTES).expect("invariant: a buffer is smaller than the address space")
}

fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(std::num::NonZero::<usize>::new(LINE_BYTES).expect("invariant: a line has bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_on_a_line_and_hold_zeros() {
        for len_bytes in [0, 1, 63, 64, 65, 4097] {
            let mut bytes = OwnedBytes::zeroed(len_bytes);
            assert_eq!(bytes.as_ptr().addr() % LINE_BYTES, 0);
            assert_eq!(bytes.len(), len_bytes);
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(3);
            assert_eq!(&bytes.clone()[..], &bytes[..]);
        }
    }
}
