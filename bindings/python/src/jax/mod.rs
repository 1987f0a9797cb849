//! The collectives of JAX's programs: [`jax_handler`] gives Python the function that XLA calls.
//!
//! `farandole/jax` lowers a collective to a custom call; when a compiled program comes to it, XLA calls us through its
//! FFI (`xla_ffi`), the requests go to the engine (`call`, `op_calls`), and XLA goes on when they are done
//! (`xla_ffi::resume`). No thread of XLA's waits, but for a program that has nothing but the call: the thread that runs
//! it carries it out.
//!
//! What is deliberately not here: the order of a program's collectives, their gradients and the shapes of their
//! results, which are JAX's matter (`farandole/jax/primitive.py`); and memory of GPUs.
//!
//! This is an unsafe module: it gives away the address of a function that XLA calls with addresses.

#![allow(unsafe_code)]

mod call;

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::op_error::OpError;
use crate::xla_ffi::layout;
use crate::xla_ffi::{Call, Handler, run};

/// The collectives of JAX's programs.
struct Collective;

impl Handler for Collective {
    fn execute(call: &mut Call<'_>) -> Result<(), OpError> {
        call::execute(call)
    }
}

/// The function that compiled programs call, for `jax.ffi.register_ffi_target`.
#[pyfunction]
pub(crate) fn jax_handler(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let handler: layout::Handler = run::<Collective>;
    let address = NonNull::new(handler as *mut c_void).expect("invariant: functions are never at null");
    // SAFETY: the address is that of a function of this library, which is never unloaded; there is nothing to free.
    unsafe { PyCapsule::new_with_pointer(py, address, c"xla._CUSTOM_CALL_TARGET") }
}
