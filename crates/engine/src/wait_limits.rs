//! How long an operation may wait for other ranks: one rule for named requests and direct calls.
//!
//! - A peer that is alive and only late is a **stall**. It is reported after the warning time, and again whenever the
//!   wait has doubled ([`tell_again`]), but it ends nothing: a rank may load data, write a checkpoint or compute for as
//!   long as it likes.
//! - A peer that is dead, cut off or stopped is not waited for: its connections end or are no longer acknowledged, or
//!   the rendezvous pronounces a cause on it (the abort handle). Neither is this module's business.
//! - A time limit that the **user** has set ends the wait, in either kind of call, with an error that says who was
//!   waited for, how long, and which setting it was ([`WaitLimits::exceeded`]). There is none by default.
//!
//! Waits are measured in awake time (`farandole_transport::awake`): what passed while this process was stopped does not
//! count.

use std::time::Duration;

/// A stall is not reported more often than this, however short the warning time is: whoever reads the report has to act
/// on it first.
const BETWEEN_REPORTS: Duration = Duration::from_secs(30);

/// How long a wait must have taken before it is reported again, if it had taken `waited` when it was reported.
pub(crate) fn tell_again(waited: Duration) -> Duration {
    waited.saturating_mul(2).max(waited.saturating_add(BETWEEN_REPORTS))
}

/// The time limits that a user may set; zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitLimits {
    /// [`crate::Config::deadline`].
    pub(crate) timeout: Duration,
    /// [`crate::Config::stall_shutdown`].
    pub(crate) stall_shutdown: Duration,
}

impl WaitLimits {
    /// The setting that ends a wait in which nothing has moved for so long, in words; `None` if it may go on.
    pub(crate) fn exceeded(&self, waited: Duration) -> Option<String> {
        let set = [
            (self.timeout, "FARANDOLE_TIMEOUT_SECONDS (HOROVOD_GLOO_TIMEOUT_SECONDS, --gloo-timeout-seconds)"),
            (self.stall_shutdown, "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"),
        ];
        let over = set.into_iter().filter(|(limit, _)| !limit.is_zero() && waited >= *limit);
        let (limit, setting) = over.min_by_key(|(limit, _)| *limit)?;
        Some(format!("nothing moved for as long as {setting} allows, {} s", limit.as_secs_f64()))
    }

    /// The shortest limit that is set.
    pub(crate) fn shortest(&self) -> Duration {
        [self.timeout, self.stall_shutdown].into_iter().filter(|limit| !limit.is_zero()).min().unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A minute was once enough to end a job whose rank 0 wrote a checkpoint.
    #[test]
    fn a_late_peer_ends_nothing_unless_the_user_has_said_so() {
        let wait_limits = WaitLimits::default();
        for waited in [60 * SECOND, 61 * SECOND, 24 * 3600 * SECOND] {
            assert_eq!(wait_limits.exceeded(waited), None);
        }
        assert_eq!(wait_limits.shortest(), Duration::MAX);
    }

    #[test]
    fn a_stall_is_told_again_when_the_wait_has_doubled_but_not_all_the_time() {
        assert_eq!(tell_again(60 * SECOND), 120 * SECOND);
        assert_eq!(tell_again(tell_again(60 * SECOND)), 240 * SECOND);
        assert_eq!(tell_again(SECOND), 31 * SECOND);
        assert_eq!(tell_again(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn what_the_user_has_set_ends_a_wait_and_is_named() {
        let wait_limits = WaitLimits { timeout: 2 * SECOND, stall_shutdown: 5 * SECOND };
        assert_eq!(wait_limits.exceeded(SECOND), None);
        let words = wait_limits.exceeded(2 * SECOND).unwrap();
        assert!(words.contains("FARANDOLE_TIMEOUT_SECONDS") && words.ends_with("allows, 2 s"), "{words}");
        let words = WaitLimits { timeout: Duration::ZERO, ..wait_limits }.exceeded(6 * SECOND).unwrap();
        assert!(words.contains("STALL_SHUTDOWN") && words.ends_with("allows, 5 s"), "{words}");
        assert_eq!(wait_limits.shortest(), 2 * SECOND);
    }
}
