//! Memory of accelerators, as far as collectives need it.
//!
//! A [`Device`] is one accelerator as this process sees it. It has [`Allocation`]s, [`Stream`]s and [`Event`]s, tells
//! other processes of the host where its memory lies ([`Export`]), maps what they tell ([`Mappings`]), and runs
//! kernels: [`Stream::fold`] combines the contributions of several ranks and stores the result with some of them,
//! [`Stream::adasum`] combines vectors in pairs by adaptive summation, [`Stream::copy`] packs and unpacks. [`Words`]
//! let streams of several processes wait for each other.
//!
//! [`cuda`] opens NVIDIA's driver library at run time; where there is none, opening says so and nothing else changes.
//! [`nccl`] opens NVIDIA's library of collectives in the same way.
//!
//! The feature `testing`, which no release has, adds two fake backends. `pretend` is host memory with streams that run
//! late: what an event has not been waited for has not happened there, so a missing wait gives wrong results; it has a
//! fake NCCL beside it. `stand_in` is host memory between processes, for tests of front ends.
//!
//! The invariant: no call here waits for a device, except those whose name says so. Addresses come from whoever
//! promised that there is memory ([`farandole_tensor::Region::on_device`]), from allocations and from mappings.
//!
//! Not here: which rank folds what, and when (`farandole-engine`).

#![deny(unsafe_code)]

mod adasum;
mod allocation;
mod backend;
pub mod cuda;
mod device;
mod error;
mod event;
mod export;
mod exports;
#[cfg(any(test, feature = "testing"))]
mod host_fold;
mod mappings;
pub mod nccl;
mod pinned;
#[cfg(any(test, feature = "testing"))]
pub mod pretend;
#[cfg(any(test, feature = "testing"))]
pub mod stand_in;
mod stream;
mod table;
mod words;

pub use adasum::{AdasumPair, AdasumResult, AdasumVector, DeviceAdasum};
pub use allocation::Allocation;
pub use backend::{Backend, DeviceCopy, DeviceFold};
pub use device::{Device, Info, Uuid};
pub use error::{Error, Result};
pub use event::Event;
pub use export::{EXPORT_BYTES, Export};
pub use exports::Exports;
pub use mappings::{Hits, Mappings};
pub use pinned::Pinned;
pub use stream::Stream;
pub use table::MAX_RANKS;
pub use words::{WordMemory, Words};
