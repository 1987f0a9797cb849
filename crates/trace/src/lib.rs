//! Records what each rank did, and when.
//!
//! Every rank records the boundaries of what it does ([`event`]) into rings of fixed size that are always on. What is
//! in them can be written to a file at any time ([`mod@file`]), and is read back as a [`Trace`]. [`timeline`] writes
//! one rank's timeline while it runs, as Horovod's users know it; [`live`] is what others may know of a rank while it
//! runs.
//!
//! This crate knows no other crate of the project, and no tensor: whoever does something says so here in terms of
//! [`event`]. Reading is total: whatever lies in a file, the answer is a trace or an error.
//!
//! What the records of a job mean is the business of `farandole-insight`.

#![deny(unsafe_code)]
// Under the model checker only the ring is of interest; `tests/loom_ring.rs` takes it in by itself.
#![cfg(not(loom))]

pub mod clock;
pub mod event;
pub mod file;
pub mod json;
mod lately;
pub mod live;
pub mod machine;
mod recorder;
mod ring;
mod saved;
mod scribe;
mod tables;
mod tail;
mod terse;
mod tick;
pub mod timeline;
mod trace;
mod watch;

pub use event::{Event, Record};
pub use lately::Lately;
pub use recorder::{DEFAULT_RECORDS, Edge, Identity, Occasion, Pen, PhaseGuard, Recorder};
pub use saved::Saved;
pub use scribe::{Duties, JOBS_KEPT, LastResort, Scribe, save};
pub use terse::Way;
pub use timeline::Cycles;
pub use trace::{Ending, Header, Named, Names, Trace, Unreadable};
