//! What ranks write, from their pipes to the screen and to files.
//!
//! [`Lines`] cuts a rank's bytes into whole lines, beside the rank; [`Screen`] shows them, beside the user, with the
//! rank's prefix and, if wanted, the time, and keeps the [`Tail`] of each rank for the day it fails. Lines of two ranks
//! never mix, and an error that several ranks write is shown once (`error_blocks`). Nothing here reads or waits: the
//! agent and the launcher have loops for that.

mod calendar;
mod error_blocks;
mod lines;
mod screen;
mod tail;
mod writer;

pub(crate) use lines::Lines;
pub(crate) use screen::{Painted, Screen};
pub(crate) use tail::Tail;
pub(crate) use writer::Writer;
