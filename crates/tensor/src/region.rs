//! Memory that someone else owns, lent to us: [`Region`].
//!
//! A region is a pointer, a length, an element type and whatever keeps the memory alive. The invariant: from its making
//! to its drop, a region is the only one who writes these bytes, and nobody reads them either except through it.
//! Whoever lends foreign memory promises that in [`Region::from_raw_parts`]; the safe constructors hold it by owning
//! the memory.
//!
//! A region may lie in the memory of a *device* ([`Region::on_device`]). The host cannot touch its bytes; whoever asks
//! for them has made a mistake, and panics. When they may be touched on the device is not said here.
//!
//! There is no shape and no stride here: a region is contiguous, and what its dimensions mean is said in the request.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use farandole_plan::Dtype;

use crate::element::{self, Element};
use crate::owned::OwnedBytes;

/// Contiguous tensor memory, lent for reading and writing. Zero bytes are legal.
pub struct Region {
    ptr: NonNull<u8>,
    len_bytes: usize,
    dtype: Dtype,
    /// Where it lies on a device, if it does; then `ptr` is nothing.
    device: Option<OnDevice>,
    /// Dropped last; what it is does not matter here, except to take a vector or buffer back out.
    keep_alive: Box<dyn Any + Send>,
}

/// Where a region lies on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The device, by its number in this process.
    pub ordinal: u32,
    /// The address there.
    pub address: u64,
}

// SAFETY: the region is the only one with access to the memory (invariant of the module), and the keep-alive is `Send`.
unsafe impl Send for Region {}
// SAFETY: a shared region only gives out shared references to bytes; the keep-alive is never touched through one.
unsafe impl Sync for Region {}

/// Keeps memory on a device ([`Region::share_owner`]).
#[derive(Clone, Debug)]
pub struct SharedOwner {
    /// Nobody looks at it; the lock lets threads share it.
    _owner: Arc<Mutex<Box<dyn Any + Send>>>,
}

impl Region {
    /// Lends foreign memory. `keep_alive` is dropped when the region is, possibly on another thread.
    ///
    /// # Safety
    /// Until the region is dropped, `ptr` must be valid for reads and writes of `len_bytes` initialised bytes (it may
    /// be anything when `len_bytes` is zero), and nobody else may read or write them.
    ///
    /// # Panics
    /// If `len_bytes` is not a whole number of elements, or `ptr` is null although there are bytes.
    pub unsafe fn from_raw_parts(
        ptr: *mut u8,
        len_bytes: usize,
        dtype: Dtype,
        keep_alive: impl Any + Send + 'static,
    ) -> Region {
        assert!(
            len_bytes.is_multiple_of(dtype.size_bytes()),
            "{len_bytes} bytes are no whole number of {dtype} elements"
        );
        let ptr = match NonNull::new(ptr) {
            Some(ptr) if len_bytes > 0 => ptr,
            _ => {
                assert!(len_bytes == 0, "a region of {len_bytes} bytes cannot lie at the null address");
                NonNull::dangling()
            }
        };
        Region { ptr, len_bytes, dtype, device: None, keep_alive: Box::new(keep_alive) }
    }

    /// Lends memory of a device. `keep_alive` is dropped when the region is, possibly on another thread.
    ///
    /// # Safety
    /// Until the region is dropped, the device must have `len_bytes` bytes at this address, and nothing else on the
    /// device or the host may read or write them.
    ///
    /// # Panics
    /// If `len_bytes` is not a whole number of elements.
    pub unsafe fn on_device(
        place: OnDevice,
        len_bytes: usize,
        dtype: Dtype,
        keep_alive: impl Any + Send + 'static,
    ) -> Region {
        // SAFETY: no bytes are promised to the host.
        let nothing = unsafe { Region::from_raw_parts(std::ptr::null_mut(), 0, dtype, keep_alive) };
        assert!(
            len_bytes.is_multiple_of(dtype.size_bytes()),
            "{len_bytes} bytes are no whole number of {dtype} elements"
        );
        Region { len_bytes, device: Some(place), ..nothing }
    }

    /// Where it lies on a device, if it does.
    pub fn device(&self) -> Option<OnDevice> {
        self.device
    }

    /// The same region, with something that is dropped together with it: a caller learns from it when its memory is
    /// free.
    pub fn keeping(self, companion: impl Any + Send + 'static) -> Region {
        Region { keep_alive: Box::new((self.keep_alive, companion)), ..self }
    }

    /// The owner of memory on a device, shared: the memory is kept for as long as this or the region lives. For work on
    /// the device that goes on when the region has been given back.
    ///
    /// # Panics
    /// If the region lies in host memory, whose owner can be taken out of it.
    pub fn share_owner(&mut self) -> SharedOwner {
        assert!(self.device.is_some(), "only memory on a device has a shared owner");
        let owner = std::mem::replace(&mut self.keep_alive, Box::new(()));
        let shared = SharedOwner { _owner: Arc::new(Mutex::new(owner)) };
        self.keep_alive = Box::new(shared.clone());
        shared
    }

    /// A region over a vector that it owns. [`Region::into_vec`] gives it back.
    pub fn from_vec<T: Element>(elements: Vec<T>) -> Region {
        let parts = VecParts::new(elements);
        let (ptr, len_bytes) = (parts.ptr.as_ptr().cast(), parts.len_elems * size_of::<T>());
        // SAFETY: `parts` owns the allocation, frees it only when dropped and gives nobody access.
        unsafe { Region::from_raw_parts(ptr, len_bytes, T::DTYPE, parts) }
    }

    /// A region over a buffer that it owns.
    pub fn from_owned_bytes(bytes: OwnedBytes, dtype: Dtype) -> Region {
        let (ptr, len_bytes) = (bytes.start().as_ptr(), bytes.len());
        // SAFETY: the buffer lives in the keep-alive, where nobody reaches it until the region is gone.
        unsafe { Region::from_raw_parts(ptr, len_bytes, dtype, bytes) }
    }

    /// The vector this region was made from, or the region itself if it was not made from a `Vec<T>`.
    pub fn into_vec<T: Element>(mut self) -> Result<Vec<T>, Region> {
        if !self.keep_alive.is::<VecParts<T>>() {
            return Err(self);
        }
        // Bytes written through `as_bytes_mut` may be anything; a `bool` may not.
        element::normalise(self.dtype, self.as_bytes_mut());
        let parts = self.keep_alive.downcast::<VecParts<T>>().expect("invariant: the type was just checked");
        Ok(parts.into_vec())
    }

    /// The bytes, for reading.
    ///
    /// # Panics
    /// If they lie on a device.
    pub fn as_bytes(&self) -> &[u8] {
        self.check_host();
        // SAFETY: valid and initialised for `len_bytes` (promised to `from_raw_parts`), borrowed through `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) }
    }

    /// The bytes, for writing.
    ///
    /// # Panics
    /// If they lie on a device.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.check_host();
        // SAFETY: as in `as_bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) }
    }

    #[inline]
    fn check_host(&self) {
        assert!(self.device.is_none(), "invariant: the host does not touch the memory of a device");
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Number of elements.
    pub fn len_elems(&self) -> usize {
        self.len_bytes / self.dtype.size_bytes()
    }

    /// Whether there are no elements at all.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            None => write!(f, "Region({} x {} at {:p})", self.len_elems(), self.dtype, self.ptr),
            Some(OnDevice { ordinal, address }) => {
                write!(f, "Region({} x {} at {address:#x} of device {ordinal})", self.len_elems(), self.dtype)
            }
        }
    }
}

/// A vector taken apart, so that the region's pointer is the only one in use while the region lives.
struct VecParts<T: Element> {
    ptr: NonNull<T>,
    len_elems: usize,
    capacity_elems: usize,
}

// SAFETY: it owns its allocation alone, as the vector did, and elements are `Send`.
unsafe impl<T: Element> Send for VecParts<T> {}

impl<T: Element> VecParts<T> {
    fn new(elements: Vec<T>) -> Self {
        let mut elements = ManuallyDrop::new(elements);
        let ptr = NonNull::new(elements.as_mut_ptr()).expect("invariant: a vector's pointer is never null");
        VecParts { ptr, len_elems: elements.len(), capacity_elems: elements.capacity() }
    }

    fn into_vec(self) -> Vec<T> {
        let parts = ManuallyDrop::new(self);
        // SAFETY: these are the parts of the vector given to `new`; `ManuallyDrop` keeps `drop` from freeing them too.
        unsafe { Vec::from_raw_parts(parts.ptr.as_ptr(), parts.len_elems, parts.capacity_elems) }
    }
}

impl<T: Element> Drop for VecParts<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_vec`. Elements have no destructors, so length zero frees the memory without reading
        // it: bytes of a `bool` vector need not be valid here.
        drop(unsafe { Vec::from_raw_parts(self.ptr.as_ptr(), 0, self.capacity_elems) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn memory_on_a_device_is_kept_by_whoever_shares_its_owner() {
        let owner = Arc::new(());
        let place = OnDevice { ordinal: 0, address: 4096 };
        // SAFETY: nothing touches the memory.
        let mut region = unsafe { Region::on_device(place, 8, Dtype::F32, Arc::clone(&owner)) };
        let (first, second) = (region.share_owner(), region.share_owner());
        drop(region);
        drop(first);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_vector_comes_back_with_what_was_written() {
        let mut region = Region::from_vec(vec![1.0f32, 2.0, 3.0]);
        assert_eq!((region.len_bytes(), region.len_elems(), region.dtype()), (12, 3, Dtype::F32));
        region.as_bytes_mut()[4..8].copy_from_slice(&7.5f32.to_ne_bytes());
        let region = region.into_vec::<i32>().expect_err("an f32 region holds no vector of i32");
        assert_eq!(region.into_vec::<f32>().expect("the type it was made from"), [1.0, 7.5, 3.0]);
    }

    #[test]
    fn bool_vectors_come_back_valid_whatever_was_written() {
        let mut region = Region::from_vec(vec![false; 3]);
        region.as_bytes_mut().copy_from_slice(&[0, 255, 1]);
        assert_eq!(region.into_vec::<bool>().expect("the type it was made from"), [false, true, true]);
        let mut dropped = Region::from_vec(vec![false; 3]);
        dropped.as_bytes_mut().fill(9);
    }

    #[test]
    fn empty_regions_are_legal() {
        let mut region = Region::from_vec(Vec::<f64>::new());
        assert!(region.is_empty() && region.as_bytes_mut().is_empty());
        // SAFETY: there are no bytes to be valid.
        let null = unsafe { Region::from_raw_parts(std::ptr::null_mut(), 0, Dtype::I8, ()) };
        assert!(null.as_bytes().is_empty());
        assert!(Region::from_owned_bytes(OwnedBytes::zeroed(0), Dtype::F32).is_empty());
    }

    #[test]
    fn owned_bytes_are_read_and_written() {
        let mut region = Region::from_owned_bytes(OwnedBytes::zeroed(8), Dtype::U16);
        region.as_bytes_mut()[3] = 4;
        assert_eq!(region.as_bytes(), [0, 0, 0, 4, 0, 0, 0, 0]);
    }

    #[test]
    fn the_keep_alive_goes_with_the_region_on_whichever_thread() {
        struct Lender(Arc<AtomicBool>, Vec<u32>);
        impl Drop for Lender {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let returned = Arc::new(AtomicBool::new(false));
        let mut lender = Lender(Arc::clone(&returned), vec![1, 2]);
        let (ptr, len_bytes) = (lender.1.as_mut_ptr().cast(), 8);
        // SAFETY: the lender moves into the keep-alive, so its vector lives as long and nobody else uses it.
        let mut region = unsafe { Region::from_raw_parts(ptr, len_bytes, Dtype::U32, lender) };
        std::thread::spawn(move || {
            region.as_bytes_mut().fill(1);
            assert_eq!(element::from_bytes::<u32>(region.as_bytes()), Some(&[0x0101_0101u32; 2][..]));
        })
        .join()
        .expect("the thread only writes");
        assert!(returned.load(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "the host does not touch the memory of a device")]
    fn bytes_on_a_device_are_not_for_the_host() {
        let place = OnDevice { ordinal: 0, address: 256 };
        // SAFETY: nobody touches it.
        let region = unsafe { Region::on_device(place, 8, Dtype::F32, ()) };
        assert_eq!((region.device(), region.len_elems()), (Some(place), 2));
        region.as_bytes();
    }

    #[test]
    #[should_panic(expected = "no whole number of int32 elements")]
    fn half_an_element_is_refused() {
        Region::from_owned_bytes(OwnedBytes::zeroed(6), Dtype::I32);
    }
}
