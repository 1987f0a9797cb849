//! Processes of one host: shared memory.
//!
//! `segment` owns the raw memory, `flags` the words by which ranks hand bytes over, `layout` where things lie. On top
//! of these there are three ways to use it: `windows` (contributions and results pass through cache-sized slots,
//! `tiles`), `mapped` (the buffers themselves are shared) and `ring` (messages, the [`crate::Link`] contract). `cma`
//! reads a peer's private memory. `copy` writes for other cores to read, `device_words` are for devices, `gate` is
//! where faults strike, `scarcity` says how much memory is left, `fork` tells a forked child that none of this is its
//! own.
//!
//! This folder and `credentials.rs` are the only places with unsafe code in this crate
//! (`xtask/src/tidy/unsafe_code.rs` lists those of all crates).
//! Each file says which protocol makes its references exclusive.

pub mod cma;
mod copy;
mod device_words;
pub mod flags;
mod fork;
mod gate;
pub mod layout;
mod mapped;
mod ring;
mod scarcity;
mod segment;
mod sync;
mod tiles;
mod windows;

pub use copy::copy_out;
pub use device_words::DeviceWords;
pub use fork::ForkGuard;
pub use gate::{Gate, Pass, Point};
pub use layout::Layout;
pub use mapped::{Mapped, Reserved};
pub use ring::ShmLink;
pub use segment::Segment;
pub use windows::{Neighbour, Windows};
