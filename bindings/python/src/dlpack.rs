//! Memory of the engine's and of data loaders, given to Python through DLPack.
//!
//! DLPack is a C structure in a capsule: where the elements are, what they are, and a function to call when nobody
//! needs them any more. The consumer renames the capsule when it has taken over; a capsule that still has its first
//! name when it dies was taken by nobody, and its destructor calls that function itself. So each structure is let go
//! exactly once.
//!
//! The structures are DLPack's, in their layout and in their spelling, as far as host memory needs them. There are two:
//! the first one, and the one with a version in front, for consumers that say that they know it.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use farandole::{Dtype, Region};
use farandole_data::loader::BatchMemory;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// DLPack's number for host memory, and the number of the device: there is one host.
pub(crate) const HOST: (i32, i32) = (1, 0);

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// Memory that is given away. From here on it is not ours to touch: it may be a tensor that Python code writes to.
pub(crate) struct Memory {
    start: NonNull<u8>,
    dtype: Dtype,
    /// Never read or written again; it frees the memory.
    _owner: Box<dyn Any + Send>,
}

// SAFETY: the owner is `Send`, and the pointer is one to its memory that is only handed on.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives out the address and the element type, nothing else.
unsafe impl Sync for Memory {}

impl Memory {
    /// A result of the engine's.
    pub(crate) fn new(mut region: Region) -> Memory {
        Memory { start: start_of(region.as_bytes_mut()), dtype: region.dtype(), _owner: Box::new(region) }
    }

    /// The images of a batch. Its bytes lie on the heap and stay where they are when their owner is moved.
    pub(crate) fn of_batch(mut images: BatchMemory, dtype: Dtype) -> Memory {
        Memory { start: start_of(&mut images), dtype, _owner: Box::new(images) }
    }

    /// Numbers of this element type, which lie on the heap.
    pub(crate) fn of_numbers<T: Send + 'static>(mut numbers: Vec<T>, dtype: Dtype) -> Memory {
        assert_eq!(size_of::<T>(), dtype.size_bytes(), "invariant: numbers are of the type that they are said to be");
        let start = NonNull::new(numbers.as_mut_ptr()).expect("invariant: vectors are never at null");
        Memory { start: start.cast(), dtype, _owner: Box::new(numbers) }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }
}

fn start_of(bytes: &mut [u8]) -> NonNull<u8> {
    NonNull::new(bytes.as_mut_ptr()).expect("invariant: slices are never at null")
}

/// What has memory to give away, and lives as long as whoever took it.
pub(crate) trait Giver: Send + Sync + 'static {
    /// The memory, which must be there.
    fn memory(&self) -> &Memory;
    /// Its dimensions.
    fn shape(&self) -> &[u64];
}

#[repr(C)]
struct DLDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    dl_tensor: DLTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

#[repr(C)]
struct DLManagedTensorVersioned {
    major: u32,
    minor: u32,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
    dl_tensor: DLTensor,
}

/// What a structure points into.
struct Keep {
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _giver: Arc<dyn Giver>,
}

/// What a framework asks for when it takes memory, besides a stream: all memory here is the host's, so there is none to
/// wait for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) dl_device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// A capsule with somebody's memory, for each who asks: the memory lives until the last of them has released it.
pub(crate) fn capsule<'py>(py: Python<'py>, giver: Arc<dyn Giver>, wish: Wish) -> PyResult<Bound<'py, PyCapsule>> {
    let Wish { max_version, dl_device, copy } = wish;
    if dl_device.is_some_and(|device| device != HOST) {
        return Err(PyValueError::new_err("this lies in host memory and goes nowhere else"));
    }
    if copy == Some(true) {
        return Err(PyValueError::new_err("this is given away, not copied; copy what you get"));
    }
    let (dl_tensor, manager_ctx) = describe(giver);
    if max_version.is_some_and(|(major, _)| major >= 1) {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
        let tensor = DLManagedTensorVersioned { major: 1, minor: 0, manager_ctx, deleter, flags: 0, dl_tensor };
        let pointer = NonNull::from(Box::leak(Box::new(tensor))).cast();
        // SAFETY: the pointer is one to the structure that the name promises; the destructor frees it if nobody took
        // it.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, VERSIONED_NAME, Some(destroy)) }
    } else {
        let tensor = DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete) };
        let pointer = NonNull::from(Box::leak(Box::new(tensor))).cast();
        // SAFETY: as above.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, NAME, Some(destroy)) }
    }
}

fn describe(giver: Arc<dyn Giver>) -> (DLTensor, *mut c_void) {
    let (start, dtype) = (giver.memory().start, giver.memory().dtype());
    let dims = giver.shape().iter().map(|&dim| i64::try_from(dim).expect("invariant: a result fits into memory"));
    let shape: Box<[i64]> = dims.collect();
    let mut strides: Box<[i64]> = vec![1; shape.len()].into();
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    let keep = Box::leak(Box::new(Keep { shape, strides, _giver: giver }));
    let dl_tensor = DLTensor {
        data: start.as_ptr().cast(),
        device: DLDevice { device_type: HOST.0, device_id: HOST.1 },
        ndim: i32::try_from(keep.shape.len()).expect("invariant: nobody has that many dimensions"),
        dtype: data_type(dtype),
        shape: keep.shape.as_mut_ptr(),
        strides: keep.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    (dl_tensor, std::ptr::from_mut(keep).cast())
}

/// DLPack's codes: signed 0, unsigned 1, float 2, bfloat 4, bool 6.
#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
fn data_type(dtype: Dtype) -> DLDataType {
    let code = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => 0,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => 1,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => 2,
        Dtype::BF16 => 4,
        Dtype::Bool => 6,
        _ => unreachable!("invariant: every element type has an arm"),
    };
    DLDataType { code, bits: dtype.size_bytes() as u8 * 8, lanes: 1 }
}

/// Called by the consumer, on whatever thread, with or without the interpreter's lock: no Python object is touched.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: DLPack calls this once, with the structure that `capsule` leaked; its context is a `Keep` that `describe`
    // leaked.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx.cast::<Keep>()));
    }
}

/// As [`delete`].
unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx.cast::<Keep>()));
    }
}

/// The end of a capsule. A consumer that has taken over has changed the name.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule of ours that dies, holding its lock; the name says which structure is in
    // it, and a structure under its first name is nobody else's.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}
