//! What a tensor of PyTorch's says of itself, without a call of Python for each question: [`Reader`].
//!
//! PyTorch (2.10 and later) gives a table of C functions for that, DLPack's exchange API, in a capsule of its tensor
//! class. A call of it takes a twentieth of what the methods of a tensor take together, which counts for a group of a
//! hundred. The storage, which owns the bytes, is still asked for by a method.
//!
//! The structures are DLPack's, in their layout and in their spelling. A table of another major version is not used,
//! and where there is none the Python package asks tensors itself.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use farandole::Dtype;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

const NAME: &CStr = c"dlpack_exchange_api";

/// The attribute of tensor classes.
const ATTRIBUTE: &str = "__dlpack_c_exchange_api__";

/// The major version of DLPack whose table this is.
const MAJOR: u32 = 1;

/// DLPack's numbers of kinds of devices.
pub(crate) const HOST: i32 = 1;
pub(crate) const CUDA: i32 = 2;

#[repr(C)]
struct DLPackExchangeAPI {
    major: u32,
    minor: u32,
    prev_api: *const c_void,
    managed_tensor_allocator: *const c_void,
    managed_tensor_from_py_object_no_sync: *const c_void,
    managed_tensor_to_py_object_no_sync: *const c_void,
    dltensor_from_py_object_no_sync: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut DLTensor) -> c_int>,
    current_work_stream: *const c_void,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A tensor whose elements lie one after the other.
pub(crate) struct Tensor {
    pub(crate) address: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: Dtype,
    /// The kind of its device, and its number.
    pub(crate) device: (i32, i32),
    pub(crate) storage: Py<PyAny>,
}

/// Reads tensors of PyTorch's.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    read: unsafe extern "C" fn(*mut ffi::PyObject, *mut DLTensor) -> c_int,
}

impl Reader {
    /// If this PyTorch has such a table.
    pub(crate) fn get(py: Python<'_>) -> Option<Reader> {
        static READER: PyOnceLock<Option<Reader>> = PyOnceLock::new();
        *READER.get_or_init(py, || Reader::find(py).ok().flatten())
    }

    fn find(py: Python<'_>) -> PyResult<Option<Reader>> {
        let class = py.import("torch")?.getattr("Tensor")?;
        let capsule = class.getattr(ATTRIBUTE)?.cast_into::<PyCapsule>()?;
        let table: NonNull<DLPackExchangeAPI> = capsule.pointer_checked(Some(NAME))?.cast();
        // SAFETY: a capsule of this name has such a table, which lives as long as the process; the version comes first.
        let (major, read) = unsafe { (table.as_ref().major, table.as_ref().dltensor_from_py_object_no_sync) };
        Ok(read.filter(|_| major == MAJOR).map(|read| Reader { read }))
    }

    /// Reads a tensor; nothing if it is none, or is of a kind that the engine does not work on as it is.
    pub(crate) fn read(self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
        let Some(found) = self.ask(tensor) else { return Ok(None) };
        let Some(dtype) = dtype_of(found.code, found.bits, found.lanes) else { return Ok(None) };
        let dims = usize::try_from(found.ndim).unwrap_or(0);
        // SAFETY: shape and strides have one number for each dimension, and live as long as the tensor, which the
        // caller holds.
        let (shape, strides) = unsafe { (numbers(found.shape, dims), numbers(found.strides, dims)) };
        if !is_contiguous(shape, strides) {
            return Ok(None);
        }
        Ok(Some(Tensor {
            address: found.data as usize + found.byte_offset as usize,
            shape: shape.iter().map(|dim| dim.cast_unsigned()).collect(),
            dtype,
            device: (found.device_type, found.device_id),
            storage: tensor.call_method0(intern!(tensor.py(), "untyped_storage"))?.unbind(),
        }))
    }

    /// Where the elements of a tensor begin.
    pub(crate) fn address(self, tensor: &Bound<'_, PyAny>) -> Option<usize> {
        self.ask(tensor).map(|found| found.data as usize + found.byte_offset as usize)
    }

    fn ask(self, tensor: &Bound<'_, PyAny>) -> Option<DLTensor> {
        let mut found = MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the function writes a structure that borrows from the tensor, or raises.
        let failed = unsafe { (self.read)(tensor.as_ptr(), found.as_mut_ptr()) } != 0;
        if failed {
            drop(PyErr::take(tensor.py()));
            return None;
        }
        // SAFETY: written, as the function said.
        Some(unsafe { found.assume_init() })
    }
}

/// # Safety
/// There are so many numbers at the address, unless it is null, for as long as they are used.
unsafe fn numbers<'a>(first: *const i64, count: usize) -> &'a [i64] {
    // SAFETY: promised by the caller.
    if first.is_null() || count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}

/// Whether elements lie one after the other. No strides mean that they do.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    strides.is_empty()
        || shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim;
            fits
        })
}

/// DLPack's codes: signed, unsigned, floating-point, bfloat, bool.
fn dtype_of(code: u8, bits: u8, lanes: u16) -> Option<Dtype> {
    if lanes != 1 {
        return None;
    }
    Some(match (code, bits) {
        (0, 8) => Dtype::I8,
        (0, 16) => Dtype::I16,
        (0, 32) => Dtype::I32,
        (0, 64) => Dtype::I64,
        (1, 8) => Dtype::U8,
        (1, 16) => Dtype::U16,
        (1, 32) => Dtype::U32,
        (1, 64) => Dtype::U64,
        (2, 16) => Dtype::F16,
        (2, 32) => Dtype::F32,
        (2, 64) => Dtype::F64,
        (4, 16) => Dtype::BF16,
        (6, 8) => Dtype::Bool,
        _ => return None,
    })
}
