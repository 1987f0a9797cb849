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

mod bytes;
pub mod clock;
mod compact;
mod dump_notice;
pub mod event;
pub mod file;
pub mod json;
pub mod live;
pub mod machine;
mod recent;
mod recorder;
mod ring;
mod tables;
mod tail;
pub mod timeline;
mod trace;
mod tsc;
mod tsc_clock;
mod writer;

pub use compact::BucketTimes;
pub use dump_notice::DumpNotice;
pub use event::{Event, Record};
pub use recent::RecentActivity;
pub use recorder::{DEFAULT_RECORDS, DumpReason, Edge, Identity, PhaseGuard, Recorder, RingWriter};
pub use timeline::Cycles;
pub use trace::{NameEntry, Names, Trace, TraceEnding, TraceHeader, Unreadable};
pub use writer::{FallbackFolder, JOBS_KEPT, TraceWriter, WriterOptions};
