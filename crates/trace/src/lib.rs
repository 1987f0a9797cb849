//! Records what each rank did, and when.
//!
//! Every rank records events ([`event`]) into rings of fixed size that are always on. Their content can be written to a
//! file at any time ([`mod@file`]), and is read back as a [`Trace`]. [`timeline`] writes Horovod's timeline of one rank
//! while it runs; [`live`] makes samples of a running rank.
//!
//! This crate depends on no other crate of the project and knows no tensor. Decoding is total: any file gives a trace
//! or an error.
//!
//! The analysis of traces is in `farandole-insight`.

#![deny(unsafe_code)]
// Under loom only the ring is of interest; `tests/loom_ring.rs` includes it as a module.
#![cfg(not(loom))]

mod bytes;
pub mod clock;
mod compact;
mod dump_notice;
pub mod event;
pub mod file;
mod generation;
pub mod json;
pub mod live;
pub mod machine;
mod private_folder;
mod recent;
mod record;
mod recorder;
mod ring;
mod ring_writer;
mod tables;
mod tail;
pub mod timeline;
mod trace;
mod trace_files;
mod tsc;
mod tsc_clock;
mod writer;

pub use compact::BucketTimes;
pub use dump_notice::DumpNotice;
pub use event::{Event, Record};
pub use generation::GenerationView;
pub use private_folder::{PrivateFolder, TemporaryFolder};
pub use recent::{RecentActivity, STALL_REPORT};
pub use recorder::{DEVICE_ROW, DumpReason, Edge, Identity, PhaseGuard, Recorder};
pub use ring_writer::RingWriter;
pub use timeline::Cycles;
pub use trace::{NameEntry, Names, Trace, TraceEnding, TraceHeader, Unreadable};
pub use trace_files::{FallbackFolder, JOBS_KEPT};
pub use writer::{TraceWriter, WriterOptions};
