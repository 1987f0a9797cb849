//! Happened: what each rank did, and when.
//!
//! Every rank records the boundaries of what it does ([`event`]) into rings of fixed size that are always on. What
//! is in them can be written to a file at any time ([`file`]), is read back as a [`Trace`], and the traces of all ranks are put
//! on one clock. timeline writes what a viewer shows: one rank's while it runs, as Horovod's users know it,
//! or all ranks' afterwards.
//!
//! This crate knows no other crate of the project, and no tensor: whoever does something says so here in terms of
//! [`event`]. Reading is total: whatever lies in a file, the answer is a trace or an error.
//!
//! What is deliberately not here: what to make of it all. Profiles, efficiencies and verdicts are functions of traces.

#![forbid(unsafe_code)]

pub mod event;
pub mod file;
mod trace;

pub use event::{Event, Record};
pub use trace::{Ending, Header, Named, Names, Trace};
