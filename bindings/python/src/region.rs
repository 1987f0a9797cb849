//! Memory of Python objects, lent to the engine.
//!
//! The invariant is that of [`Region`]: from the making of a region to its drop nobody else writes these bytes, and
//! nobody reads them while they are written. No compiler can hold a Python program to that. This module does what can
//! be done: the owner of the memory lives until the region is gone, whatever becomes of handle and tensor, and an
//! address that cannot be right is refused. The owner must be what the bytes belong to: of a torch tensor its storage,
//! because `t.data = other` leaves the tensor alive and frees the bytes. What reallocates inside a storage is refused
//! meanwhile (`lent`). The rest is the promise that a Horovod user has always given: not to touch a tensor between
//! handing it in and `synchronize`.
//!
//! An owner is often let go on a thread of the engine, which must not wait for the interpreter's lock (whoever holds
//! that may be waiting for the engine). PyO3 keeps such owners and lets them go when the next thread enters this
//! module.

#![allow(unsafe_code)]

use std::sync::Arc;

use farandole::{Dtype, Region};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::lent::{Loan, Piece, Pieces};

/// Lends the bytes at an address, which belong to `owner`, for the request of this name.
pub(crate) fn lend(
    name: &Arc<str>,
    address: usize,
    len_bytes: usize,
    dtype: Dtype,
    owner: Py<PyAny>,
) -> PyResult<Region> {
    let loan = Loan::begin(owner, Pieces::One(Piece { address, len_bytes, name: Arc::clone(name) }));
    lend_piece(address, len_bytes, dtype, loan)
}

/// Lends the bytes at an address, which are a piece of this loan.
pub(crate) fn lend_piece(address: usize, len_bytes: usize, dtype: Dtype, loan: Arc<Loan>) -> PyResult<Region> {
    if len_bytes > 0 && address == 0 {
        return Err(PyValueError::new_err(format!("a tensor of {len_bytes} bytes cannot lie at the null address")));
    }
    let end = address.checked_add(len_bytes);
    if end.is_none_or(|end| isize::try_from(end).is_err()) {
        return Err(PyValueError::new_err(format!("there is no memory of {len_bytes} bytes at {address:#x}")));
    }
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the Python package passes the address and size of contiguous memory that the loan's owner owns; the loan
    // lives as long as the region, and the user leaves the tensor alone until the request is done (see the module's
    // text).
    Ok(unsafe { Region::from_raw_parts(start, len_bytes, dtype, loan) })
}
