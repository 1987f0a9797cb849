//! Being asked to stop: a signal sets a flag, and training ends between two steps.
//!
//! No rank stops for itself. A rank that was asked says so in the numbers that all ranks exchange in every step, and
//! all stop after the same one; so whatever is written then is the same everywhere, and no collective is left half-way.
//! Whoever asks a second time does not want to wait, and the process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// What a process exits with when it is asked a second time: as if the signal had ended it.
const SECOND_TIME: i32 = 128 + SIGINT;

/// Whether this rank was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Set by a signal handler, read by the training loop once in a step; orders nothing.
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// From now on signals that end a process are heard instead.
    ///
    /// # Errors
    /// If the system does not let us.
    pub fn on_signals() -> std::io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, SECOND_TIME, Arc::clone(&stop.asked))?;
            flag::register(signal, Arc::clone(&stop.asked))?;
        }
        // A file that may grow no more is an error of a write, which names the file, and not a death.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(stop)
    }

    /// Whether it was.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_heard_and_survived() {
        let stop = Stop::on_signals().unwrap();
        assert!(!stop.asked());
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.asked());
    }
}
