//! Device memory for results whose size only the agreement tells: [`ResultPool`].
//!
//! Allocating on a device takes far longer than a small collective, and freeing waits for the device. So memory of
//! results that callers have given back is kept, up to a limit, and used again. A result is given back when its region
//! is dropped; by then nothing on the device uses it, which is what whoever gets a region in an outcome has to see to.

use std::sync::{Arc, Mutex, PoisonError};

use farandole_device::{Allocation, Device, Result};
use farandole_plan::Dtype;
use farandole_tensor::Region;

/// Free memory that is kept. Results of a training program (rows of metrics, of sparse gradients) fit many times.
const KEPT_BYTES: usize = 256 << 20;

/// Smallest allocation: what a driver rounds up to anyway is of this order.
const LEAST_BYTES: usize = 64 << 10;

/// See the module's text. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResultPool(Arc<Mutex<Free>>);

/// Locked for a moment: by the driver that takes, and by whatever thread drops a result.
#[derive(Debug, Default)]
struct Free {
    allocations: Vec<Allocation>,
    bytes: usize,
}

impl ResultPool {
    /// Memory of so many bytes, as a region that gives it back.
    ///
    /// # Errors
    /// If the device has none left.
    pub(crate) fn take(&self, device: &Device, bytes: usize, dtype: Dtype) -> Result<Region> {
        let rounded = bytes.next_power_of_two().max(LEAST_BYTES);
        let allocation = match self.find(rounded) {
            Some(allocation) => allocation,
            None => device.allocate(rounded)?,
        };
        let pool = self.clone();
        Ok(allocation.lend(bytes, dtype, move |allocation| pool.give_back(allocation)))
    }

    fn find(&self, bytes: usize) -> Option<Allocation> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.allocations.iter().position(|allocation| allocation.len_bytes() == bytes)?;
        free.bytes -= bytes;
        Some(free.allocations.swap_remove(place))
    }

    fn give_back(&self, allocation: Allocation) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dropped = Vec::new();
        free.bytes += allocation.len_bytes();
        free.allocations.push(allocation);
        while free.bytes > KEPT_BYTES {
            // The oldest: what was given back last is the likeliest to be asked for again.
            let oldest = free.allocations.remove(0);
            free.bytes -= oldest.len_bytes();
            dropped.push(oldest);
        }
        drop(free);
        // Freeing waits for the device, so without the lock.
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::pretend::Pretend;

    use super::*;

    #[test]
    fn memory_that_was_given_back_is_used_again() {
        let (device, pool) = (Pretend::new().device(), ResultPool::default());
        let first = pool.take(&device, 100, Dtype::U8).unwrap();
        let place = first.device();
        assert_eq!(first.len_bytes(), 100);
        let second = pool.take(&device, 100, Dtype::U8).unwrap();
        assert_ne!(second.device(), place);
        drop(first);
        assert_eq!(pool.take(&device, 4000, Dtype::F32).unwrap().device(), place);
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let (device, pool) = (Pretend::new().device(), ResultPool::default());
        let results: Vec<Region> = (0..5).map(|_| pool.take(&device, KEPT_BYTES / 4, Dtype::U8).unwrap()).collect();
        drop(results);
        assert_eq!(pool.0.lock().unwrap().bytes, KEPT_BYTES);
    }
}
