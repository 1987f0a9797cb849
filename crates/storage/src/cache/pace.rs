//! How fast blocks have come of late: [`Pace`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The weight of a new measurement: some ten blocks say what the pace is now, and one that was late changes little.
const WEIGHT: f64 = 0.2;

/// A measurement counts as at most so many times the pace before: a thread that had to wait for a processor says little
/// about storage or network. What has really become slower is known after a few blocks all the same.
const MOST_AT_ONCE: f64 = 4.0;

/// Seconds for each byte, as a moving average. Threads that fetch note what they saw.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<f64>>);

impl Pace {
    /// Notes that so many bytes took so long. Nothing says nothing.
    pub(super) fn note(&self, bytes: usize, took: Duration) {
        if bytes == 0 {
            return;
        }
        let now = took.as_secs_f64() / bytes as f64;
        let mut pace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *pace = Some(pace.map_or(now, |before| before + WEIGHT * (now.min(MOST_AT_ONCE * before) - before)));
    }

    /// None before the first bytes have come.
    pub(super) fn seconds_per_byte(&self) -> Option<f64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_what_was_seen_and_one_late_block_changes_little() {
        let pace = Pace::default();
        assert_eq!(pace.seconds_per_byte(), None);
        pace.note(0, Duration::from_secs(1));
        assert_eq!(pace.seconds_per_byte(), None);
        pace.note(100, Duration::from_secs(1));
        assert_eq!(pace.seconds_per_byte(), Some(0.01));
        pace.note(100, Duration::from_secs(2));
        assert!((pace.seconds_per_byte().unwrap() - 0.012).abs() < 1e-9);
        pace.note(100, Duration::from_secs(1000));
        assert!((pace.seconds_per_byte().unwrap() - 0.0192).abs() < 1e-9);
        (0..50).for_each(|_| pace.note(100, Duration::from_secs(4)));
        assert!((pace.seconds_per_byte().unwrap() - 0.04).abs() < 1e-4);
    }
}
