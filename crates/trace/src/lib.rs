//! Happened: what each rank did, and when.
//!
//! Every rank records the boundaries of what it does ([`event`]) into rings of fixed size that are always on. What is
//! in them can be written to a file at any time ([`mod@file`]), is read back as a [`Trace`], and the traces of all
//! ranks are put on one clock. [`timeline`] writes what a viewer shows: one rank's while it runs, as Horovod's users
//! know it, or all ranks' afterwards; [`live`] what others may know of a rank while it runs.
//!
//! This crate knows no other crate of the project, and no tensor: whoever does something says so here in terms of
//! [`event`]. Reading is total: whatever lies in a file, the answer is a trace or an error.
//!
//! What to make of it all is a function from values to values: [`history`] is what a job did, on one clock; [`profile`]
//! sorts its messages by size; [`loss`] says where the time went and [`efficiency`] how much of it was work; [`replay`]
//! plays it again with something changed.

#![deny(unsafe_code)]
// Under the model checker only the ring is of interest; `tests/loom_ring.rs` takes it in by itself.
#![cfg(not(loom))]

pub mod align;
pub mod clock;
pub mod efficiency;
pub mod event;
pub mod file;
pub mod history;
mod json;
mod lately;
pub mod live;
pub mod loss;
mod machine;
pub mod profile;
mod recorder;
pub mod replay;
pub mod report;
mod ring;
mod saved;
mod scribe;
mod tables;
mod tail;
mod terse;
mod tick;
pub mod timeline;
mod trace;
pub mod verdict;
mod watch;

pub use event::{Event, Record};
pub use lately::Lately;
pub use recorder::{DEFAULT_RECORDS, Edge, Identity, Occasion, Pen, PhaseGuard, Recorder};
pub use saved::Saved;
pub use scribe::{Duties, JOBS_KEPT, LastResort, Scribe, save};
pub use terse::Way;
pub use timeline::Cycles;
pub use trace::{Ending, Header, Named, Names, Trace, Unreadable};
