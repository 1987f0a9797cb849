//! What a kind of device must be able to do: [`Backend`].
//!
//! Handles are numbers here; [`crate::Device`], [`crate::Stream`], [`crate::Event`] and [`crate::Allocation`] own them.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::Finish;
use farandole_transport::ProcessId;

use crate::{DeviceAdasum, Export, Info, Result};

/// A fold: for each segment, the contributions of some ranks are combined in their order, and the result is stored
/// where they lie, or in other places. With one contribution and another target it is a copy that scales.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFold<'a> {
    /// The element type of the contributions. Halves are combined and finished as singles and rounded once.
    pub dtype: Dtype,
    /// The element type of the result: the same, or single precision for halves and halves for single precision
    /// ([`DeviceFold::can_store`]), in other places than the contributions.
    pub stored: Dtype,
    /// How contributions are combined; Average is a Sum with a finish. Not Adasum.
    pub op: ReduceOp,
    /// Multiplied with every contribution first.
    pub prescale: f64,
    /// Done to every result.
    pub finish: Finish,
    /// Contributions of each segment.
    pub ranks: usize,
    /// Places where each result is stored; zero: where the contributions lie.
    pub targets: usize,
    /// Elements of each segment.
    pub elems: &'a [u64],
    /// For each segment, the addresses of its contributions in the order of the ranks, then those of its targets. A
    /// target may be one of the contributions; otherwise they do not overlap.
    pub addresses: &'a [u64],
}

impl DeviceFold<'_> {
    /// Whether contributions of one type can be combined to a result of another one.
    pub fn can_store(dtype: Dtype, stored: Dtype, op: ReduceOp) -> bool {
        let is_half = |dtype| matches!(dtype, Dtype::F16 | Dtype::BF16);
        let sums = matches!(op, ReduceOp::Sum | ReduceOp::Average);
        dtype == stored || is_half(dtype) && stored == Dtype::F32 || dtype == Dtype::F32 && is_half(stored) && sums
    }

    /// Addresses of each segment.
    pub(crate) fn width(&self) -> usize {
        self.ranks + self.targets
    }
}

/// Bytes to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCopy {
    /// Where they lie.
    pub source: u64,
    /// Where they go.
    pub target: u64,
    /// How many.
    pub bytes: u64,
}

/// One device as one process sees it. Calls may come from any thread, and none waits for the device unless it says so.
pub trait Backend: Send + Sync + Debug {
    /// What is known about the device.
    fn info(&self) -> &Info;

    /// The process whose memory this is.
    fn process(&self) -> ProcessId {
        ProcessId::own()
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Gives memory back. Nothing may use it any more.
    fn free(&self, address: u64);

    /// A queue of work that runs in order.
    ///
    /// # Errors
    /// If the driver refuses.
    fn create_stream(&self) -> Result<u64>;

    /// Ends a stream; what is in it still runs.
    fn destroy_stream(&self, stream: u64);

    /// A mark that can be put into streams.
    ///
    /// # Errors
    /// If the driver refuses.
    fn create_event(&self) -> Result<u64>;

    /// A mark that knows when it was reached, on the device's clock. It costs more. A device without a clock has none.
    ///
    /// # Errors
    /// If the driver refuses.
    fn create_timed_event(&self) -> Result<u64> {
        self.create_event()
    }

    /// Nanoseconds between two such marks; `None` if one of them has not been reached, or nobody knows.
    ///
    /// # Errors
    /// If the device has failed.
    fn elapsed_ns(&self, _from: u64, _to: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Gives a mark back.
    fn destroy_event(&self, event: u64);

    /// Puts a mark into a stream, behind everything that is there.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    fn record(&self, event: u64, stream: u64) -> Result<()>;

    /// Makes what comes into a stream from now on wait for a mark.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn wait_event(&self, stream: u64, event: u64) -> Result<()>;

    /// Whether a mark has been reached.
    ///
    /// # Errors
    /// If the device has failed.
    fn has_happened(&self, event: u64) -> Result<bool>;

    /// Calls this on a thread of the driver's when the stream has come here. It must not call the device.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn call_when_reached(&self, stream: u64, call: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// Lets streams write words of host memory and wait for them; returns where the device finds the first. They lie in
    /// one page, and live until they are unregistered.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if streams cannot wait for memory; if the driver refuses.
    fn register_words(&self, words: &[AtomicU32]) -> Result<u64>;

    /// Takes words from the device. Nothing in a stream uses them any more.
    fn unregister_words(&self, words: &[AtomicU32]);

    /// Sets a word from the host.
    fn set_word(&self, word: &AtomicU32, value: u32) {
        word.store(value, Ordering::Release);
    }

    /// Queues a store to a word, behind everything that the stream has stored before.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn write_word(&self, stream: u64, address: u64, value: u32) -> Result<()>;

    /// Makes what comes into a stream from now on wait until a word has this value or, counted cyclically, a later one.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn wait_word(&self, stream: u64, address: u64, value: u32) -> Result<()>;

    /// Waits until a stream is empty.
    ///
    /// # Errors
    /// If the device has failed.
    fn wait_until_empty(&self, stream: u64) -> Result<()>;

    /// Queues a fold.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn fold(&self, stream: u64, folding: &DeviceFold<'_>) -> Result<()>;

    /// Queues combinations by adaptive summation.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn adasum(&self, stream: u64, combining: &DeviceAdasum<'_>) -> Result<()>;

    /// Host memory that the device copies to and from without the driver's help.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Gives such memory back. Nothing may use it any more.
    fn free_pinned(&self, memory: NonNull<u8>);

    /// Queues a copy from the device to pinned memory of so many bytes.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn copy_to_pinned(&self, stream: u64, source: u64, target: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Queues a copy from pinned memory of so many bytes to the device.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn copy_from_pinned(&self, stream: u64, source: NonNull<u8>, target: u64, bytes: usize) -> Result<()>;

    /// Queues copies between memory of devices.
    ///
    /// # Errors
    /// As [`Backend::record`].
    fn copy(&self, stream: u64, copies: &[DeviceCopy]) -> Result<()>;

    /// Copies from the device and waits for it.
    ///
    /// # Errors
    /// If the device has failed.
    fn read_and_wait(&self, address: u64, target: &mut [u8]) -> Result<()>;

    /// Copies to the device and waits for it.
    ///
    /// # Errors
    /// If the device has failed.
    fn write_and_wait(&self, address: u64, source: &[u8]) -> Result<()>;

    /// What other processes need to map the allocation in which an address lies.
    ///
    /// # Errors
    /// [`crate::Error::NotShareable`] if the memory is of a kind that cannot be mapped.
    fn export(&self, address: u64) -> Result<Export>;

    /// The number of the allocation in which an address lies. No two allocations of a process have the same.
    ///
    /// # Errors
    /// If there is no allocation.
    fn allocation_id(&self, address: u64) -> Result<u64>;

    /// Maps memory of another process; returns where it begins here.
    ///
    /// # Errors
    /// If it is gone or out of reach.
    fn import(&self, export: &Export) -> Result<u64>;

    /// Ends a mapping. Nothing may use it any more.
    fn close(&self, base: u64);

    /// Calls this with the device current on this thread, for libraries that look which one is.
    ///
    /// # Errors
    /// If the driver refuses.
    fn call_current(&self, call: &mut dyn FnMut()) -> Result<()>;
}
