//! TensorFlow's ops: registered through its C API, from this library, without a compiler.
//!
//! The way of one op: `definitions` (what it is called) → `kernel` (a call's tensors become submissions) →
//! `kernel_calls` (the engine and back) → `done` (TensorFlow's callback). `shapes` answers while graphs are built, and
//! `api` has TensorFlow's functions. How errors read is in the crate's `op_error`.
//!
//! Kernels are registered for the CPU and for GPUs. On a GPU, inputs and outputs are declared to lie in host memory, so
//! that TensorFlow itself copies them, on its own streams; its C API gives out no CUDA stream. On the CPU they are not:
//! TensorFlow would take what other ops make there, which declare nothing, for memory of another kind, and let no
//! output take over the memory of its input.
//!
//! What is deliberately not here: Python's wrappers and gradients (`farandole/tensorflow/mpi_ops.py`).
//!
//! This is an unsafe module: TensorFlow calls into it with addresses.

#![allow(unsafe_code)]

mod api;
mod definitions;
mod done;
mod kernel;
mod kernel_calls;
mod marks;
mod shapes;
mod xla;

use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

use api::{Api, CreateKernel, Library, Opaque, Status};
use definitions::{DEFINITIONS, Definition, Kind};
use kernel::Kernel;

use crate::op_error::UNKNOWN;

/// Devices that kernels are registered for.
const DEVICES: [&CStr; 2] = [CPU, c"GPU"];
const CPU: &CStr = c"CPU";

/// Whether the ops are registered: TensorFlow takes them once. Held by threads that import the Python package.
static REGISTERED: Mutex<bool> = Mutex::new(false);

/// Registers the ops with the TensorFlow of this version, whose framework library has this path. Does nothing the
/// second time. Returns whether kernels are asynchronous.
#[pyfunction]
pub(crate) fn register_tensorflow_ops(framework: &str, version: &str) -> PyResult<bool> {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let path = CString::new(framework).map_err(|_| PyImportError::new_err("a path holds no zero"))?;
    let refuse = |what: String| PyImportError::new_err(format!("TensorFlow's ops cannot be registered: {what}"));
    let library = Library::already_loaded(&path).map_err(refuse)?;
    let api = api::load(&library).map_err(|symbol| {
        refuse(format!("TensorFlow {version} has no {symbol}; the ops need TensorFlow 2.12 or later"))
    })?;
    let asynchronous = api.asynchronous.is_some() && done::uses_libstdcxx(&library);
    if !*registered {
        for definition in &DEFINITIONS {
            register_op(api, definition).map_err(refuse)?;
            for device in DEVICES {
                register_kernel(api, definition, device, asynchronous).map_err(refuse)?;
            }
            if !definition.kind.is_many() {
                register_for_xla(api, definition).map_err(refuse)?;
            }
        }
        marks::register(api).map_err(refuse)?;
        *registered = true;
    }
    Ok(asynchronous)
}

fn register_op(api: &Api, definition: &Definition) -> Result<(), String> {
    let status = Status::new();
    // SAFETY: the builder belongs to `register_op`, which frees it; all texts are copied.
    unsafe {
        let builder = (api.new_op)(text(definition.name).as_ptr());
        definition.attrs.iter().for_each(|attr| (api.add_attr)(builder, text(attr).as_ptr()));
        definition.inputs.iter().for_each(|input| (api.add_input)(builder, text(input).as_ptr()));
        definition.outputs.iter().for_each(|output| (api.add_output)(builder, text(output).as_ptr()));
        (api.set_stateful)(builder, true);
        (api.set_shape_function)(builder, definition.shapes.function());
        (api.register_op)(builder, status.raw());
    }
    status.error().map_or(Ok(()), |error| Err(format!("{}: {error}", definition.name)))
}

fn register_kernel(api: &Api, definition: &Definition, device: &CStr, asynchronous: bool) -> Result<(), String> {
    let (status, name) = (Status::new(), text(definition.name));
    let create = create_function(definition.kind);
    // SAFETY: the builder belongs to `register_kernel`, which frees it; all texts are copied.
    unsafe {
        let builder = match api.asynchronous {
            Some(api) if asynchronous && !definition.kind.is_local() => {
                (api.new_kernel_builder)(name.as_ptr(), device.as_ptr(), create, compute_async, delete)
            }
            _ => (api.new_kernel_builder)(name.as_ptr(), device.as_ptr(), create, compute, delete),
        };
        if device != CPU {
            definition.arguments().for_each(|argument| (api.host_memory)(builder, text(argument).as_ptr()));
        }
        (api.register_kernel)(name.as_ptr(), builder, status.raw());
    }
    status.error().map_or(Ok(()), |error| Err(format!("{} on {device:?}: {error}", definition.name)))
}

/// Registers what translates the op when a function is compiled.
fn register_for_xla(api: &Api, definition: &Definition) -> Result<(), String> {
    let (status, name, create) = (Status::new(), text(definition.name), create_function(definition.kind));
    // SAFETY: the builder belongs to `register_kernel`, which frees it; all texts are copied.
    unsafe {
        let device = xla::DEVICE.as_ptr();
        let builder = (api.new_kernel_builder)(name.as_ptr(), device, create, xla::compile, delete);
        (api.register_kernel)(name.as_ptr(), builder, status.raw());
    }
    status.error().map_or(Ok(()), |error| Err(format!("{} for XLA: {error}", definition.name)))
}

fn text(text: &str) -> CString {
    CString::new(text).expect("invariant: definitions hold no zero")
}

/// The function that makes kernels of this kind. TensorFlow passes it no data of ours, so there is one for each kind.
fn create_function(kind: Kind) -> CreateKernel {
    macro_rules! of_kind {
        ($($name:ident),*) => {
            match kind { $(Kind::$name => create::<{ Kind::$name as u8 }>,)* }
        };
    }
    of_kind!(
        Allreduce,
        GroupedAllreduce,
        Allgather,
        GroupedAllgather,
        Broadcast,
        AllreduceMany,
        BroadcastMany,
        Alltoall,
        Reducescatter,
        GroupedReducescatter,
        Join,
        Barrier,
        Size,
        ProcessSetIncluded,
        LocalSize,
        Rank,
        LocalRank
    )
}

unsafe extern "C" fn create<const KIND: u8>(construction: Opaque) -> Opaque {
    // SAFETY: TensorFlow passes the construction of the kernel, which lives during the call.
    let read = catch_unwind(AssertUnwindSafe(|| unsafe { Kernel::read(Kind::of(KIND), construction) }));
    let (code, words) = match read {
        Ok(Ok(kernel)) => return Box::into_raw(Box::new(kernel)).cast(),
        Ok(Err(error)) => (error.code, error.text),
        Err(_) => (UNKNOWN, "farandole has a bug: it panicked while an op was made".to_owned()),
    };
    let status = Status::new();
    status.set(code, &words);
    // SAFETY: as above.
    unsafe { (api::api().construction_failed)(construction, status.raw()) };
    std::ptr::null_mut()
}

unsafe extern "C" fn compute(kernel: Opaque, context: Opaque) {
    // SAFETY: TensorFlow passes what `create` has made, and the context of a call.
    unsafe { kernel_calls::compute(kernel.cast_const().cast::<Kernel>(), context) };
}

unsafe extern "C" fn compute_async(kernel: Opaque, context: Opaque, done: Opaque) {
    // SAFETY: as above, and the callback of the call.
    unsafe { kernel_calls::compute_async(kernel.cast_const().cast::<Kernel>(), context, done) };
}

unsafe extern "C" fn delete(kernel: Opaque) {
    if !kernel.is_null() {
        // SAFETY: made by `create`; TensorFlow deletes it once, after its last call.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}
