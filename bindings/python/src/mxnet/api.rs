//! MXNet's C API and what little of its C++ is needed, found by name in the library that Python has loaded: [`Api`].
//!
//! Nothing of MXNet is linked or compiled. `libmxnet.so` is in the process when this is called, and its functions are
//! looked up once. A function that is missing is an error that names it.
//!
//! This is an unsafe module. The invariant it keeps: every function has the type that `include/mxnet/c_api.h` of MXNet
//! 1.5 to 1.9 documents. Three have no C API. `NDArray::Reorder2DefaultAsync() const` takes only `this`; builds without
//! oneDNN have none, and need none. The constructor and destructor of `std::runtime_error` are libstdc++'s, by which
//! MXNet is told of errors ([`CppError`]): 16 bytes, the same in every release since GCC 5.
//!
//! What is deliberately not here: what the functions are used for (`array`, `complete`, `call`).

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::library::{Library, Opaque};

/// Runs an operation: the run's context, the callback for its end, and what was pushed.
pub(super) type Run = unsafe extern "C" fn(Opaque, Opaque, Opaque);
/// Deletes what was pushed.
pub(super) type Delete = unsafe extern "C" fn(Opaque);

/// `mxnet::Context` of the host, on which operations run.
#[repr(C)]
pub(super) struct Device {
    device_type: c_int,
    device_id: i32,
}

/// `mxnet::Context::CPU(0)`.
pub(super) static HOST: Device = Device { device_type: 1, device_id: 0 };

/// `mxnet::FnProperty::kCPUPrioritized`: on the threads of MXNet's that take operations by their priority.
pub(super) static PRIORITIZED: c_int = 3;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by what they do.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// `NDArray::Reorder2DefaultAsync() const`.
            pub(super) reorder: Option<unsafe extern "C" fn(Opaque)>,
        }

        impl Api {
            fn look_up(library: &Library) -> Result<Api, String> {
                Ok(Api {
                    $($field: {
                        let address = library.symbol($symbol).ok_or_else(|| $symbol.to_owned())?;
                        // SAFETY: the symbol of this name has this type (module's text), and the library stays.
                        unsafe {
                            std::mem::transmute::<Opaque, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                        }
                    },)*
                    reorder: library.symbol("_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv").map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<Opaque, unsafe extern "C" fn(Opaque)>(address) }
                    }),
                })
            }
        }
    };
}

functions! {
    push = "MXEnginePushAsyncND":
        fn(Run, Opaque, Delete, *const Device, *const Opaque, c_int, *const Opaque, c_int, *const c_int, c_int,
           *const c_char, bool) -> c_int;
    shallow_copy = "MXShallowCopyNDArray": fn(Opaque, *mut Opaque) -> c_int;
    free = "MXNDArrayFree": fn(Opaque) -> c_int;
    data = "MXNDArrayGetData": fn(Opaque, *mut *mut c_void) -> c_int;
    last_error = "MXGetLastError": fn() -> *const c_char;
    new_error = "_ZNSt13runtime_errorC1EPKc": fn(*mut CppError, *const c_char);
    delete_error = "_ZNSt13runtime_errorD1Ev": fn(*mut CppError);
}

static API: OnceLock<Api> = OnceLock::new();

/// The functions, for code that comes after [`load`].
pub(super) fn api() -> &'static Api {
    API.get().expect("invariant: arrays are handed in after the functions were found")
}

/// Finds the functions. The error is the name of one that is missing.
pub(super) fn load(library: &Library) -> Result<(), String> {
    let found = Api::look_up(library)?;
    API.get_or_init(|| found);
    Ok(())
}

/// Whether the functions were found.
pub(super) fn is_loaded() -> bool {
    API.get().is_some()
}

/// What MXNet says of the call that has just failed on this thread.
pub(super) fn check(code: c_int) -> Result<(), String> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: a text of this thread's, which lives until its next call.
    let text = unsafe { CStr::from_ptr((api().last_error)()) };
    Err(text.to_string_lossy().into_owned())
}

/// A `std::runtime_error`, which MXNet copies into a `dmlc::Error`: that has the same members and no others.
#[repr(C, align(8))]
pub(super) struct CppError([usize; 2]);

impl CppError {
    /// Calls with the address of an error that has this text.
    pub(super) fn with(text: &str, use_it: impl FnOnce(*const CppError)) {
        let text = CString::new(text.replace('\0', " ")).expect("invariant: zeros have been replaced");
        let mut error = CppError([0; 2]);
        // SAFETY: the constructor fills the two words and copies the text; the destructor runs once, after the last
        // use.
        unsafe {
            (api().new_error)(&raw mut error, text.as_ptr());
            use_it(&raw const error);
            (api().delete_error)(&raw mut error);
        }
    }
}
