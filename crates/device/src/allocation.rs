//! Memory of a device that this process owns: [`Allocation`].

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use farandole_plan::Dtype;
use farandole_tensor::{OnDevice, Region};

use crate::{Backend, Result};

/// Where regions of one allocation begin, as frameworks' allocators place tensors.
const REGION_ALIGN: usize = 512;

/// Given back when it is dropped; by then nothing on the device may use it.
pub struct Allocation {
    backend: Arc<dyn Backend>,
    address: u64,
    bytes: usize,
}

impl Allocation {
    pub(crate) fn new(backend: Arc<dyn Backend>, bytes: usize) -> Result<Allocation> {
        let address = backend.allocate(bytes.max(1))?;
        Ok(Allocation { backend, address, bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Regions of so many bytes each, one after the other at multiples of 512 bytes; together they own it.
    ///
    /// # Panics
    /// If they do not fit, or one is not a whole number of elements.
    pub fn into_regions(self, lengths: &[usize], dtype: Dtype) -> Vec<Region> {
        let (whole, mut start) = (Arc::new(self), 0_usize);
        let region = |&bytes: &usize| {
            let place = OnDevice { ordinal: whole.backend.info().ordinal, address: whole.address + start as u64 };
            start = (start + bytes).next_multiple_of(REGION_ALIGN);
            assert!(place.address + bytes as u64 <= whole.address + whole.bytes as u64, "the regions fit");
            // SAFETY: regions do not overlap, hold the allocation, and nobody else has its address.
            unsafe { Region::on_device(place, bytes, dtype, Arc::clone(&whole)) }
        };
        lengths.iter().map(region).collect()
    }

    /// A region of its first bytes. When that is dropped, `then` gets the allocation back.
    ///
    /// # Panics
    /// If there are not as many bytes, or they are not a whole number of elements.
    pub fn lend(self, bytes: usize, dtype: Dtype, then: impl FnOnce(Allocation) + Send + 'static) -> Region {
        assert!(bytes <= self.bytes, "the region fits");
        let place = OnDevice { ordinal: self.backend.info().ordinal, address: self.address };
        let lent = Lent { allocation: Some(self), then: Some(Box::new(then)) };
        // SAFETY: the region owns the allocation, and nobody else has its address until it is dropped.
        unsafe { Region::on_device(place, bytes, dtype, lent) }
    }

    /// A region of all of it, which owns it.
    ///
    /// # Panics
    /// If it is not a whole number of elements.
    pub fn into_region(self, dtype: Dtype) -> Region {
        let place = OnDevice { ordinal: self.backend.info().ordinal, address: self.address };
        let bytes = self.bytes;
        // SAFETY: the region owns the allocation, and nobody else has its address.
        unsafe { Region::on_device(place, bytes, dtype, self) }
    }
}

/// An allocation that goes back to somebody.
struct Lent {
    allocation: Option<Allocation>,
    then: Option<Box<dyn FnOnce(Allocation) + Send>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(allocation), Some(then)) = (self.allocation.take(), self.then.take()) {
            then(allocation);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.backend.free(self.address);
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation({} bytes at {:#x})", self.bytes, self.address)
    }
}
