//! The callback by which an asynchronous kernel says that it is done: [`Done`].
//!
//! TensorFlow passes a kernel the address of a `std::function<void()>` that is a parameter of the C++ function which
//! calls us. It dies when we return, and the C API has no way to keep it. So it is copied as C++ would copy it.
//!
//! This is an unsafe module: it relies on how libstdc++ lays out `std::function`, which is part of its ABI and has not
//! changed since GCC 4: 16 bytes for the functor or its address, then `_M_manager(dest, source, operation)`, which is
//! null in an empty function, then `_M_invoker`. Operation 1 gives the functor's address, 2 clones, 3 destroys.
//! TensorFlow's wheels for Linux use libstdc++.
//!
//! That this holds is not taken for granted. [`uses_libstdcxx`] asks at registration whether TensorFlow's library
//! resolves a function that only libstdc++ has. [`Done::copy`] asks the first callback whether its parts are code of a
//! loaded library and whether operation 1 gives an address that the layout explains. If either says no, nothing is
//! copied, and kernels wait before they return: slower, and right.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::api::{Library, Opaque, api};

type Manager = unsafe extern "C" fn(*mut Any, *const Any, c_int) -> bool;

/// `std::_Any_data`: a small functor, or the address of a large one.
type Any = [usize; 2];

/// `std::_Manager_operation`.
const GET_FUNCTOR_ADDRESS: c_int = 1;
const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// `std::function<void()>`.
#[repr(C)]
struct StdFunction {
    functor: Any,
    manager: Option<Manager>,
    invoker: Option<unsafe extern "C" fn(*const Any)>,
}

/// A copy of the callback. Dropped without being run, the kernel never ends; so nobody does.
pub(crate) struct Done(Box<StdFunction>);

// SAFETY: TensorFlow documents that the callback may run on any thread; the functor is copied by value and is ours
// alone.
unsafe impl Send for Done {}

impl Done {
    /// Copies the callback, unless it does not look as expected.
    ///
    /// # Safety
    /// `callback` is what TensorFlow has passed to an asynchronous kernel that has not returned.
    pub(crate) unsafe fn copy(callback: Opaque) -> Option<Done> {
        let original = callback.cast::<StdFunction>().cast_const();
        static AS_EXPECTED: OnceLock<bool> = OnceLock::new();
        // SAFETY: 32 bytes that live until the kernel returns. If they are something else, they are only read.
        if !AS_EXPECTED.get_or_init(|| unsafe { looks_as_expected(original) }) {
            return None;
        }
        // SAFETY: the layout was checked; cloning constructs a functor in memory that holds none.
        unsafe {
            let mut copy =
                Box::new(StdFunction { functor: [0; 2], manager: (*original).manager, invoker: (*original).invoker });
            if let Some(manager) = copy.manager {
                manager(&raw mut copy.functor, &raw const (*original).functor, CLONE);
            }
            Some(Done(copy))
        }
    }

    /// Tells TensorFlow that the kernel is done. Nothing of the kernel may be touched afterwards.
    pub(crate) fn run(mut self) {
        // SAFETY: a `std::function<void()>`, as the C API wants it.
        unsafe { run_original((&raw mut *self.0).cast()) };
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(manager) = self.0.manager.take() {
            let functor = &raw mut self.0.functor;
            // SAFETY: destroys the functor that `copy` has constructed, once.
            unsafe { manager(functor, functor, DESTROY) };
        }
    }
}

/// Runs the original callback, for a kernel that has waited.
///
/// # Safety
/// As for [`Done::copy`].
pub(crate) unsafe fn run_original(callback: Opaque) {
    let asynchronous = api().asynchronous.expect("invariant: callbacks come from asynchronous kernels");
    // SAFETY: promised by the caller.
    unsafe { (asynchronous.run_done)(callback) };
}

/// Whether TensorFlow's library is linked with libstdc++.
pub(crate) fn uses_libstdcxx(framework: &Library) -> bool {
    framework.symbol("_ZSt25__throw_bad_function_callv").is_some() && framework.symbol("__gxx_personality_v0").is_some()
}

/// # Safety
/// 32 readable bytes.
unsafe fn looks_as_expected(function: *const StdFunction) -> bool {
    // SAFETY: promised by the caller; an `Option` of a function holds any word.
    let (functor, words) = unsafe { (&raw const (*function).functor, *function.cast::<[usize; 4]>()) };
    let [first, _, manager, invoker] = words;
    if !is_code(manager) || !is_code(invoker) {
        return false;
    }
    let mut found: Any = [0; 2];
    // SAFETY: code of a loaded library at the place of the manager; this operation only writes the first word of
    // `found`.
    unsafe {
        let Some(manager) = (*function).manager else { return false };
        manager(&raw mut found, functor, GET_FUNCTOR_ADDRESS);
    }
    found[0] == functor.addr() || found[0] == first
}

/// Whether a loaded library has this address in its text.
fn is_code(address: usize) -> bool {
    if address == 0 {
        return false;
    }
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: asks the loader about an address and reads nothing at it.
    unsafe { libc::dladdr(std::ptr::without_provenance::<c_void>(address), info.as_mut_ptr()) != 0 }
}
