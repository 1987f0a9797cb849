//! DeviceFaults of a pretended device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`crate::Backend::allocate`].
    Allocate,
    /// [`crate::Backend::record`].
    Record,
    /// [`crate::Backend::has_happened`].
    Look,
    /// [`crate::Backend::fold`] and [`crate::Backend::adasum`].
    Fold,
    /// [`crate::Backend::copy`].
    Copy,
    /// [`crate::Backend::export`].
    Export,
    /// [`crate::Backend::import`].
    Import,
    /// [`crate::nccl::Library::unique_id`].
    NcclId,
    /// [`crate::nccl::Library::join`].
    NcclJoin,
    /// [`crate::nccl::Handle::call`].
    NcclCall,
    /// [`crate::nccl::Handle::is_ready`].
    NcclLook,
    /// Everything else, which never fails by itself.
    Other,
}

/// Which calls fail. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct DeviceFaults {
    planned: Vec<Arc<Planned>>,
}

#[derive(Debug)]
struct Planned {
    call: Call,
    /// So many calls of this kind succeed first.
    after: u64,
    seen: AtomicU64,
    error: Mutex<Option<Error>>,
}

impl DeviceFaults {
    /// Lets one call of a kind fail, after so many that succeed.
    #[must_use]
    pub fn at(mut self, call: Call, after: u64, error: Error) -> DeviceFaults {
        let planned = Planned { call, after, seen: AtomicU64::new(0), error: Mutex::new(Some(error)) };
        self.planned.push(Arc::new(planned));
        self
    }

    /// What a kernel that writes where there is nothing leaves behind.
    pub fn illegal_address() -> Error {
        Error::Driver {
            call: "cuEventQuery",
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            text: "an illegal memory access was encountered".to_owned(),
        }
    }

    /// What NCCL says when another rank is gone.
    pub fn remote_error() -> Error {
        Error::Nccl {
            call: "ncclCommGetAsyncError",
            code: 6,
            text: "remote process exited or there was a network error".to_owned(),
            detail: String::new(),
        }
    }

    /// The error of this call, if it is to fail.
    pub(super) fn strike(&self, call: Call) -> Option<Error> {
        self.planned.iter().filter(|planned| planned.call == call).find_map(|planned| {
            let due = planned.seen.fetch_add(1, Ordering::Relaxed) == planned.after;
            due.then(|| planned.error.lock().unwrap_or_else(PoisonError::into_inner).take()).flatten()
        })
    }
}
