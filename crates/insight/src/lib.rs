//! Analysis of traces: where the time of a job went, why, and what to change.
//!
//! Everything here is a function from values to values. The traces of all ranks ([`farandole_trace::Trace`]) are put on
//! one clock ([`mod@align`]) and become a [`history`]: what each rank did, on one time line. [`loss`] splits all time
//! into work and causes of loss, which always sum exactly; [`efficiency`] gives the factors of the POP model;
//! [`profile`] sorts messages by size; [`replay`] predicts how long the job would take with something changed. From
//! these [`verdict`] derives findings and advice, and [`report`] writes them as text, JSON or HTML. [`timeline`] writes
//! the timeline of all ranks for a viewer. Of dumps that ranks leave on a stall or a failure, [`trouble`] says what
//! they are about.
//!
//! This crate opens no file and no socket, reads no clock and starts no thread. The command line reads files and
//! prints.

#![forbid(unsafe_code)]

pub mod align;
pub mod efficiency;
pub mod generations;
pub mod history;
pub mod loss;
pub mod profile;
pub mod replay;
pub mod report;
pub mod timeline;
pub mod trouble;
pub mod verdict;
