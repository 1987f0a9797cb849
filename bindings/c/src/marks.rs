//! What the program says about itself: phases, iterations, epochs; and timelines.
//!
//! Marks never fail for want of a job: before `farandole_init` and in forked children there is nobody to tell.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use farandole::Cycles;

use crate::job::{self, Job};
use crate::lifecycle::current;
use crate::pointer::text;
use crate::status::{Fault, Status};

/// The job, if this process records.
fn recording() -> Option<Arc<Job>> {
    // A child may have inherited the recorder's lock in the hands of a thread that it did not inherit.
    job::peek().filter(|job| !job.world.engine().is_forked())
}

pub(crate) fn start(path: &str, mark_cycles: bool) -> Result<(), Fault> {
    let cycles = if mark_cycles { Cycles::Marked } else { Cycles::Unmarked };
    let started = current()?.world.start_timeline(Path::new(path), cycles);
    started.map_err(|error| Fault::new(Status::File, format!("no timeline in {path}: {error}")))
}

pub(crate) fn stop() -> Result<(), Fault> {
    current()?.world.stop_timeline().map_err(|error| Fault::new(Status::File, format!("the timeline: {error}")))
}

exported! {
    /// A phase of the program begins on this thread.
    fn farandole_phase_begin(name: *const c_char) {
        // SAFETY: promised by the caller.
        let name = unsafe { text(name, "name") }?;
        if let Some(job) = recording() {
            job.world.recorder().begin_phase(name);
        }
        Ok(())
    }
}

exported! {
    /// It ends.
    fn farandole_phase_end(name: *const c_char) {
        // SAFETY: promised by the caller.
        let name = unsafe { text(name, "name") }?;
        if let Some(job) = recording() {
            job.world.recorder().end_phase(name);
        }
        Ok(())
    }
}

exported! {
    /// An iteration of training begins.
    fn farandole_mark_iteration(number: u64) {
        if let Some(job) = recording() {
            job.world.mark_iteration(number);
        }
        Ok(())
    }
}

exported! {
    /// An epoch of training begins.
    fn farandole_mark_epoch(number: u64) {
        if let Some(job) = recording() {
            job.world.mark_epoch(number);
        }
        Ok(())
    }
}

exported! {
    /// Begins to write a timeline.
    fn farandole_start_timeline(path: *const c_char, mark_cycles: c_int) {
        // SAFETY: promised by the caller.
        start(unsafe { text(path, "path") }?, mark_cycles != 0)
    }
}

exported! {
    /// Ends the timeline.
    fn farandole_stop_timeline() { stop() }
}
