//! Moves bytes between two ranks, and waits for all of them at once.
//!
//! A [`Link`] carries frames of tensor data to and from one peer, a [`Control`] small messages; a [`Mesh`] has both for
//! every peer of a group. There is one module for each medium: `memory` (threads of one process, for tests), `shm`
//! (processes of one host: shared windows and rings) and `stream` (TCP and Unix sockets). A link does not know what its
//! bytes mean: no dtype, no arithmetic, no schedule.
//!
//! Invariants:
//!
//! - Nothing blocks except [`Waiter::wait`], and [`Mesh::connect`], which has a deadline. Every call on a link does
//!   what can be done now and says whether it is finished. When nothing moves, the driver waits once for all its links;
//!   a [`Bell`] wakes it.
//! - Decoders are total. From a process that has not proved to hold the job's [`Key`], only a hello of fixed size is
//!   decoded. Control messages between hosts are always encrypted; data is if [`Protection`] says so.
//! - Limits on a peer's silence count only time in which this process was awake ([`AwakeClock`]).
//!
//! Entry points:
//!
//! - [`Mesh::connect`] with [`Options`], a [`Listener`] and the [`Contact`] of each rank.
//! - [`link`]: the contract that every medium keeps.
//! - [`shm::Windows`]: memory that all ranks of a host read, and the flags by which they hand it over.
//! - [`fault`]: makes a link or a window fail at a chosen step, for tests.
//!
//! Unsafe code is in `shm` and `credentials`. Not here: how ranks find each other (`farandole-cluster`), and when to
//! send what (`farandole-engine`).

#![deny(unsafe_code)]

pub mod awake;
pub mod connect;
pub mod contact;
pub mod credentials;
pub mod descriptors;
pub mod error;
pub mod fault;
pub mod fds;
pub mod frame;
pub mod hello;
pub mod identity;
pub mod key;
pub mod link;
pub mod listen;
pub mod memory;
pub mod mesh;
pub mod process;
pub mod protection;
pub mod shm;
pub mod stream;
pub mod wait;

pub use awake::{AwakeClock, Countdown};
pub use connect::{Local, Options};
pub use contact::Contact;
pub use credentials::Credentials;
pub use error::{Error, Result};
pub use identity::ProcessId;
pub use key::{JobId, Key};
pub use link::{Control, Link, Progress, RecvCursor, SendCursor, Tag};
pub use listen::Listener;
pub use mesh::{Mesh, Peer};
pub use process::{ProcessStat, ProcessState};
pub use protection::Protection;
pub use wait::{Bell, Waiter};
