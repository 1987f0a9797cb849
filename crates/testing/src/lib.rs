//! What tests of several crates need: temporary folders, commands with a deadline, waits for a condition, namespaces,
//! an NFS server, a wire that fails, and time.
//!
//! A dev-dependency only; no program and no library has it. It depends on nothing but the standard library, so that no
//! test waits for it to be compiled. What one crate's tests need alone is in that crate.
//!
//! Everything panics where it fails: the caller is a test.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;
mod folder;
mod namespaces;
mod nfs_server;
mod sleeper;
mod tcp_proxy;
mod time;

pub use command::{finish, finish_child};
pub use folder::Folder;
pub use namespaces::in_namespaces;
pub use nfs_server::{NfsExport, NfsServer};
pub use sleeper::Sleeper;
pub use tcp_proxy::{TcpProxy, WireFaults};
pub use time::{Deadline, NEVER, at_least, lapse, wait_for, wait_until};
