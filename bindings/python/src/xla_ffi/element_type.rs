//! The numbers by which XLA knows element types: `xla::PrimitiveType`, which its FFI shares.

use std::ffi::c_int;

use farandole::Dtype;

use crate::op_error::OpError;

/// The type of tokens, which order calls and have no bytes.
pub(crate) const TOKEN: c_int = 17;

/// `xla::PrimitiveType` of each element type.
const PRIMITIVE_TYPES: [(c_int, Dtype); 13] = [
    (1, Dtype::Bool),
    (2, Dtype::I8),
    (3, Dtype::I16),
    (4, Dtype::I32),
    (5, Dtype::I64),
    (6, Dtype::U8),
    (7, Dtype::U16),
    (8, Dtype::U32),
    (9, Dtype::U64),
    (10, Dtype::F16),
    (11, Dtype::F32),
    (12, Dtype::F64),
    (16, Dtype::BF16),
];

/// The number of an element type.
pub(crate) fn primitive_type(dtype: Dtype) -> c_int {
    let found = PRIMITIVE_TYPES.iter().find(|(_, candidate)| *candidate == dtype);
    found.map(|(number, _)| *number).expect("invariant: every element type has a number")
}

/// The element type with this number.
pub(crate) fn dtype_of(primitive_type: c_int) -> Result<Dtype, OpError> {
    let found = PRIMITIVE_TYPES.iter().find(|(number, _)| *number == primitive_type);
    let unknown = || OpError::wrong_use(format!("no op takes XLA's element type {primitive_type}"));
    found.map(|(_, dtype)| *dtype).ok_or_else(unknown)
}
