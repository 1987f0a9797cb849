//! How attempts are repeated: [`Patience`].

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

use super::super::StorageOptions;

/// Pauses double at most this often: 64 times the first one, some seconds.
const MAX_DOUBLINGS: u32 = 6;

/// How often and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) retries: u32,
    pub(super) first_pause: Duration,
    pub(super) until: Instant,
}

impl Patience {
    /// That of the options, for a call that begins now.
    pub(super) fn new(options: &StorageOptions) -> Patience {
        let until = Instant::now() + options.deadline;
        Patience { retries: options.retries, first_pause: options.first_pause, until }
    }

    /// What an attempt brings; nothing if time is over before it ends.
    pub(super) async fn within<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.until.into(), attempt).await.ok()
    }

    /// How long to wait before the next attempt, if there is one: not if attempts or time are used up.
    pub(super) fn pause(&self, fruitless: u32) -> Option<Duration> {
        if fruitless > self.retries {
            return None;
        }
        let longest = self.first_pause * 2_u32.pow(fruitless.saturating_sub(1).min(MAX_DOUBLINGS));
        let pause = longest / 2 + (longest / 2).mul_f64(chance());
        (Instant::now() + pause < self.until).then_some(pause)
    }
}

/// A number from 0 to 1 that differs between processes and calls: keys of hash tables are random.
pub(super) fn chance() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}
