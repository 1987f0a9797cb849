//! Memory of Python objects that is lent to the engine: [`LentMemory`].
//!
//! The invariant is that of [`Region`]: from the making of a region to its drop nobody else writes these bytes, and
//! nobody reads them while they are written. No compiler can hold a Python program to that, so this module does what
//! can be done:
//!
//! - The owner of the memory lives until the region is dropped, whatever happens to handle and tensor. The owner must
//!   be what the bytes belong to: of a torch tensor its storage, because `t.data = other` keeps the tensor and frees
//!   the bytes.
//! - An address that cannot be right is refused.
//! - `resize_` and `share_memory_` reallocate inside the same storage and free what the engine works on. The Python
//!   package makes torch ask first ([`lent`], `farandole/torch/guard.py`).
//!
//! The rest is the promise that a Horovod user has always given: not to touch a tensor between submitting it and
//! `synchronize`.
//!
//! [`LentMemory`] is found as long as a region of it lives. Entries without a region are removed when others are
//! added, so that a thread of the engine, which drops most of them, takes no lock here. Only threads that hold the
//! interpreter's lock do, and no Python code runs under it: a forked child finds it free.
//!
//! An owner is often dropped on a thread of the engine, which must not wait for the interpreter's lock (its holder may
//! be waiting for the engine). PyO3 keeps such owners and drops them when the next thread enters this module.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, Weak};

use farandole::{Dtype, OnDevice, Region};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How many entries the registry has before the first removal of old ones. Later removals come when there are twice as
/// many as the last one left, so adding one costs the same however many there are.
const FIRST_REMOVAL: usize = 64;

/// Memory that was submitted with one call, and the Python objects that own it. Every region of it holds this.
pub(crate) struct LentMemory {
    _owner: Py<PyAny>,
    pieces: Pieces,
}

/// Most calls submit one tensor, and need no list for it.
pub(crate) enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

/// Contiguous memory of one request.
pub(crate) struct Piece {
    pub(crate) address: usize,
    pub(crate) len_bytes: usize,
    pub(crate) name: Arc<str>,
}

/// Changed by threads that hold the interpreter's lock.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry { entries: Vec::new(), remove_at: FIRST_REMOVAL });

struct Registry {
    entries: Vec<Weak<LentMemory>>,
    remove_at: usize,
}

impl LentMemory {
    /// Registers memory that is about to be lent. `owner` owns all of it; a tuple of owners is fine.
    pub(crate) fn register(owner: Py<PyAny>, pieces: Pieces) -> Arc<LentMemory> {
        let memory = Arc::new(LentMemory { _owner: owner, pieces });
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        if registry.entries.len() >= registry.remove_at {
            registry.entries.retain(|memory| memory.strong_count() > 0);
            registry.remove_at = FIRST_REMOVAL.max(2 * registry.entries.len());
        }
        registry.entries.push(Arc::downgrade(&memory));
        memory
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// The bytes of one of these pieces, for the engine.
    pub(crate) fn region(self: &Arc<LentMemory>, piece: &Piece, dtype: Dtype) -> PyResult<Region> {
        let &Piece { address, len_bytes, .. } = piece;
        check_place(address, len_bytes)?;
        let start = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the Python package passes the address and size of contiguous memory of the owner, which lives as long
        // as the region; the user leaves the tensor alone until the request is done (see the module's text).
        Ok(unsafe { Region::from_raw_parts(start, len_bytes, dtype, Arc::clone(self)) })
    }

    /// The bytes of one of these pieces in the memory of a device, for the engine.
    pub(crate) fn region_on_device(self: &Arc<LentMemory>, piece: &Piece, dtype: Dtype, ordinal: u32) -> Region {
        let place = OnDevice { ordinal, address: piece.address as u64 };
        // SAFETY: as in `region`; the Python package passes an address of this device.
        unsafe { Region::on_device(place, piece.len_bytes, dtype, Arc::clone(self)) }
    }

    /// The name of a request that has bytes in this range.
    fn name_within(&self, address: usize, end: usize) -> Option<&Arc<str>> {
        let within = |piece: &&Piece| piece.address < end && address < piece.address.saturating_add(piece.len_bytes);
        self.pieces().iter().find(within).map(|piece| &piece.name)
    }
}

/// The bytes at an address, which belong to `_owner` and are not written while they are read: they are those of a
/// training between two of its steps, whose thread calls this.
pub(crate) fn read(_owner: &Py<PyAny>, address: usize, len_bytes: usize) -> PyResult<&[u8]> {
    check_place(address, len_bytes)?;
    if len_bytes == 0 {
        return Ok(&[]);
    }
    // SAFETY: the Python package passes the address and size of contiguous memory of the owner, which lives as long as
    // what is returned; see above for writers.
    Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), len_bytes) })
}

fn check_place(address: usize, len_bytes: usize) -> PyResult<()> {
    if len_bytes > 0 && address == 0 {
        return Err(PyValueError::new_err(format!("a tensor of {len_bytes} bytes cannot lie at the null address")));
    }
    let end = address.checked_add(len_bytes);
    if end.is_none_or(|end| isize::try_from(end).is_err()) {
        return Err(PyValueError::new_err(format!("there is no memory of {len_bytes} bytes at {address:#x}")));
    }
    Ok(())
}

/// Lends the bytes at an address, which belong to `owner`, for the request of this name.
pub(crate) fn lend(
    name: &Arc<str>,
    address: usize,
    len_bytes: usize,
    dtype: Dtype,
    owner: Py<PyAny>,
) -> PyResult<Region> {
    let memory = LentMemory::register(owner, Pieces::One(Piece { address, len_bytes, name: Arc::clone(name) }));
    memory.region(&memory.pieces()[0], dtype)
}

/// The name of a request that is in the engine, or whose result nobody has fetched, and that has memory in this range.
#[pyfunction]
pub(crate) fn lent(address: usize, len_bytes: usize) -> Option<String> {
    let end = address.saturating_add(len_bytes);
    // One of these may become the last hold on an owner, and dropping an owner runs Python code: not under the lock.
    let all: Vec<Arc<LentMemory>> = {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.entries.iter().filter_map(Weak::upgrade).collect()
    };
    all.iter().find_map(|memory| memory.name_within(address, end)).map(|name| name.to_string())
}
