//! Keeps a forked child from inheriting the lock of `job` in the hands of a thread that it did not inherit.
//!
//! The thread that forks takes the lock first and releases it on both sides, so the child can always ask for ranks. The
//! lock is held by others for a moment only, so forking waits for nobody.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, Once};

use crate::job::{self, Job};

thread_local! {
    /// Held by the thread that forks, from before to after.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Arc<Job>>>>> = const { RefCell::new(None) };
}

/// Has the handlers called from now on. Once in the life of the process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers take and release a lock and do nothing else; the C library forgets them if this library
        // is unloaded. Without memory for them nothing is worse than without handlers.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}

extern "C" fn before() {
    let held = job::lock_job();
    // A thread whose own variables are gone forks without the lock.
    let _ = HELD.try_with(|slot| *slot.borrow_mut() = Some(held));
}

extern "C" fn after() {
    let _ = HELD.try_with(|slot| slot.borrow_mut().take());
}
