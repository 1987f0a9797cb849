//! Which memory of Python's is lent at this moment: [`Loan`].
//!
//! An owner keeps its object alive, and with torch that is the storage. It does not keep the storage from being given
//! other memory: `resize_` and `share_memory_` reallocate inside the same storage and free what the engine works on. So
//! whoever is about to do that asks first ([`lent`]), and the Python package has torch ask
//! (`farandole/torch/guard.py`).
//!
//! Invariant: memory of a [`Loan`] is found as long as a region of it lives. Loans that are over are swept out when
//! others are noted, so that a thread of the engine, which lets go of most of them, takes no lock here. Only threads
//! that hold the interpreter's lock do, and nothing of Python's runs under it: a forked child finds it free.
//!
//! What is deliberately not here: regions, and what an address must be like (`region`).

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;

/// How many loans are noted before the first sweep. A sweep comes when there are twice as many as the last one has
/// left, so noting one costs the same however many there are.
const FIRST_SWEEP: usize = 64;

/// Memory that was handed in with one call, and the Python objects that own it. Every region of it holds the loan.
pub(crate) struct Loan {
    _owner: Py<PyAny>,
    pieces: Pieces,
}

/// Most calls hand in one tensor, and need no list for it.
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

/// Noted and swept by threads that hold the interpreter's lock.
static LOANS: Mutex<Register> = Mutex::new(Register { loans: Vec::new(), sweep_at: FIRST_SWEEP });

struct Register {
    loans: Vec<Weak<Loan>>,
    sweep_at: usize,
}

impl Loan {
    /// Notes memory that is about to be lent. `owner` owns all of it; a tuple of owners is fine.
    pub(crate) fn begin(owner: Py<PyAny>, pieces: Pieces) -> Arc<Loan> {
        let loan = Arc::new(Loan { _owner: owner, pieces });
        let mut register = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
        if register.loans.len() >= register.sweep_at {
            register.loans.retain(|loan| loan.strong_count() > 0);
            register.sweep_at = FIRST_SWEEP.max(2 * register.loans.len());
        }
        register.loans.push(Arc::downgrade(&loan));
        loan
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// The name of a request that has bytes in this range.
    fn name_within(&self, address: usize, end: usize) -> Option<&Arc<str>> {
        let within = |piece: &&Piece| piece.address < end && address < piece.address.saturating_add(piece.len_bytes);
        self.pieces().iter().find(within).map(|piece| &piece.name)
    }
}

/// The name of a request that the engine has or whose result nobody has fetched, and that has memory in this range, if
/// there is one.
#[pyfunction]
pub(crate) fn lent(address: usize, len_bytes: usize) -> Option<String> {
    let end = address.saturating_add(len_bytes);
    // The last hold on a loan may be one of these, and letting go of an owner runs Python code: not under the lock.
    let loans: Vec<Arc<Loan>> = {
        let register = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
        register.loans.iter().filter_map(Weak::upgrade).collect()
    };
    loans.iter().find_map(|loan| loan.name_within(address, end)).map(|name| name.to_string())
}
