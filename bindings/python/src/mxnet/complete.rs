//! The callback by which MXNet's engine learns that an operation is over: [`OnComplete`].
//!
//! The engine passes the address of a `mxnet::engine::CallbackOnComplete` that lives on its stack. It is three words: a
//! function, the engine, and what the operation is to the engine; whoever wants to call it later copies them. An error
//! becomes an exception of every array that the operation would have written, and is thrown where Python waits for one
//! of them. The engine that is chosen by `MXNET_ENGINE_TYPE=NaiveEngine` ignores errors; `call` keeps them.
//!
//! This is an unsafe module: it calls an address that MXNet has passed.

#![allow(unsafe_code)]

use crate::library::Opaque;

use super::api::CppError;

/// A copy of the callback. Dropped without being run, the operation never ends; so nobody does.
#[repr(C)]
pub(super) struct OnComplete {
    callback: unsafe extern "C" fn(Opaque, Opaque, *const CppError),
    engine: Opaque,
    operation: Opaque,
}

// SAFETY: MXNet documents that an asynchronous operation may end on any thread.
unsafe impl Send for OnComplete {}

impl OnComplete {
    /// # Safety
    /// `callback` is what MXNet's engine has passed to an operation that has not returned.
    pub(super) unsafe fn copy(callback: Opaque) -> OnComplete {
        // SAFETY: promised by the caller.
        unsafe { callback.cast::<OnComplete>().read() }
    }

    /// Tells MXNet's engine that the operation is over. Nothing of it may be touched afterwards.
    pub(super) fn run(self, error: Option<&str>) {
        let tell = |error| {
            // SAFETY: the callback of an operation that is not over: it runs once, because this takes the copy.
            unsafe { (self.callback)(self.engine, self.operation, error) };
        };
        match error {
            None => tell(std::ptr::null()),
            Some(text) => CppError::with(text, tell),
        }
    }
}
