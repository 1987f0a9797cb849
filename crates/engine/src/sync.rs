//! Locks for the two hand-over protocols of this crate (`completion`, `commands`): the standard library's in
//! production, the model checker's under `--cfg loom`, where every interleaving of a small program is tried.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks, also after a panic of another holder: what these locks protect is valid between any two statements, and
/// a panic of the driver is reported through the tickets, not through poisoned locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
