//! Being asked to stop: a signal is noted, the run of the moment is ended, and what was measured is kept.
//!
//! Whoever asks a second time does not want to wait, and the process ends; its job ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether the study was asked to stop, and by which signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// The signal's number, or zero. Set by a signal handler, read by the loop that waits for a run; orders nothing.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// From now on signals that end a process are heard instead, once.
    pub(crate) fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        // Set by the first signal and read when the second comes, by handlers alone.
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let heard = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize));
            heard.context("listening for signals")?;
        }
        Ok(stop)
    }

    /// The number of the signal, if there was one.
    pub(crate) fn asked(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }
}
