//! Moves bytes between two ranks.
//!
//! This crate knows what a link is ([`Link`], [`Control`]) and how to wait for any of them at once ([`Waiter`]). There
//! is one folder for each place bytes can go: `memory` (threads of one process, for tests), `shm` (processes of one
//! host), `stream` (anything that has an address). It does not know what the bytes mean: no dtype, no arithmetic, no
//! schedule.
//!
//! Connections come about in [`Mesh::connect`], which blocks until the mesh is there. After that nothing in here blocks
//! except [`Waiter::wait`]. Every operation on a link does what can be done now and says whether it
//! is finished; a driver goes round its links, and when nothing moves it waits, once, for all of them.

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
pub use key::{JobId, Key};
pub use link::{Control, Link, Progress, RecvCursor, SendCursor, Tag};
pub use listen::Listener;
pub use mesh::{Mesh, Peer};
pub use process::{ProcessStat, ProcessState};
pub use protection::Protection;
pub use wait::{Bell, Waiter};
