//! An array of MXNet's that we hold on to: [`Array`].
//!
//! A copy of an `NDArray` shares its memory and its engine variable, so that the memory lives as long as the copy,
//! whatever becomes of the Python object. Its data may be touched while MXNet's engine runs an operation that named the
//! array, and before it is told that this is over; or before anybody else knows the array.
//!
//! This is an unsafe module: it passes addresses of arrays, which callers vouch for.

#![allow(unsafe_code)]

use crate::library::Opaque;

use super::api::{api, check};

/// A copy of an `NDArray`.
pub(super) struct Array(Opaque);

// SAFETY: MXNet counts what shares an array's memory atomically, and any thread may free the last copy.
unsafe impl Send for Array {}
// SAFETY: a shared copy only gives out addresses; MXNet's own functions may be called for it by several threads.
unsafe impl Sync for Array {}

impl Array {
    /// Copies what an `NDArrayHandle` stands for.
    ///
    /// # Safety
    /// `handle` is a handle of an array that lives and has memory.
    pub(super) unsafe fn of(handle: usize) -> Result<Array, String> {
        let mut copy = std::ptr::null_mut();
        // SAFETY: promised by the caller.
        check(unsafe { (api().shallow_copy)(std::ptr::with_exposed_provenance_mut(handle), &raw mut copy) })?;
        Ok(Array(copy))
    }

    pub(super) fn raw(&self) -> Opaque {
        self.0
    }

    /// What says which arrays share an engine variable: the address of the memory's description, the first word of an
    /// `NDArray`. `tells_variables_apart` makes sure of it.
    pub(super) fn variable(&self) -> usize {
        // SAFETY: an `NDArray` that lives is larger than a word.
        unsafe { *self.0.cast::<usize>() }
    }

    /// Has MXNet's engine put the data into rows before what is pushed next. oneDNN keeps some arrays in an order of
    /// its own; those that are in rows stay as they are.
    pub(super) fn put_into_rows(&self) {
        if let Some(reorder) = api().reorder {
            // SAFETY: an `NDArray` that lives; it is a method without arguments.
            unsafe { reorder(self.0) };
        }
    }

    /// Where the data is. Memory that MXNet has put off is made.
    pub(super) fn data(&self) -> Result<*mut u8, String> {
        let mut data = std::ptr::null_mut();
        // SAFETY: an `NDArray` that lives.
        check(unsafe { (api().data)(self.0, &raw mut data) })?;
        Ok(data.cast())
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: ours to free, once. That cannot fail but for lack of memory, which ends the process anyway.
        unsafe { (api().free)(self.0) };
    }
}

/// Whether [`Array::variable`] is right of an array, a part of it and another array.
pub(super) fn tells_variables_apart(array: &Array, part: &Array, other: &Array) -> bool {
    array.variable() == part.variable() && array.variable() != other.variable()
}
