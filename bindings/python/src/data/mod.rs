//! The data loader, as Python uses it.
//!
//! `records` opens what lies at a path, `steps` makes transforms of what Python says, `feed` walks through epochs and
//! hands out batches, whose memory `array` gives away through DLPack.
//!
//! **Invariant:** a thread that waits has released the interpreter's lock and sees signals. Threads belong to the
//! process that started them: a forked child is told so, and never waits for them.
//!
//! Not here: what frameworks make of batches, and everything with defaults, which is in `farandole/data`.

mod array;
mod feed;
mod records;
mod steps;

pub(crate) use array::DataArray;
pub(crate) use feed::{DataBatch, DataFeed};
pub(crate) use records::DataRecords;
