//! The collectives of JAX's programs: [`jax_handler`] and [`jax_device_handler`] give Python the functions that XLA
//! calls.
//!
//! `farandole/jax` lowers a collective to a custom call; when a compiled program comes to it, XLA calls us through its
//! FFI (`xla_ffi`), the requests go to the engine (`call`, `op_calls`), and XLA goes on when they are done
//! (`xla_ffi::resume`). No thread of XLA's waits, but for a program that has nothing but the call: the thread that runs
//! it carries it out.
//!
//! Programs on GPUs call another function, which lends their memory where it lies (`on_device`).
//!
//! What is deliberately not here: the order of a program's collectives, their gradients and the shapes of their
//! results, which are JAX's matter (`farandole/jax/primitive.py`).
//!
//! This is an unsafe module: it gives away the address of a function that XLA calls with addresses.

#![allow(unsafe_code)]

mod call;
pub(crate) mod compared;
pub(crate) mod on_device;

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

/// The same for programs on GPUs.
struct CollectiveOnDevice;

impl Handler for CollectiveOnDevice {
    fn execute(call: &mut Call<'_>) -> Result<(), OpError> {
        call::execute_on_device(call)
    }
}

/// The function that programs compiled for the processor call, for `jax.ffi.register_ffi_target`.
#[pyfunction]
pub(crate) fn jax_handler(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    capsule(py, run::<Collective>)
}

/// The function that programs compiled for a GPU call.
#[pyfunction]
pub(crate) fn jax_device_handler(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    capsule(py, run::<CollectiveOnDevice>)
}

fn capsule(py: Python<'_>, handler: layout::Handler) -> PyResult<Bound<'_, PyCapsule>> {
    let address = NonNull::new(handler as *mut c_void).expect("invariant: functions are never at null");
    // SAFETY: the address is that of a function of this library, which is never unloaded; there is nothing to free.
    unsafe { PyCapsule::new_with_pointer(py, address, c"xla._CUSTOM_CALL_TARGET") }
}
