//! What the records of a job mean: where its time went, why, and what to change.
//!
//! Everything here is a function from values to values. The traces of all ranks ([`farandole_trace::Trace`]) are put on
//! one clock ([`mod@align`]) and become a [`history`]: what each rank did, on one time line. [`loss`] splits all time
//! into work and causes of loss, which always sum exactly; [`efficiency`] gives the factors of the POP model;
//! [`profile`] sorts messages by size; [`replay`] predicts how long the job would take with something changed. From
//! these [`verdict`] draws its conclusions and advice, and [`report`] puts them into text, JSON or HTML. [`timeline`]
//! writes what a viewer shows of all ranks.
//!
//! This crate does no I/O, knows no clock and no thread. Who reads files and prints is the command line.

#![forbid(unsafe_code)]

pub mod align;
pub mod efficiency;
pub mod history;
pub mod loss;
pub mod profile;
pub mod replay;
pub mod report;
pub mod timeline;
pub mod verdict;
