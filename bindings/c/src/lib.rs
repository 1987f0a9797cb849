//! The C ABI of Farandole: `libfarandole.so`, whose headers are `include/farandole.h` and `include/horovod.h`.
//!
//! What each function promises is said in the headers and nowhere else; `docs/c.md` is the guide. The functions are
//! thin: they read arguments (`pointer`, `request`), ask the engine, and turn errors into a status and a text
//! (`status`). `horovod` has Horovod's own C functions, for programs that load the library through ctypes.
//!
//! Invariants, everywhere:
//! - A process is at most one rank. [`job`] owns that rank's world, for C and for the Python module, which links this
//!   crate and exports the same functions; a second copy of them in the process is found (`other_library`).
//! - No panic leaves a function: it becomes `FARANDOLE_INTERNAL`.
//! - What can be found wrong about an argument is found before it is used. Tickets are numbers that are never used
//!   again, so a stale one is found, too.
//!
//! Unsafe code is in `pointer`, which reads what pointers point to, in the modules of exported functions, whose callers
//! vouch for these pointers, in `fork_handler` and in `other_library`.

#![deny(unsafe_code)]

#[macro_use]
mod export;

mod direct;
mod fork_handler;
mod horovod;
pub mod job;
mod lifecycle;
mod marks;
mod other_library;
mod pointer;
mod request;
mod sets;
mod status;
mod ticket;

/// What C programs see of this crate; tests compare it with what is here.
#[cfg(test)]
const HEADER: &str = include_str!("../include/farandole.h");
